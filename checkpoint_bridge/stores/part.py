"""What the parts of the SQL store have of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.tables.database import Database
    from perdure.checkpoint_bridge.tables.event_log import Batch
    from perdure.checkpoint_bridge.tables.sessions import SessionRow


class StorePart:
    """Base of the classes that :class:`.SqlStore` is put together from."""

    database: Database
    history_limit: int

    if TYPE_CHECKING:

        async def session(self, session_id: str) -> SessionRow | None:
            """A session's row, or ``None``; its log has the current format then."""

        async def state(self, log_id: int, through: int) -> SessionState:
            """The fold of a log's first ``through`` events."""

        async def appended(self, batch: Batch, end: int) -> None:
            """What follows from an append that is committed; ``end`` is the log's length."""

        def tell_saved(self, time_ms: int) -> None:
            """Tell who listens that there is a new save."""

    @property
    def keep_saves(self) -> int:
        """Save rows to keep: the newest is the checkpoint, even when no history is kept."""
        return max(1, self.history_limit)
