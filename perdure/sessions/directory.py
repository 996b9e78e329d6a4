"""``client.sessions``: lists, finds and makes sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.results import SessionInfo
from perdure.sessions.session import Session

if TYPE_CHECKING:
    from perdure.client import Client


class Sessions:
    """``client.sessions``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, *, limit: int | None = None) -> list[SessionInfo]:
        """Sessions, newest activity first; no log is read."""
        return [SessionInfo.of(row) for row in await self._client.store.sessions(limit=limit)]

    def get(self, session_id: str) -> Session:
        """A session object, whether there is such a session or not; nothing is read."""
        return Session(self._client, session_id)
