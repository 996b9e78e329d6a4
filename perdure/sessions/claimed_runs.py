"""Runs that were started under an idempotency key: recognised, and answered for again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from perdure.checkpoint_bridge.errors import (
    PerdureError,
    StorageError,
    TemporalUnavailableError,
    error_from_wire,
)
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint
from perdure.checkpoint_bridge.format.stable_json import copy_json
from perdure.checkpoint_bridge.log.events import ABORTED, AWAITING_APPROVAL, FINISHED, IN_PROGRESS
from perdure.checkpoint_bridge.turn_log import outcome_of, turn_starts
from perdure.claims import NOT_ADMITTED
from perdure.results import result_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.client import Client
    from perdure.results import RunResult
    from perdure.run_handle import RunHandle

T = TypeVar("T")


class ClaimedRuns:
    """The runs of one session by the claims that they carry."""

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self._store = client.store
        self._session_id = session_id

    def finder(
        self, claim: str, then: Callable[[RunHandle, int | None], Awaitable[T]]
    ) -> Callable[[], Awaitable[T | None]]:
        """What gives a claim's response from what its run has left behind."""

        async def find() -> T | None:
            row = await self._store.session(self._session_id)
            if row is not None:
                turns = await self._store.database.read(turn_starts, row.log_id, claim=claim)
                if turns:
                    run = self._client.handle(self._session_id, turns[0].data["runId"])
                    return await then(run, turns[0].sequence)
            # A run that no worker has taken yet is in Temporal alone.
            run_or_none = await self._client.claimed(self._session_id, claim)
            return None if run_or_none is None else await then(run_or_none, None)

        return find

    async def opened(self, handle: RunHandle, sequence: int | None = None) -> int:
        """The sequence of the turn that the run has started."""
        return await handle.opened() if sequence is None else sequence

    async def settle(self, handle: RunHandle, sequence: int | None = None) -> dict[str, Any]:
        """Wait for a run's end or pause; gives what :meth:`result` needs to tell it again."""
        try:
            result = await handle.result()
        except (*NOT_ADMITTED, StorageError, TemporalUnavailableError):
            raise
        except PerdureError as error:
            return {"error": error.to_wire()}
        row = await self._store.known_session(self._session_id)
        if sequence is None:
            sequence = await handle.opened()
        outcome = await self._store.database.read(outcome_of, row.log_id, sequence)
        return {
            "runId": handle.run_id,
            "through": row.head if outcome.event is None else outcome.event.sequence,
            "finishReason": result.finish_reason,
            "approvalId": result.approval_id,
        }

    async def result(self, response: dict[str, Any]) -> RunResult:
        """The result that :meth:`settle` has noted, as it was then.

        Raises:
            PerdureError: it was a failure.
        """
        if "error" in response:
            raise error_from_wire(response["error"])
        row = await self._store.known_session(self._session_id)
        reason = response["finishReason"]
        status = {AWAITING_APPROVAL: AWAITING_APPROVAL, ABORTED: IN_PROGRESS}.get(reason, FINISHED)
        state = await self._store.state(row.log_id, response["through"])
        record = state.checkpoint(
            self._session_id,
            status=status,
            finish_reason=reason,
            approval_id=response["approvalId"],
        )
        return result_of(Checkpoint.from_json(copy_json(record)), response["runId"])
