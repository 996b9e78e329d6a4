"""The activity that opens a run: what the session holds, what is new, and what the loop goes by."""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from temporalio import activity

from perdure.activities import tracing
from perdure.activities.children import delegated_input
from perdure.activities.deps import Deps
from perdure.activities.failures import boundary
from perdure.activities.incoming import read_input
from perdure.activities.packing import packed, unpacked
from perdure.activities.planning import plan_call, refuse
from perdure.activities.wire import (
    ACTIVITY_OPEN,
    INLINE_ARGUMENTS,
    INPUT_REF,
    CallPlan,
    OpenRun,
    RunFacts,
    ToolPolicy,
)
from perdure.checkpoint_bridge.closing import close_turn, crash_ending, failed_attempts
from perdure.checkpoint_bridge.errors import (
    AgentDriftError,
    ConfigurationError,
    LogConflictError,
    ResumeToolMissingError,
    SessionAwaitingApprovalError,
)
from perdure.checkpoint_bridge.format.fingerprints import describe_drift, drift_of
from perdure.checkpoint_bridge.format.messages import text_of
from perdure.checkpoint_bridge.format.tool_results import decided_result
from perdure.checkpoint_bridge.format.transcript import (
    input_messages,
    is_injected,
    new_session_messages,
    split_pending_turn,
)
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.answers import attempt_events, grant_of
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.log.fold import SessionState
from perdure.checkpoint_bridge.log.lineage import ancestors
from perdure.checkpoint_bridge.tables.event_log import Batch
from perdure.checkpoint_bridge.tables.ledger import MODEL_CALL, EffectId
from perdure.checkpoint_bridge.tables.sessions import refuse_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agent import Agent
    from perdure.checkpoint_bridge.tables.approvals import ApprovalRow
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_OPEN_TRIES = 5
CONTINUE = "continue"

_log = logging.getLogger("perdure.runs")


class Opening(Deps):
    """Opens runs."""

    attributes: Sequence[str] = ()
    """The search attributes that runs may set: set by the worker when it has found out."""

    @activity.defn(name=ACTIVITY_OPEN)
    @boundary
    async def open_run(self, given: dict[str, Any]) -> dict[str, Any]:
        """Write the beginning of a run and say how it goes on. Doing it again changes nothing.

        Takes an :class:`OpenRun`, and gives the :class:`RunFacts`.

        Raises:
            ConfigurationError: unknown agent, or input that is not messages.
            SessionAwaitingApprovalError: new input, while a decision is pending.
            SessionEndedError: the session takes no more messages.
            AgentDriftError: the agent differs, and it was built to refuse that.
            ResumeToolMissingError: a pending call's tool is gone.
        """
        task = unpacked(OpenRun, given)
        agent = self.agent(task.agent)
        for remaining in reversed(range(_OPEN_TRIES)):
            opener = _Opener(self, agent, task)
            try:
                facts = await opener.open()
            except LogConflictError:
                if not remaining:
                    raise
            else:
                if opener.found is not None:
                    log_id, head = opener.found.log_id, opener.found.head
                    await tracing.tell_ends(self.store, task.session_id, log_id, head)
                result: dict[str, Any] = packed(facts)
                return result
        raise AssertionError


class _Opener:
    """One attempt to open a run on the session as it is now."""

    def __init__(self, deps: Opening, agent: Agent, task: OpenRun) -> None:
        self.store = deps.store
        self.private = deps.private
        self.attributes = deps.attributes
        self.agent = agent
        self.task = task
        self.row: SessionRow | None = None
        self.state = SessionState()
        self.log_id = 0
        self.identity = ""
        self.found: SessionRow | None = None
        """The session as it was."""
        self.new: list[NewEvent] = []
        self.messages: list[dict[str, Any]] = []
        self.approval: ApprovalRow | None = None

    @property
    def _given(self) -> Any:
        ref = self.task.input_ref
        return self.task.input if ref is None else {INPUT_REF: ref}

    async def open(self) -> RunFacts:
        self.identity = await self._same_store()
        row = self.row = await self.store.session(self.task.session_id)
        if row is not None:
            self.log_id, self.found = row.log_id, row
            self.state = await self.store.state(row.log_id, row.head)
            if not self._is_open_already():
                refuse_ended(row)
            await self._close_lost_turn(row)
            await self._record_attempts()
        if self._is_open_already():
            # This execution has opened the session already; its answer was lost.
            await self._find_approval()
            self.messages = self.state.messages
            return self._facts(self.state.through, fresh=False)
        # Temporal starts a run again that its last execution has finished, but for saying so.
        retry = self.task.attempt > 1 and await self._has_begun_before()
        incoming = await self._incoming()
        finished = self.state.finished
        if not finished:
            await self._resume(incoming)
        self._normalise()
        added = self._new_messages(incoming, finished=finished and not retry)
        if finished and not added:
            await self._keep_business_state()
            return self._nothing_to_do()
        self._begin(fresh=finished)
        self._add_input(added)
        self.log_id, head = await self.store.open_session(
            self.task.session_id,
            agent=self.agent.name,
            run_id=self.task.run_id,
            head=self.state.through,
            time_ms=self.task.time_ms,
            events=self.new,
        )
        self.state = await self.store.state(self.log_id, head)
        return self._facts(head, fresh=finished)

    async def _same_store(self) -> str:
        """The store's id, when the caller has the same store or none.

        Raises:
            ConfigurationError: the run would be in one store, and its session in another.
        """
        asked, database = self.task.store, self.store.database
        if asked and not await database.is_called(asked):
            msg = (
                f"The run of session {self.task.session_id!r} was not begun: its worker uses "
                f"another store, {database}."
            )
            hint = "Give all clients and workers of a task queue the same store."
            raise ConfigurationError(msg, field="store", hint=hint)
        return await database.identity()

    def _is_open_already(self) -> bool:
        return (self.state.open_turn or {}).get("runId") == self.task.run_id

    async def _has_begun_before(self) -> bool:
        """Whether this run has had a turn, of which nothing is left to do.

        Raises:
            LogConflictError: it had, and the session has gone on with other runs since.
        """
        if self.state.run_id == self.task.run_id:
            return True
        written = [] if self.row is None else await self.store.events(self.task.session_id)
        for event in written:
            if event.type == ev.TURN_START and event.data.get("runId") == self.task.run_id:
                msg = f"The run has ended; the session {self.task.session_id} has gone on since."
                raise LogConflictError(msg)
        return False

    async def _close_lost_turn(self, row: SessionRow) -> None:
        """Close the turn of a run that is gone, where its agent does not continue such turns.

        One that waits for a decision lost nothing: it goes on with the decision.
        """
        turn = self.state.open_turn
        if turn is None or self._is_open_already() or self.state.approval is not None:
            return
        below = await self._asked_below()
        if below is not None and below.decided_at is None:
            return
        on_crash = turn.get("onCrash", CONTINUE)
        if on_crash == CONTINUE:
            return
        await close_turn(self.store, row, crash_ending(on_crash), time_ms=self.task.time_ms)
        row = await self.store.session(self.task.session_id) or row
        self.state = await self.store.state(row.log_id, row.head)

    async def _incoming(self) -> list[dict[str, Any]]:
        delegated = self.task.delegated
        if delegated is not None and delegated.once and self.state.messages:
            return []
        if delegated is not None and delegated.call is not None:
            return input_messages(await delegated_input(self.store, delegated.call))
        return await read_input(self.store, self._given)

    async def _record_attempts(self) -> None:
        """Put how a lost execution's last model call failed into the log, where it belongs."""
        turn = self.state.open_turn
        if turn is None or turn.get("runId") == self.task.run_id:
            return
        effect = await self.store.effect(EffectId(self.log_id, self.state.through, MODEL_CALL))
        if effect is None or effect.done:
            return
        attempts = failed_attempts(effect, lost=True)
        if not attempts:
            return
        events = attempt_events(self.state.turn, self.state.step + 1, attempts)
        head, time_ms = self.state.through, self.task.time_ms
        batch = Batch(self.task.session_id, self.log_id, None, head, time_ms, events)
        self.state = await self.store.state(self.log_id, await self.store.append(batch))

    async def _resume(self, incoming: list[dict[str, Any]]) -> None:
        """Check what an unfinished run needs before anything is written."""
        await self._find_approval()
        asked = self.approval or await self._asked_below()
        waits = asked is not None and asked.decided_at is None
        if asked and waits and self._new_messages(incoming, finished=False):
            msg = (
                f"Session {self.task.session_id!r} waits for approval {asked.id}; "
                "resolve it before you send new input."
            )
            raise SessionAwaitingApprovalError(
                msg, session_id=self.task.session_id, approval_id=asked.id
            )
        missing = sorted({plan.tool for plan in self._plans() if self._is_missing(plan)})
        if missing:
            names = ", ".join(missing)
            msg = f"Agent {self.agent.name!r} has no tool {names}, which a pending call needs."
            raise ResumeToolMissingError(msg, tools=missing)
        self._check_drift()

    def _is_missing(self, plan: CallPlan) -> bool:
        decision = self.state.decided.get(plan.index)
        rejected = decision is not None and not decision["approved"]
        return plan.tool not in self.agent.tools and not rejected

    async def _find_approval(self) -> None:
        if self.state.approval is not None:
            self.approval = await self.store.approval(self.state.approval["id"])

    async def _asked_below(self) -> ApprovalRow | None:
        """What a sub-agent of the run waited for when the run was cut off."""
        row = self.row
        if row is None or row.status != ev.AWAITING_APPROVAL or row.approval_id is None:
            return None
        return await self.store.approval(row.approval_id)

    def _check_drift(self) -> None:
        drift = drift_of(self.state.fields.get("agentFingerprint"), self.agent.fingerprint())
        if drift is None or self.agent.on_agent_drift == "ignore":
            return
        text = describe_drift(drift)
        if self.agent.on_agent_drift == "error":
            msg = f"Agent {self.agent.name!r} is not the one that started the run: {text}."
            raise AgentDriftError(msg)
        _log.warning("Session %s resumes with another agent: %s", self.task.session_id, text)
        self.new.append(NewEvent(ev.AGENT_DRIFT, drift))

    def _normalise(self) -> None:
        """Put results that came from outside behind their calls, in call order."""
        split = split_pending_turn(self.state.messages)
        self.messages = split.messages + split.queued_input
        if self.messages != self.state.messages:
            keep = 0
            while self.messages[keep] == self.state.messages[keep]:
                keep += 1
            self.new.append(
                NewEvent(ev.TRANSCRIPT_DELTA, {"keep": keep, "append": self.messages[keep:]})
            )

    def _new_messages(
        self, incoming: list[dict[str, Any]], *, finished: bool
    ) -> list[dict[str, Any]]:
        return new_session_messages(self.messages or self.state.messages, incoming, finished)

    async def _keep_business_state(self) -> None:
        """It was given for a session that has nothing else to do: it is kept all the same."""
        given = self.task.business_state
        fields = self.state.fields
        if not self.task.has_business_state or not self.state.messages:
            return
        if "businessState" in fields and ev.dump(fields["businessState"]) == ev.dump(given):
            return
        event = NewEvent(ev.BUSINESS_STATE, {"value": given})
        finish_reason = str((self.state.last_end or {}).get("finishReason") or "stop")
        save = NewSave(1, ev.FINISHED, finish_reason)
        head, time_ms = self.state.through, self.task.time_ms
        batch = Batch(self.task.session_id, self.log_id, None, head, time_ms, [event], [save])
        self.state = await self.store.state(self.log_id, await self.store.append(batch))

    def _nothing_to_do(self) -> RunFacts:
        if not self.state.messages:
            msg = "The input is empty; give a text or at least one message."
            raise ConfigurationError(msg, field="input")
        facts = self._facts(self.state.through, fresh=False)
        facts.nothing_to_do = True
        facts.finish_reason = str((self.state.last_end or {}).get("finishReason") or "")
        said = (message for message in reversed(self.state.messages) if not is_injected(message))
        last = next(said, None)
        if isinstance(last, dict) and last.get("role") == "assistant":
            facts.text = text_of(last)[: ev.INLINE_LIMIT]
        return facts

    def _begin(self, *, fresh: bool) -> None:
        begin: list[NewEvent] = []
        if self.state.open_turn is not None:
            if self.state.open_step:
                place = {"turn": self.state.turn, "step": self.state.step}
                begin.append(NewEvent(ev.STEP_END, place))
            reason = {"kind": "interrupted"}
            begin.append(NewEvent(ev.TURN_END, {"turn": self.state.turn, "reason": reason}))
        turn = self.state.turn + 1
        start: dict[str, Any] = {
            "turn": turn,
            "runId": self.task.run_id,
            "agent": self.agent.name,
            "fresh": fresh,
            "fingerprint": self.agent.fingerprint().to_json(),
        }
        if self.agent.on_crash != CONTINUE:
            start["onCrash"] = self.agent.on_crash
        if self.agent.turn_policy != "reject":
            start["turnPolicy"] = self.agent.turn_policy
        if self.task.claim is not None:
            start["claim"] = self.task.claim
        traced = tracing.run_trace(self.agent.name, self.task, turn)
        if traced:
            start[tracing.TRACE] = traced
        if self.task.metadata:
            start["metadata"] = self.task.metadata
        above = ancestors(self.task.session_id)
        if above:
            start["parentSession"] = above[0]
            start["delegationDepth"] = len(above)
        begin.append(NewEvent(ev.TURN_START, start))
        decision = self.approval.decision if self.approval else None
        if self.approval is not None and decision is not None:
            # It was decided, and the run died before it could act on it.
            data = {"id": self.approval.id, "approved": False, **decision}
            digest = (self.state.approval or {}).get("digest")
            if digest is not None:
                data["digest"] = digest
            begin.append(NewEvent(ev.APPROVAL_DECIDED, data))
            begin.extend(grant_of(self.approval.pending["toolName"], decision))
            self.approval = None
        if self.task.has_business_state:
            begin.append(NewEvent(ev.BUSINESS_STATE, {"value": self.task.business_state}))
        self.new[:0] = begin

    def _add_input(self, added: list[dict[str, Any]]) -> None:
        keep = len(self.messages)
        has_prompt = any(message.get("role") == "system" for message in self.messages)
        if self.agent.instructions and not has_prompt and self._is_first_turn():
            message = {"role": "system", "content": self.agent.instructions}
            if self.messages:
                # A transcript that the session was made with; the instructions come first.
                data = {"keep": 0, "append": [message, *self.messages]}
                self.new.append(NewEvent(ev.TRANSCRIPT_DELTA, data))
            else:
                self.new.append(NewEvent(ev.SYSTEM_MESSAGE, {"message": message}))
            keep += 1
        said = list(takewhile(lambda message: message.get("role") == "user", added))
        self.new.extend(NewEvent(ev.USER_MESSAGE, {"message": message}) for message in said)
        rest = added[len(said) :]
        if rest:
            # Turns from elsewhere: calls among them that have no result are this run's to make.
            data = {"keep": keep + len(said), "append": rest}
            self.new.append(NewEvent(ev.TRANSCRIPT_DELTA, data))

    def _is_first_turn(self) -> bool:
        """Whether the session's conversation, so far, is none that a run of ours had."""
        return not self.messages or (self.state.turn == 0 and self.state.raw is None)

    def _plans(self) -> list[CallPlan]:
        """What is to happen with each call that has no result."""
        pending = split_pending_turn(self.state.messages).pending_tool_calls
        plans = []
        for index, call in enumerate(self.state.calls):
            if pending and call == pending[0]:
                pending = pending[1:]
                plans.append(self._plan(index, call))
        return plans

    def _plan(self, index: int, call: dict[str, Any]) -> CallPlan:
        plan = plan_call(self.agent, index, call, self.state.grants)
        raw = str((call.get("function") or {}).get("arguments") or "")
        plan.arguments = raw if len(raw) <= INLINE_ARGUMENTS else None
        decision = self.state.decided.get(index)
        waiting = self.state.approval
        if decision is not None:
            plan.grant = None
            plan.digest = decision.get("digest")
            reason = decision.get("reason")
            message = decided_result(plan.call_id, plan.tool, decision, reason)
            if message is not None:
                refuse(plan, message)
            elif plan.action == "approve":
                plan.action = "run"
            plan.confirmed = reason is not None
        elif waiting is not None and waiting["index"] == index:
            plan.action, plan.grant = "approve", None
            plan.approval_id = waiting["id"]
            plan.digest = waiting.get("digest")
            plan.expires_ms = self._expiry()
            plan.reason = waiting["pending"].get("kind")
        return plan

    def _expiry(self) -> int | None:
        if self.approval is None or self.agent.approval_ttl is None:
            return None
        return self.approval.created_at + int(self.agent.approval_ttl * 1000)

    def _deadline(self) -> int:
        """When the turn's time is over, in Unix milliseconds; 0: never."""
        seconds = self.agent.limits.max_turn_seconds
        return self.task.time_ms + int(seconds * 1000) if seconds else 0

    def _facts(self, head: int, *, fresh: bool) -> RunFacts:
        agent = self.agent
        usage = self.state.usage
        return RunFacts(
            log_id=self.log_id,
            head=head,
            turn=self.state.turn,
            step=0 if fresh else self.state.step,
            max_steps=self.task.max_steps or agent.max_steps,
            tool_concurrency=agent.tool_concurrency or 0,
            approval_ttl=agent.approval_ttl or 0.0,
            tools={
                name: ToolPolicy(
                    timeout=agent.limits.tool_seconds(tool.timeout),
                    recovery=agent.recovery_of(tool),
                    local=tool.local,
                )
                for name, tool in agent.tools.items()
            },
            on_crash=agent.on_crash,
            model_once=agent.model_recovery == "once",
            max_model_calls=agent.limits.max_model_calls or 0,
            deadline_ms=self._deadline(),
            call_seq=self.state.call_seq,
            calls=self._plans(),
            input_tokens=int(usage.get("inputTokens") or 0),
            output_tokens=int(usage.get("outputTokens") or 0),
            trace=(self.state.open_turn or {}).get(tracing.TRACE, {}).get("span", ""),
            private=self.private,
            turn_hook=agent.on_turn_stopping is not None,
            attributes=list(self.attributes),
            depth=len(ancestors(self.task.session_id)),
            max_depth=self._max_depth(),
            store=self.identity,
        )

    def _max_depth(self) -> int:
        own = self.agent.max_delegation_depth
        above = self.task.delegated.max_depth if self.task.delegated else None
        return own if above is None else min(own, above)
