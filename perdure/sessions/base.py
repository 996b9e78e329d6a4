"""What every part of a session object stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.client import Client


class SessionPart:
    """A session by its id. Making one reads nothing."""

    def __init__(self, client: Client, session_id: str) -> None:
        self.client = client
        self.session_id = session_id

    def __repr__(self) -> str:
        return f"Session({self.session_id!r})"

    @property
    def store(self) -> SqlStore:
        """The store that the session is in."""
        return self.client.store
