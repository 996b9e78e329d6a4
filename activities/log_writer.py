"""The activities that write the log while a run goes on, and when it is cut short."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from temporalio import activity

from perdure.activities import tracing
from perdure.activities.deps import Deps
from perdure.activities.failures import boundary
from perdure.activities.incoming import read_input
from perdure.activities.liveness import kept_alive
from perdure.activities.wire import (
    ACTIVITY_APPEND,
    ACTIVITY_CLOSE,
    ACTIVITY_DECIDE,
    ACTIVITY_INPUT,
    Append,
    CloseResult,
    CloseTask,
    DecisionRecord,
    DecisionTask,
    InputApplied,
    InputTask,
)
from perdure.checkpoint_bridge.closing import Ending, close_turn
from perdure.checkpoint_bridge.errors import (
    AgentDriftError,
    ApprovalNotFoundError,
    ConfigurationError,
    EntryStoreError,
    LogConflictError,
    PerdureError,
    ResumeToolMissingError,
    StorageError,
)
from perdure.checkpoint_bridge.format.fingerprints import describe_drift, drift_of
from perdure.checkpoint_bridge.format.transcript import new_session_messages
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.checkpoint_bridge.tables.event_log import Batch

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.tables.approvals import ApprovalRow

_CLOSE_TRIES = 5

_log = logging.getLogger("perdure.runs")


class LogWriter(Deps):
    """Writes to the log for the loop."""

    @activity.defn(name=ACTIVITY_APPEND)
    @boundary
    async def append_log(self, task: Append) -> int:
        """Append events and saves at a place of the log; returns the log's length after them."""
        batch = Batch(
            task.session_id,
            task.log_id,
            task.run_id,
            task.head,
            task.time_ms,
            task.events,
            task.saves,
        )
        head = await self.store.append(batch)
        if any(event.type == ev.TURN_END for event in task.events):
            await tracing.tell_ends(self.store, task.session_id, task.log_id, task.head)
        return head

    @activity.defn(name=ACTIVITY_INPUT)
    @boundary
    @kept_alive
    async def apply_input(self, task: InputTask) -> InputApplied:
        """Append the messages that the transcript does not hold yet, in order of arrival."""
        state = await self.store.state(task.log_id, task.head)
        fresh = await self._fresh(state, task.messages)
        if not fresh:
            return InputApplied(head=task.head, added=0)
        if not task.apply:
            ref = await self.store.put_input(task.session_id, fresh)
            return InputApplied(head=task.head, added=len(fresh), fresh_ref=ref)
        events = [NewEvent(ev.USER_MESSAGE, {"message": message}) for message in fresh]
        batch = Batch(task.session_id, task.log_id, task.run_id, task.head, task.time_ms, events)
        return InputApplied(head=await self.store.append(batch), added=len(fresh))

    async def _fresh(self, state: SessionState, given: list[Any]) -> list[dict[str, Any]]:
        """The messages of ``given`` that the transcript does not hold yet, in order."""
        stored = list(state.messages)
        fresh = []
        for each in given:
            try:
                incoming = await read_input(self.store, each)
            except ConfigurationError as error:
                # A reference to nothing, from a client of another store: no reason to fail a run.
                _log.warning("Input was dropped: %s", error)
                continue
            new = new_session_messages(stored, incoming, finished=False)
            stored.extend(new)
            fresh.extend(new)
        return fresh

    @activity.defn(name=ACTIVITY_DECIDE)
    @boundary
    @kept_alive
    async def record_decision(self, task: DecisionTask) -> DecisionRecord:
        """Take a decision, unless one was taken before: then say which one counts.

        A decision that cannot be acted upon (another agent, a missing tool) is not taken: the
        approval goes on waiting.
        """
        row = await self.store.approval(task.approval_id)
        if row is None and await self.store.session(task.session_id) is None:
            # Not the decision's fault: it waits for a worker that has the session.
            msg = f"The worker's store does not hold session {task.session_id!r}."
            raise StorageError(msg, hint="Give all workers of a task queue the same store.")
        if row is None or row.log_id != task.log_id:
            msg = f"There is no approval {task.approval_id!r} in session {task.session_id!r}."
            return _not_taken(ApprovalNotFoundError(msg))
        drift = None
        if task.approved and row.decided_at is None:
            try:
                drift = await self._check_agent(task, row)
            except StorageError:
                raise  # it says nothing about the decision, which must not be lost
            except PerdureError as error:
                return _not_taken(error)
        decision: dict[str, Any] = {"approved": task.approved}
        if task.note is not None:
            decision["note"] = task.note
        if task.by is not None:
            decision["by"] = task.by
        if task.has_result:
            decision["result"] = task.result
        if task.scope is not None:
            decision["scope"] = task.scope
        mine, decided = await self.store.decide(task.approval_id, decision)
        taken = (decided.decision if decided else None) or decision
        if "closed" in taken:
            return _not_taken(ApprovalNotFoundError.of_ended(task.approval_id, taken["closed"]))
        # The same decision again is this activity's own second attempt.
        return DecisionRecord(
            mine=mine or taken == decision,
            approved=bool(taken.get("approved")),
            note=taken.get("note"),
            by=taken.get("by"),
            drift=drift,
            result=taken.get("result"),
            has_result="result" in taken,
            scope=taken.get("scope"),
        )

    async def _check_agent(self, task: DecisionTask, row: ApprovalRow) -> dict[str, Any] | None:
        agent = self.agent(task.agent)
        tool = row.pending["toolName"]
        if tool not in agent.tools:
            msg = f"Agent {agent.name!r} has no tool {tool!r} any more; the approval still waits."
            raise ResumeToolMissingError(msg, tools=[tool])
        session = await self.store.session(task.session_id)
        head = session.head if session else row.seq + 1
        saved = (await self.store.state(task.log_id, head)).fields.get("agentFingerprint")
        drift = drift_of(saved, agent.fingerprint())
        if drift is None or agent.on_agent_drift == "ignore":
            return None
        text = describe_drift(drift)
        if agent.on_agent_drift == "error":
            msg = f"Agent {agent.name!r} is not the one that asked: {text}. The approval waits."
            raise AgentDriftError(msg)
        _log.warning("Session %s goes on with another agent: %s", task.session_id, text)
        return drift

    @activity.defn(name=ACTIVITY_CLOSE)
    @boundary
    @kept_alive
    async def close_run(self, task: CloseTask) -> CloseResult:
        """Close what the log has open, by what the log and the ledger say.

        See :func:`.closing.close_turn`.
        """
        for remaining in reversed(range(_CLOSE_TRIES)):
            try:
                return await self._close(task)
            except LogConflictError:
                if not remaining:
                    raise
            except EntryStoreError as error:
                # The log is closed all the same, and the turn ends as it was to end.
                _log.warning("The end of session %s is in the log only: %s", task.session_id, error)
        raise AssertionError

    async def _close(self, task: CloseTask) -> CloseResult:
        row = await self.store.session(task.session_id)
        if row is None or row.writer != task.run_id:
            return CloseResult(finished=False)
        state = await self.store.state(row.log_id, row.head)
        turn = state.open_turn
        if turn is None or turn["runId"] != task.run_id:
            end = state.last_end or {}
            # An answer that the store of entries refused is in the log, and fails its run.
            refused = (task.error or {}).get("code") == EntryStoreError.code
            return CloseResult(
                finished=state.finished and not refused, finish_reason=end.get("finishReason", "")
            )
        reason: dict[str, Any] = {"kind": task.reason}
        if task.error is not None:
            reason["error"] = task.error
        await close_turn(
            self.store,
            row,
            Ending(reason, answer_calls=task.answer_calls, lost=task.lost),
            time_ms=task.time_ms,
            run_id=task.run_id,
            fresh=lambda state: self._fresh(state, task.queued),
        )
        await tracing.tell_ends(self.store, task.session_id, row.log_id, row.head)
        return CloseResult(finished=False)


def _not_taken(error: PerdureError) -> DecisionRecord:
    """A decision that changes nothing; who sent it is told why."""
    return DecisionRecord(mine=False, approved=False, error=error.to_wire())
