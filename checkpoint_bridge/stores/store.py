"""The documented store: three methods, and ``history`` for stores that keep one."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from perdure.checkpoint_bridge.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    SessionConflictError,
    SessionNotFoundError,
)
from perdure.checkpoint_bridge.format._record import plain
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry
from perdure.checkpoint_bridge.format.fork import ForkPatch, apply_patch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.checkpoint_bridge.stores.stored import StoredApproval

__all__ = [
    "DEFAULT_HISTORY_LIMIT",
    "ApprovalStore",
    "BulkStore",
    "CheckpointStore",
    "DatedStore",
    "HistoryStore",
    "ListingStore",
    "check_history_limit",
    "fork_session",
    "get_checkpoint_history",
    "id_taken",
    "no_such_step",
    "run_goes_on",
    "session_not_found",
]

DEFAULT_HISTORY_LIMIT = 50


class CheckpointStore(Protocol):
    """What anyone may implement to keep checkpoints (format page, *Checkpoint*)."""

    async def save(self, session_id: str, checkpoint: Checkpoint) -> None:
        """Replace the session's checkpoint."""

    async def load(self, session_id: str) -> Checkpoint | None:
        """The session's checkpoint, or ``None``."""

    async def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        """Remove the checkpoint, and the history unless it is to be kept."""


@runtime_checkable
class HistoryStore(Protocol):
    """A store that keeps the newest saves too."""

    async def history(self, session_id: str, limit: int | None = None) -> list[HistoryEntry]:
        """The saves that are kept, newest first; ``[]`` for an unknown session."""


@runtime_checkable
class DatedStore(Protocol):
    """A store that keeps a save's own time, so that a copy of a history is the same history."""

    async def save_at(self, session_id: str, checkpoint: Checkpoint, saved_at_ms: int) -> None:
        """As ``save``, at a time in Unix milliseconds."""


@runtime_checkable
class BulkStore(Protocol):
    """A store that takes many saves of a session in one go, as fast as one."""

    async def save_all(self, session_id: str, saves: Sequence[tuple[Checkpoint, int]]) -> None:
        """As ``save_at`` for each pair of a checkpoint and a time, oldest first."""


@runtime_checkable
class ListingStore(Protocol):
    """A store that knows what it holds."""

    async def session_ids(self) -> list[str]:
        """Ids of the sessions that have a checkpoint, sorted."""


@runtime_checkable
class ApprovalStore(Protocol):
    """A store that keeps the documented approval records."""

    async def save_approval_at(self, approval: StoredApproval, time_ms: int) -> None:
        """Write what waits for a decision."""

    async def claim_approval_at(self, approval_id: str, time_ms: int) -> StoredApproval | None:
        """Take it in order to decide it: one caller gets it, the others ``None``."""

    async def pending_approvals(self) -> list[StoredApproval]:
        """What waits for a decision, oldest first."""


@runtime_checkable
class CreatingStore(Protocol):
    """A store that can save a session's first checkpoint without overwriting another's."""

    async def create(self, session_id: str, checkpoint: Checkpoint) -> bool:
        """Save, unless the session has a checkpoint; returns whether it was saved."""


@runtime_checkable
class ForkingStore(Protocol):
    """A store that has a better way to fork than to copy the checkpoint."""

    async def fork(
        self,
        session_id: str,
        *,
        from_step: int,
        patch: ForkPatch | None = None,
        new_session_id: str | None = None,
    ) -> tuple[str, Checkpoint]:
        """As :func:`fork_session`."""


def check_history_limit(limit: Any) -> int:
    """Give back how many saves a store is to keep.

    Raises:
        ConfigurationError: it is negative or no whole number (``field`` is ``historyLimit``).
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        msg = f"historyLimit is a whole number from 0, not {limit!r}."
        raise ConfigurationError(msg, field="historyLimit")
    return limit


async def get_checkpoint_history(
    store: CheckpointStore, session_id: str, limit: int | None = None
) -> list[HistoryEntry] | None:
    """A session's history, or ``None`` when the store keeps none."""
    if not isinstance(store, HistoryStore):
        return None
    return await store.history(session_id, limit)


async def fork_session(
    store: CheckpointStore,
    session_id: str,
    *,
    from_step: int,
    patch: ForkPatch | None = None,
    new_session_id: str | None = None,
) -> tuple[str, Checkpoint]:
    """Start a session from a step of another one's history, in the same store.

    The source stays as it is. Forks that one process makes at the same time get different ids;
    between processes that holds for stores that can create a checkpoint in one step.

    Args:
        store: any documented store that keeps a history.
        session_id: the session to fork.
        from_step: the newest save of this step is where the fork starts.
        patch: what is different in the fork.
        new_session_id: default: ``<session_id>.fork-<n>``, the first without a checkpoint.

    Returns:
        The fork's id and its checkpoint.

    Raises:
        CheckpointNotFoundError: the history keeps no such step.
        ConfigurationError: the store keeps no history (``field`` is ``checkpointStore``), the
            new id has a checkpoint (``newSessionId``), or the patch does not fit.
    """
    if isinstance(store, ForkingStore):
        return await store.fork(
            session_id, from_step=from_step, patch=patch, new_session_id=new_session_id
        )
    history = await get_checkpoint_history(store, session_id)
    if history is None:
        msg = f"fork: {type(store).__name__} keeps no history, so there is no step to start from."
        hint = "Give the store a history() method, or use one of ours."
        raise ConfigurationError(msg, field="checkpointStore", hint=hint)
    # A store of a user's own may give its entries as plain JSON.
    entries = [HistoryEntry.from_json(plain(entry)) for entry in history]
    entry = next((entry for entry in entries if entry.step == from_step), None)
    if entry is None:
        raise no_such_step(session_id, from_step, {entry.step for entry in entries})
    record = apply_patch(entry.checkpoint, patch)
    async with _forking():
        return await _save_fork(store, session_id, record, new_session_id)


async def _save_fork(
    store: CheckpointStore, session_id: str, record: dict[str, Any], new_session_id: str | None
) -> tuple[str, Checkpoint]:
    number = 0
    while True:
        number += 1
        fork_id = f"{session_id}.fork-{number}" if new_session_id is None else new_session_id
        taken = fork_id == session_id or await store.load(fork_id) is not None
        checkpoint = Checkpoint.from_json({**record, "sessionId": fork_id})
        if not taken and isinstance(store, CreatingStore):
            taken = not await store.create(fork_id, checkpoint)
        elif not taken:
            await store.save(fork_id, checkpoint)
        if not taken:
            return fork_id, checkpoint
        if new_session_id is not None:
            raise id_taken(fork_id)


_LOCKS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
    weakref.WeakKeyDictionary()
)


def _forking() -> asyncio.Lock:
    """One fork at a time writes, so that a look for a free id and the save are one step."""
    return _LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def no_such_step(session_id: str, step: int, kept: Iterable[int]) -> CheckpointNotFoundError:
    """The error for a step that the history does not keep (format page, *History*)."""
    steps = sorted(set(kept))
    shown = ", ".join(map(str, steps)) or "none"
    msg = f"fork: session {session_id!r} has no checkpoint of step {step} (steps kept: {shown})"
    return CheckpointNotFoundError(msg, kept=steps)


def id_taken(session_id: str) -> ConfigurationError:
    """The error for a fork's id that is in use."""
    msg = f"fork: session {session_id!r} already has a checkpoint."
    hint = "Give another id, or none."
    return ConfigurationError(msg, field="newSessionId", hint=hint)


def run_goes_on(session_id: str) -> SessionConflictError:
    """The error for a record that would come between the events of a run."""
    msg = f"A run of session {session_id!r} goes on or was cut off; nothing else may write to it."
    return SessionConflictError(msg, hint="Resume the session or cancel its run, then save again.")


def session_not_found(session_id: str) -> SessionNotFoundError:
    """The error for a session id that the store does not hold."""
    hint = "List them with `perdure sessions`; a run that no worker has taken yet is not there."
    return SessionNotFoundError(f"There is no session {session_id!r} in the store.", hint=hint)
