"""The documented store: three methods, and ``history`` for stores that keep one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.checkpoint import Checkpoint, HistoryEntry


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


async def get_checkpoint_history(
    store: CheckpointStore, session_id: str, limit: int | None = None
) -> list[HistoryEntry] | None:
    """A session's history, or ``None`` when the store keeps none (seed 000)."""
    if not isinstance(store, HistoryStore):
        return None
    return await store.history(session_id, limit)
