"""The agent loop: ask the model, run its calls, ask people, until there is an answer."""

from __future__ import annotations

import asyncio
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from temporalio import workflow

from perdure.activities.wire import (
    ACTIVITY_INPUT,
    INLINE_ARGUMENTS,
    CallPlan,
    Carry,
    Content,
    InputApplied,
    InputTask,
    ModelTask,
    ModelTurn,
    ToolOutcome,
    ToolPolicy,
    ToolTask,
)
from perdure.checkpoint_bridge.format.tool_errors import UNKNOWN_OUTCOME
from perdure.checkpoint_bridge.format.tool_results import decided_result
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.answers import (
    Entry,
    call_events,
    result_entry,
    step_end,
    turn_end,
)
from perdure.workflows import model_dispatch, options
from perdure.workflows.approvals import Approvals, decision_of
from perdure.workflows.attributes import Attributes
from perdure.workflows.children import Children
from perdure.workflows.details import details
from perdure.workflows.options import (
    HEARTBEAT,
    STORE_RETRY,
    STORE_TIMEOUT,
)
from perdure.workflows.session_log import SessionLog, now_ms
from perdure.workflows.tool_dispatch import run_call
from perdure.workflows.turn_ends import count_model_call, within_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.activities.wire import RunRequest

MAX_STEPS = "max-steps"
RUNNING = "running"
_ID_LENGTH = 60


class RollOverError(Exception):
    """The history is long enough: the run goes on in a new execution."""


class RunLoop:
    """One run, from where its session is to its end."""

    def __init__(self, asked: RunRequest, run_id: str, carry: Carry) -> None:
        self.agent = asked.agent
        self.facts = carry.facts
        self.log = SessionLog(asked.session_id, carry.facts.log_id, run_id, carry.facts.head)
        self.attributes = Attributes(asked.agent, asked.session_id, carry.facts)
        self.children = Children(asked, carry.facts, self.log, self.show)
        self.approvals = Approvals(carry.decided, self.show, self.children.upward)
        self.queue: list[Any] = carry.queue
        self.inputs = carry.inputs
        self.text = carry.text
        self.problem = ""
        """What was wrong with the last decision that was sent, for whoever sent it."""
        self.finish_reason = carry.finish_reason
        self.closing = False
        """It was cancelled or has failed: nothing waits any more."""
        self._tasks: list[asyncio.Task[Any]] = []
        """In order: a set has another one in each process, and so would a cancel's commands."""

    def carry(self) -> Carry:
        """What the next execution needs to know."""
        self.facts.head = self.log.head
        return Carry(
            facts=self.facts,
            queue=self.queue,
            inputs=self.inputs,
            decided=self.approvals.decided,
            text=self.text,
            finish_reason=self.finish_reason,
        )

    async def run(self) -> None:
        """Go on until the run has finished; ``finish_reason`` then says how.

        Raises:
            RollOverError: the history is long enough; :meth:`carry` says how to go on.
            ActivityError: the run cannot go on.
            TurnEndError: the turn is not to go on.
        """
        await within_time(self, self._steps())

    async def _steps(self) -> None:
        while not self.finish_reason:
            self.show()
            if self.facts.calls:
                await self._run_batch()
            if self.facts.step >= self.facts.max_steps:
                await self._run_out()
                return
            await self._apply_queue()
            self._roll_over_if_long()
            await self._ask_model()

    def show(self) -> None:
        """Tell the Temporal UI what the run is doing, and its lists when that has changed."""
        tools = [each.tool_name for each in self.children.waiting.values()]
        if self.approvals.waiting is not None:
            tools.insert(0, self.approvals.waiting.tool)
        status = ev.FINISHED if self.finish_reason else ev.AWAITING_APPROVAL if tools else RUNNING
        self.attributes.tell(status, tools)
        workflow.set_current_details(
            details(
                workflow.info().workflow_id,
                self.facts,
                self.approvals.waiting,
                self.children.waiting.values(),
                problem=self.problem,
                finish_reason=self.finish_reason,
                text=self.text,
            )
        )

    @property
    def waiting_id(self) -> str | None:
        """The approval that the run waits for, its own or a sub-agent's."""
        return self.approvals.waiting_id or next(iter(self.children.waiting), None)

    async def cancel_calls(self) -> list[asyncio.Task[Any]]:
        """Tell calls in flight to stop; returns their tasks."""
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    # -- the model ---------------------------------------------------------------------------

    async def _ask_model(self) -> None:
        step = self.facts.step + 1
        count_model_call(self.facts)
        task = ModelTask(
            session_id=self.log.session_id,
            log_id=self.log.log_id,
            run_id=self.log.run_id,
            agent=self.agent,
            through_seq=self.log.head,
            step=step,
            turn=self.facts.turn,
            time_ms=now_ms(),
            trace=self.facts.trace,
        )
        asking = asyncio.create_task(model_dispatch.ask(task, self.facts))
        self._tasks = [asking]
        # A cancel lets it end: it may be in the middle of a local call.
        turn = await asyncio.shield(asking)
        # The log has the answer, and what it means, already.
        self.log.head = turn.head
        self.facts.step = step
        usage = turn.usage or {}
        self.facts.input_tokens += int(usage.get("inputTokens") or 0)
        self.facts.output_tokens += int(usage.get("outputTokens") or 0)
        self.text = text_of(turn.content)
        self.facts.cut |= turn.finish_reason == ev.LENGTH
        if turn.calls or turn.results:
            self._fill_calls(turn)
            self.facts.calls, self.facts.call_seq = turn.calls, turn.call_seq
        else:
            self._finish(turn.finish_reason)

    def _fill_calls(self, turn: ModelTurn) -> None:
        """Hand each call what the answer says of it; large arguments stay in the log."""
        if turn.content.message is None:
            return
        for plan in turn.calls:
            call = turn.content.message["toolCalls"][plan.index]
            function = call.get("function") or {}
            plan.call_id = plan.call_id or str(call.get("id"))
            plan.tool = plan.tool or str(function.get("name"))
            raw = str(function.get("arguments") or "")
            if len(raw) <= INLINE_ARGUMENTS:
                plan.arguments = raw

    async def _run_out(self) -> None:
        """End the run without an answer: it had as many steps as it may have."""
        entry = Entry([turn_end(self.facts.turn, MAX_STEPS, cut=self.facts.cut)])
        entry.save(ev.FINISHED, MAX_STEPS)
        await self.log.append(entry.events, entry.saves)
        self._finish(MAX_STEPS)

    def _finish(self, finish_reason: str) -> None:
        self.finish_reason = finish_reason
        self.show()

    # -- calls -------------------------------------------------------------------------------

    async def _run_batch(self) -> None:
        """Run the turn's calls that have no result yet, pausing at each one that is gated.

        Calls before a gated one run and are recorded first; those after it wait for the decision.
        """
        while self.facts.calls:
            free = list(takewhile(_is_free, self.facts.calls))
            if free:
                await self._announce(free)
                await self._run_segment(free)
            else:
                await self._ask_person(self.facts.calls[0])

    async def _announce(self, plans: Sequence[CallPlan]) -> None:
        """Say in the log which calls are about to run, if it does not say so yet."""
        new = [plan for plan in plans if plan.action == "run" and not plan.announced]
        if not new:
            return
        seq = self.facts.call_seq
        await self.log.append(
            [
                event
                for plan in new
                for event in call_events(seq, plan.index, plan.call_id, plan.tool, plan.grant)
            ]
        )
        for plan in new:
            plan.announced = True

    async def _run_segment(self, plans: list[CallPlan]) -> None:
        """Run calls side by side; record their results in call order as they become known."""
        outcomes: dict[int, ToolOutcome] = {}
        limit = asyncio.Semaphore(self.facts.tool_concurrency or len(plans))
        failure: list[BaseException] = []
        names = _activity_ids(self.facts.step, plans)
        alone = len(plans) == 1

        async def run(at: int, plan: CallPlan) -> None:
            try:
                async with limit:
                    outcomes[at] = await self._outcome(plan, names[at], alone=alone)
            except BaseException as error:  # noqa: BLE001 - handed to the loop, which raises it
                failure.append(error)

        self._tasks = [asyncio.create_task(run(at, plan)) for at, plan in enumerate(plans)]
        done = 0
        while done < len(plans):
            at = done
            await workflow.wait_condition(
                lambda at=at: at in outcomes or bool(failure) or self.children.must_save  # type: ignore[misc]
            )
            ready = []
            while done in outcomes and not outcomes[done].uncertain:
                ready.append((plans[done], outcomes.pop(done)))
                done += 1
            if ready:
                await self._record(ready)
            elif failure:
                raise failure[0]
            elif self.children.must_save:
                await self.children.save_pause()
            else:
                # The others finish first: their outcomes are safe while a person thinks.
                await workflow.wait(self._tasks)
                outcomes[done] = await self._settle(plans[done], names[done], alone=alone)

    async def _settle(self, plan: CallPlan, activity_id: str, *, alone: bool) -> ToolOutcome:
        """Ask a person about a call that may have run, and do what they say."""
        plan.reason = UNKNOWN_OUTCOME
        await self._decide(plan)
        return await self._outcome(plan, f"{activity_id}-again", alone=alone)

    async def _outcome(self, plan: CallPlan, activity_id: str, *, alone: bool) -> ToolOutcome:
        if plan.result is not None:
            return ToolOutcome(content=plan.result)
        if plan.child is not None:
            return await self.children.run(plan)
        policy = self.facts.tools.get(plan.tool) or ToolPolicy(timeout=1.0)
        task = ToolTask(
            session_id=self.log.session_id,
            log_id=self.log.log_id,
            run_id=self.log.run_id,
            agent=self.agent,
            seq=self.facts.call_seq,
            index=plan.index,
            call_id=plan.call_id,
            tool=plan.tool,
            arguments=plan.arguments,
            timeout=policy.timeout,
            time_ms=now_ms(),
            head=self.log.head if alone else None,
            turn=self.facts.turn,
            step=self.facts.step,
            ends_step=len(self.facts.calls) == 1,
            recovery=policy.recovery,
            confirmed=plan.confirmed,
            digest=plan.digest if plan.reason is None else None,
            trace=self.facts.trace,
        )
        return await run_call(plan, task, policy, activity_id, on_crash=self.facts.on_crash)

    async def _record(self, ready: list[tuple[CallPlan, ToolOutcome]]) -> None:
        """Put results into the log, unless the only one of its segment did so itself."""
        self.facts.calls = self.facts.calls[len(ready) :]
        head = ready[0][1].head
        if head is not None:
            self.log.head = head
            return
        seq = self.facts.call_seq
        last = None if self.facts.calls else step_end(self.facts.turn, self.facts.step)
        entry = result_entry(
            [
                (seq, plan.index, outcome.content.message, outcome.content.ref)
                for plan, outcome in ready
            ],
            last,
        )
        await self.log.append(entry.events, entry.saves)
        self.children.saved_results()

    # -- people ------------------------------------------------------------------------------

    async def _ask_person(self, plan: CallPlan) -> None:
        """Let a person decide about a gated call, and do what they say."""
        await self._decide(plan)
        await self._run_segment([plan])

    async def _decide(self, plan: CallPlan) -> None:
        record = await self.approvals.ask(plan, self.facts, self.log, self.agent, self._is_long)
        if record is None:
            raise RollOverError
        message = decided_result(plan.call_id, plan.tool, decision_of(record), plan.reason)
        if message is None:
            plan.action = "run"
            plan.confirmed = plan.reason is not None
            if record.scope == ev.SESSION:
                # The grant is the last event that came with the decision.
                self._let_run(plan.tool, self.log.head)
            await self._announce([plan])
        else:
            plan.action = "refuse"
            plan.result = Content(message=message)

    def _let_run(self, tool: str, grant: int) -> None:
        """Ask about no other call of a tool in this turn: it was approved for the session."""
        for plan in self.facts.calls:
            if plan.tool == tool and plan.action == "approve" and plan.reason is None:
                plan.action, plan.grant = "run", grant

    # -- input that arrives meanwhile --------------------------------------------------------

    async def _apply_queue(self) -> None:
        """Put what arrived into the transcript, at the only place where it is valid: here."""
        while self.queue:
            taken = list(self.queue)
            applied = await self._input(taken, apply=True)
            self.log.head = applied.head
            del self.queue[: len(taken)]

    async def leftover(self) -> str | None:
        """Where the messages are that arrived too late for this run: they start the next one."""
        if not self.queue:
            return None
        return (await self._input(list(self.queue), apply=False)).fresh_ref

    async def _input(self, messages: list[Any], *, apply: bool) -> InputApplied:
        applied: InputApplied = await workflow.execute_activity(
            ACTIVITY_INPUT,
            InputTask(
                session_id=self.log.session_id,
                log_id=self.log.log_id,
                run_id=self.log.run_id,
                head=self.log.head,
                time_ms=now_ms(),
                messages=messages,
                apply=apply,
            ),
            result_type=InputApplied,
            start_to_close_timeout=STORE_TIMEOUT,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=STORE_RETRY,
        )
        return applied

    # -- long runs ---------------------------------------------------------------------------

    def _is_long(self) -> bool:
        info = workflow.info()
        length = info.get_current_history_length()
        return info.is_continue_as_new_suggested() or length > options.EVENTS_PER_EXECUTION

    def _roll_over_if_long(self) -> None:
        if self._is_long():
            raise RollOverError


def text_of(content: Content) -> str:
    """The text of an answer, or its preview when the answer is in the store."""
    if content.message is None:
        return content.preview or ""
    text = content.message.get("content")
    return text if isinstance(text, str) else ""


def _is_free(plan: CallPlan) -> bool:
    return plan.action != "approve"


def _activity_ids(step: int, plans: list[CallPlan]) -> list[str]:
    """Ids that people can read in the UI; unique even where a model repeats its own."""
    ids: list[str] = []
    for plan in plans:
        name = f"tool-{step}-{plan.call_id[:_ID_LENGTH]}"
        ids.append(name if name not in ids else f"{name}-{plan.index}")
    return ids
