"""Follows a log: waits until there is more of it.

On PostgreSQL appends are heard of; on SQLite, and where PostgreSQL cannot be listened to, the
session's row is looked at, often while things happen and seldom while nothing does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import SessionNotFoundError
from perdure.checkpoint_bridge.pages import place_of
from perdure.checkpoint_bridge.tables.notices import CHANNEL, FOLLOWED_FOR, ask_for_notices

if TYPE_CHECKING:
    from typing import Self

    from perdure.checkpoint_bridge.tables.database import Database

_SHORTEST = 0.01
_LONGEST = 0.25
"""Seconds between two looks at a session's row."""

_LISTENING = 5.0
"""The same, where appends are heard of; in case one was not."""


class Follower:
    """Waits for events of one session. An async context manager."""

    def __init__(self, database: Database, session_id: str) -> None:
        self._database = database
        self._session_id = session_id
        self._log_id: int | None = None
        self._listener: _Listener | None = None
        self._asked = 0.0
        self._pause = _SHORTEST

    async def __aenter__(self) -> Self:
        log_id, _ = await self._database.read(place_of, self._session_id)
        self._log_id = log_id
        if not self._database.is_sqlite:
            self._listener = await _Listener.open(self._database, log_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            await self._listener.close()

    async def wait(self, after: int) -> None:
        """Return when there are events behind the cursor ``after``.

        Raises:
            SessionNotFoundError: the session was deleted.
        """
        self._pause = _SHORTEST
        while True:
            await self._ask()
            log_id, head = await self._database.read(place_of, self._session_id)
            self.check(log_id)
            if head > after:
                return
            await self._rest()

    def check(self, log_id: int) -> None:
        """Refuse what is of another log than at the beginning.

        Raises:
            SessionNotFoundError: the session was deleted and begun anew.
        """
        if log_id != self._log_id:
            msg = f"The session {self._session_id!r} was deleted while it was followed."
            raise SessionNotFoundError(msg)

    async def _ask(self) -> None:
        """On PostgreSQL: see to it that appends tell; before the look, so that none is missed."""
        if self._listener is not None and time.monotonic() > self._asked + FOLLOWED_FOR / 2:
            self._asked = time.monotonic()
            await self._database.write(ask_for_notices, self._session_id)

    async def _rest(self) -> None:
        if self._listener is not None and self._listener.hears:
            await self._listener.wait(_LISTENING)
            return
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 1.5, _LONGEST)


class _Listener:
    """One connection that hears of appends to one log."""

    def __init__(self, connection: Any, log_id: int) -> None:
        self._connection = connection
        self._payload = str(log_id)
        self._grown = asyncio.Event()
        self._task = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, database: Database, log_id: int) -> _Listener | None:
        """Listen, or give ``None`` where that is not possible (too many connections, a pooler)."""
        import psycopg

        url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        try:
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        except psycopg.Error:
            return None
        try:
            await connection.execute(f"LISTEN {CHANNEL}")
        except psycopg.Error:
            await connection.close()
            return None
        return cls(connection, log_id)

    @property
    def hears(self) -> bool:
        """Whether the connection still stands."""
        return not self._task.done()

    async def wait(self, seconds: float) -> None:
        """Wait for an append, but no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._grown.wait()
        self._grown.clear()

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._connection.close()

    async def _listen(self) -> None:
        import psycopg

        try:
            async for notice in self._connection.notifies():
                if notice.payload == self._payload:
                    self._grown.set()
        except psycopg.Error:
            pass  # the connection broke; the row is looked at from now on
        finally:
            self._grown.set()
