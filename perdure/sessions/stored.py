"""A session as its store alone shows it: for readers that need no Temporal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.sessions.reading import Reading

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore


class StoredSession(Reading):
    """The reading part of a session object, on a store."""

    def __init__(self, store: SqlStore, session_id: str) -> None:
        self.session_id = session_id
        self._store = store

    @property
    def store(self) -> SqlStore:
        """The store that the session is in."""
        return self._store
