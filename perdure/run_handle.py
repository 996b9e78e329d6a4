"""A started run, from the outside."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowFailureError, WorkflowQueryFailedError
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    TerminatedError,
    TimeoutError as TemporalTimeoutError,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.wire import OPENING, QUERY_STATE
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    PerdureError,
    RunFailedError,
    error_from_wire,
)
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint
from perdure.checkpoint_bridge.log.events import ABORTED, AWAITING_APPROVAL, IN_PROGRESS
from perdure.checkpoint_bridge.turn_log import newest_turn, turn_starts
from perdure.connection import rpc_failure
from perdure.results import RunResult, result_of

if TYPE_CHECKING:
    from temporalio.client import Client as TemporalClient, WorkflowHandle

    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.approvals import ApprovalRow

_FIRST_LOOK = 0.02
_LOOK_EVERY = 0.5
_STORE_AFTER = 5.0
_AWAY = frozenset(
    {
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.UNKNOWN,
    }
)
"""What Temporal's client reports, after some ten seconds, when the server is not there."""
_ANSWER_SECONDS = 2.0
"""How long a pause waits for the run to confirm it."""
_PATIENCE = 60.0
_WAS_THERE = 20.0
"""A wait that failed after more seconds than this had reached a server first."""


class RunHandle:
    """A run of a session: wait for it, ask what it does, cancel it."""

    def __init__(
        self,
        temporal: TemporalClient,
        store: SqlStore,
        session_id: str,
        run_id: str,
        workflow_id: str,
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        """The first execution's run id; it stays the same when the run continues as new."""
        self.execution = run_id
        """The newest execution that is known."""
        self.unanswered = False
        """Whether what was sent to it waits in Temporal, because no worker answered."""
        self._temporal = temporal
        self._store = store
        self._workflow: WorkflowHandle[Any, Any] = temporal.get_workflow_handle(
            workflow_id, first_execution_run_id=run_id
        )
        self._cancelled = False

    def __repr__(self) -> str:
        return f"RunHandle(session_id={self.session_id!r}, run_id={self.run_id!r})"

    async def result(self, *, after_approval: str | None = None) -> RunResult:
        """Wait until the run ends or pauses for an approval.

        A Temporal that is restarted meanwhile, within a minute, is waited for. At a pause the run
        is asked whether it still waits; where no worker answers, that takes two seconds.

        Args:
            after_approval: an approval that was decided just now; a pause for it is over.

        Returns:
            The result; ``finish_reason`` is ``awaiting-approval`` at a pause and ``aborted``
            when the run was cancelled, terminated or timed out.

        Raises:
            ConfigurationError: the worker keeps the session in another store.
            TemporalUnavailableError: Temporal has been away for a minute; the run may go on.
            PerdureError: the run failed; its session can be resumed.
        """
        end = asyncio.ensure_future(self._end())
        wait = _FIRST_LOOK
        look_at_store = asyncio.get_running_loop().time() + _STORE_AFTER
        try:
            while not end.done():
                if asyncio.get_running_loop().time() > look_at_store:
                    await self._check_store()
                    look_at_store = float("inf")
                paused = None if self._cancelled else await self._paused(after_approval)
                if paused is not None:
                    return paused
                await asyncio.wait({end}, timeout=wait)
                wait = min(wait * 1.5, _LOOK_EVERY)
            return await self._ended(end)
        finally:
            end.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await end

    async def opened(self) -> int:
        """Wait until the log has the start of the run's turn; returns its sequence.

        Raises:
            PerdureError: the run failed before it began a turn.
        """
        end = asyncio.ensure_future(self._end())
        wait = _FIRST_LOOK
        try:
            while True:
                over = end.done()
                sequence = await self._turn(look_back=over)
                if sequence is not None:
                    return sequence
                if over:
                    await self._ended(end)
                    msg = f"The run of session {self.session_id!r} ended before it began a turn."
                    raise RunFailedError(msg)
                await asyncio.wait({end}, timeout=wait)
                wait = min(wait * 1.5, _LOOK_EVERY)
        finally:
            end.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await end

    async def _end(self) -> Any:
        """Wait for the workflow's end, past a Temporal that is away for less than a minute."""
        now = asyncio.get_running_loop().time
        give_up: float | None = None
        while True:
            asked = now()
            try:
                return await self._workflow.result()
            except RPCError as error:
                if error.status not in _AWAY:
                    raise
                if give_up is None or now() - asked > _WAS_THERE:
                    give_up = now() + _PATIENCE
                if now() > give_up:
                    raise
                await asyncio.sleep(_LOOK_EVERY)

    async def _turn(self, *, look_back: bool) -> int | None:
        """The sequence of the run's newest turn: the log's newest, or with a look at all of it."""
        row = await self._store.session(self.session_id)
        if row is None:
            return None
        database = self._store.database
        newest = await database.read(newest_turn, row.log_id)
        if newest is not None and newest.data.get("runId") == self.run_id:
            return newest.sequence
        if not look_back:
            return None
        turns = await database.read(turn_starts, row.log_id, run_id=self.run_id)
        return turns[0].sequence if turns else None

    async def cancel(self) -> None:
        """Ask the run to stop. Its session keeps what is finished and can be continued.

        A run that has ended already is left as it is. :meth:`result` then waits for the end:
        a pause that is about to be closed is none.
        """
        self._cancelled = True
        try:
            await self._workflow.cancel()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise rpc_failure(error, self._temporal) from error

    async def state(self) -> dict[str, Any]:
        """What the run is doing and waits for (the workflow's ``state`` query)."""
        try:
            state: dict[str, Any] = await self._workflow.query(QUERY_STATE)
        except RPCError as error:
            raise rpc_failure(error, self._temporal) from error
        return state

    async def _paused(self, after_approval: str | None) -> RunResult | None:
        row = await self._store.session(self.session_id)
        if row is None or row.writer != self.run_id or row.status != AWAITING_APPROVAL:
            return None
        if row.approval_id is None or row.approval_id == after_approval:
            return None
        approval = await self._store.approval(row.approval_id)
        if approval is None or approval.decided_at is not None:
            return None
        checkpoint = await self._store.load(self.session_id)
        if checkpoint is None or checkpoint.approval_id != row.approval_id:
            return None
        if not await self._still_waits(approval):
            return None
        return result_of(checkpoint, self.run_id)

    async def _still_waits(self, approval: ApprovalRow) -> bool:
        """Whether its run has no decision yet: the store learns of one a moment after the run.

        So a decision that Temporal took before somebody asked for the result always counts.
        A run that no worker serves is as the store says.
        """
        asked = [self._workflow]
        if approval.session_id != self.session_id:
            prefix = self._workflow.id.removesuffix(self.session_id)
            asked.append(self._temporal.get_workflow_handle(prefix + approval.session_id))
        for workflow in asked:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    state: dict[str, Any] = await workflow.query(QUERY_STATE)
            except (RPCError, WorkflowQueryFailedError, TimeoutError):
                continue
            shown = {each["id"]: each for each in state.get("pending_approvals", ())}
            if approval.id not in shown or shown[approval.id].get("deciding"):
                return False
        return True

    async def _ended(self, end: asyncio.Future[Any]) -> RunResult:
        try:
            await end
        except WorkflowFailureError as error:
            return await self._failed(error.cause)
        except RPCError as error:
            raise rpc_failure(error, self._temporal) from error
        return await self._from_store()

    async def _failed(self, cause: BaseException | None) -> RunResult:
        if isinstance(cause, (CancelledError, TerminatedError, TemporalTimeoutError)):
            return await self._from_store(ABORTED)
        raise run_error(cause) from cause

    async def _check_store(self) -> None:
        """Notice a worker that uses another store: waiting for it here would never end."""
        if await self._store.session(self.session_id) is not None:
            return
        try:
            async with asyncio.timeout(_STORE_AFTER):
                state = await self.state()
        except (PerdureError, TimeoutError):
            return
        if state["status"] != OPENING and await self._store.session(self.session_id) is None:
            raise self._other_store()

    def _other_store(self) -> ConfigurationError:
        msg = (
            f"The run of session {self.session_id!r} is not in {self._store.database}: "
            "its worker uses another store, where its record is."
        )
        hint = "Give client and workers the same store, or read the session in the worker's."
        return ConfigurationError(msg, field="store", hint=hint)

    async def _goes_on_here(self) -> bool:
        """Whether the store, which is a copy then, does not know that the run has ended."""
        row = await self._store.session(self.session_id)
        if row is None or row.writer != self.run_id:
            return False
        return row.status in (IN_PROGRESS, AWAITING_APPROVAL)

    async def _from_store(self, finish_reason: str | None = None) -> RunResult:
        checkpoint = await self._store.load(self.session_id)
        if finish_reason is None and (checkpoint is None or await self._goes_on_here()):
            raise self._other_store()
        if checkpoint is None:
            checkpoint = Checkpoint.from_json({"sessionId": self.session_id})
        return result_of(checkpoint, self.run_id, finish_reason)


def run_error(cause: BaseException | None) -> PerdureError:
    """The error that a run, an activity or an update failed with, as it was raised there."""
    if isinstance(cause, ApplicationError):
        wire = cause.details[0] if cause.details else None
        if isinstance(wire, dict) and "code" in wire:
            return error_from_wire(wire)
        return RunFailedError(cause.message)
    return RunFailedError(str(cause) or "The run failed.")
