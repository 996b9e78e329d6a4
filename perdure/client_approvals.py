"""Approvals from the client's side: what waits, and deciding about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from temporalio.client import (
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.wire import SIGNAL_RESOLVE, UPDATE_RESOLVE
from perdure.checkpoint_bridge.errors import (
    ApprovalDecidedError,
    ApprovalNotFoundError,
    SessionConflictError,
)
from perdure.checkpoint_bridge.format.fork import UNSET
from perdure.checkpoint_bridge.log.events import ONCE
from perdure.checkpoint_bridge.log.lineage import ancestors
from perdure.connection import rpc_failure, update
from perdure.run_handle import RunHandle, run_error
from perdure.sizes import bounded

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.checkpoint import WaitingApproval
    from perdure.checkpoint_bridge.tables.approvals import ApprovalRow
    from perdure.results import RunResult
    from perdure.session_runs import SessionRuns

_TRIES = 50
_PAUSE = 0.1
_UPDATE_SECONDS = 10.0
_OF_A_DECISION = ("approved", "note", "by", "result", "scope")


class ClientApprovals:
    """``client.approvals``."""

    def __init__(self, runs: SessionRuns) -> None:
        self._runs = runs

    async def list(self, session_id: str | None = None) -> list[WaitingApproval]:
        """What waits for a decision, oldest first; no worker need be running.

        Of one session, it includes what its sub-agents wait for (``subagent_path`` says which).
        """
        return await self._runs.store.pending_approvals(session_id)

    async def resolve(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        by: str | None = None,
        result: Any = UNSET,
        scope: str | None = None,
    ) -> RunResult:
        """Decide, and wait until the run ends or pauses again.

        Args:
            approval_id: of a pending approval.
            approved: run the call, or give the model a rejection.
            note: for the model and the record; with a rejection, the reason.
            by: who decided.
            result: for a call whose outcome is unknown (``recovery="ask"``): the result that
                somebody verified; the call is not run again.
            scope: ``session`` approves all later calls of the tool in this session too; a fork
                asks again.

        Raises:
            ApprovalNotFoundError: there is no such approval, or its run has ended.
            ApprovalDecidedError: another decision came first; it is the one that counts.
            AgentDriftError: the worker's agent differs, and it refuses that; the approval waits.
            ResumeToolMissingError: the call's tool is gone; the approval waits.
            PerdureError: the run failed after the decision; its session can be resumed.
        """
        decision = _decision(
            approval_id, approved=approved, note=note, by=by, result=result, scope=scope
        )
        handle = await self._send(approval_id, decision)
        outcome = await handle.result(after_approval=approval_id)
        if handle.unanswered and not await self._is_taken(approval_id, decision):
            # It went as a signal, which gives no answer, and another one came first.
            await self._undecided(approval_id)
        return outcome

    async def decide(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        by: str | None = None,
        result: Any = UNSET,
        scope: str | None = None,
    ) -> RunHandle:
        """Decide and return at once. Arguments and errors are those of :meth:`resolve`.

        Returns:
            The run that goes on; for a sub-agent's approval the one at the top.
        """
        decision = _decision(
            approval_id, approved=approved, note=note, by=by, result=result, scope=scope
        )
        return await self._send(approval_id, decision)

    async def _send(self, approval_id: str, decision: dict[str, Any]) -> RunHandle:
        """Bring a decision to the run that waits for it."""
        for _ in range(_TRIES):
            row = await self._undecided(approval_id)
            handle = await self._runs.running(row.session_id) or await self._reopen(row)
            told = await self._tell(row, handle, decision)
            if told is not None:
                return told
            await asyncio.sleep(_PAUSE)
        msg = f"The run that asked for approval {approval_id!r} does not take a decision now."
        raise ApprovalNotFoundError(msg, hint="See what the run does with `perdure show`.")

    async def _tell(
        self, row: ApprovalRow, handle: RunHandle, decision: dict[str, Any]
    ) -> RunHandle | None:
        """As an update or, unanswered, a signal; ``None``: look again, the run has moved."""
        if handle.session_id != row.session_id:
            # The sub-agent's run begins again in a moment; the one above hands it on.
            return await self._leave(handle, decision)
        workflow = self._runs.workflow(row.session_id, handle.execution)
        try:
            async with asyncio.timeout(_UPDATE_SECONDS):
                await update(workflow, UPDATE_RESOLVE, decision)
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            # No worker answers, or many decide at once. A signal waits; the first one counts.
            if not await self._is_taken(row.id, decision):
                await self._undecided(row.id)
                return await self._leave(handle, decision)
            top = await self._top(handle)
            top.unanswered = True
            return top
        except WorkflowUpdateFailedError as error:
            failure = run_error(error.cause)
            # It is in the store, so the run is about to wait for it, or has just ended.
            again = isinstance(failure, (ApprovalNotFoundError, SessionConflictError))
            if not again and not _is_of_an_end(error.cause):
                raise failure from error
            return None
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.RESOURCE_EXHAUSTED):
                raise rpc_failure(error, self._runs.temporal) from error
            return None
        return await self._top(handle)

    async def _leave(self, handle: RunHandle, decision: dict[str, Any]) -> RunHandle | None:
        """Leave it with Temporal, for the run's next worker; ``None``: the run has just ended."""
        try:
            workflow = self._runs.workflow(handle.session_id, handle.execution)
            await workflow.signal(SIGNAL_RESOLVE, decision)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise rpc_failure(error, self._runs.temporal) from error
            return None
        top = await self._top(handle)
        top.unanswered = True
        return top

    async def _is_taken(self, approval_id: str, decision: dict[str, Any]) -> bool:
        """Whether the store has this very decision: it arrived, only the answer did not."""
        row = await self._runs.store.approval(approval_id)
        taken = (row.decision if row else None) or {}
        return all(taken.get(key) == decision.get(key) for key in _OF_A_DECISION)

    async def _undecided(self, approval_id: str) -> ApprovalRow:
        row = await self._runs.store.approval(approval_id)
        if row is None:
            msg = f"There is no approval {approval_id!r}."
            raise ApprovalNotFoundError(msg)
        decision = row.decision
        if decision is None:
            return row
        if "closed" in decision:
            raise ApprovalNotFoundError.of_ended(approval_id, decision["closed"])
        raise ApprovalDecidedError.of(approval_id, decision)

    async def _reopen(self, row: ApprovalRow) -> RunHandle:
        """Start the run that waits again: it was terminated, or its Temporal lost.

        A sub-agent's run is started by the run above it, so the topmost that was cut off is.
        """
        cut_off = row.session_id
        for above in ancestors(row.session_id):
            found = await self._runs.store.session(above)
            if found is None or found.last_end is not None:
                break
            cut_off = above
        handle = await self._runs.running(cut_off)
        return handle or await self._runs.reopen(cut_off)

    async def _top(self, handle: RunHandle) -> RunHandle:
        """Of the runs that wait for a sub-agent's: the topmost, whose result people wait for."""
        for above in ancestors(handle.session_id):
            found = await self._runs.running(above)
            if found is None:
                break
            handle = found
        return handle


def _is_of_an_end(cause: BaseException | None) -> bool:
    """Whether the run ended while it had the update: Temporal says so itself."""
    return isinstance(cause, ApplicationError) and cause.type == "AcceptedUpdateCompletedWorkflow"


def _decision(
    approval_id: str,
    *,
    approved: bool,
    note: str | None,
    by: str | None,
    result: Any,
    scope: str | None,
) -> dict[str, Any]:
    """A decision as the signal and the update take it: absent values have no key."""
    decision: dict[str, Any] = {"id": approval_id, "approved": approved}
    if note is not None:
        decision["note"] = bounded("note", note)
    if by is not None:
        decision["by"] = bounded("by", by)
    if result is not UNSET:
        decision["result"] = bounded("result", result)
    if scope not in (None, ONCE):
        decision["scope"] = scope
    return decision
