"""``client.sessions``: lists, finds, makes and deletes sessions."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.creating import create_session, from_events, from_transcript
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    SessionActiveError,
    SessionExistsError,
)
from perdure.checkpoint_bridge.format.ids import check_session_id
from perdure.checkpoint_bridge.option_checks import flag
from perdure.checkpoint_bridge.stored_messages import stored_messages
from perdure.checkpoint_bridge.tables.sessions import ENDED
from perdure.claims import Claims, claim_id
from perdure.results import SessionInfo
from perdure.sessions.record import FAILED, status_of
from perdure.sessions.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.checkpoint_bridge.format.messages import Message
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.client import Client

PAGE = 50
_CREATE = "create"


class SessionPage(list[SessionInfo]):
    """Some entries of the session list; ``next_cursor`` asks for those behind them."""

    next_cursor: str | None = None
    """``None`` at the end of the list."""


class Sessions:
    """``client.sessions``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(
        self,
        agent: str,
        *,
        session_id: str | None = None,
        transcript: Any = None,
        seed: Iterable[Any] | None = None,
        cwd: str | None = None,
        metadata: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Session:
        """Make a session without running anything. Its first message starts its first run.

        Args:
            agent: the name of its agent.
            session_id: 1 to 128 of ``A-Z a-z 0-9 _ -``; default: a new one.
            transcript: messages of the documented format that the conversation begins with.
            seed: events of another session's log that this one begins with, from ``seq`` 0.
            cwd: the directory that the session is about; kept in its header.
            metadata: a JSON object; kept in its header. No model is shown it.
            idempotency_key: sent again with this key, the request makes nothing and gives the
                same session; a session without an id of yours then has one made of the key.

        Raises:
            SessionExistsError: there is a session of this id.
            IdempotencyMismatchError: the key was used for another request.
            IdempotencyAmbiguousError: a request under the key was cut off; it made nothing.
            ConfigurationError: an argument is wrong; nothing was made.
            SessionIdInvalidError: the id cannot be one.
        """
        if not isinstance(agent, str) or not agent:
            msg = f"agent is the name of an agent, not {agent!r}."
            raise ConfigurationError(msg, field="agent")
        claim = None if idempotency_key is None else claim_id(_CREATE, str(idempotency_key))
        given_id = session_id
        if session_id is None:
            session_id = claim or str(uuid.uuid4())
        check_session_id(session_id)
        if transcript is not None and seed is not None:
            msg = "A session begins with a transcript or with a seed, not with both."
            raise ConfigurationError(msg, field="seed")
        beginning = from_transcript(transcript) if seed is None else from_events(seed)
        store, client = self._client.store, self._client

        async def make() -> str:
            if await client.running(session_id) is not None:
                msg = f"There is a run of session {session_id!r} already."
                raise SessionExistsError(msg)
            await create_session(
                store,
                session_id,
                agent=agent,
                beginning=beginning,
                cwd=cwd,
                metadata=metadata,
                claim=claim,
            )
            return session_id

        async def find() -> str | None:
            """The request was cut off; what it does is one transaction, so it is done or not."""
            row = await store.session(session_id)
            made = row is not None and json.loads(row.header).get("claim") == claim
            return session_id if made else None

        request = {
            "agent": agent,
            "session_id": given_id,
            "beginning": [[event.type, event.data] for event in beginning],
            "cwd": cwd,
            "metadata": metadata,
        }
        return self.get(
            await Claims(store).once(_CREATE, idempotency_key, request, make, find=find)
        )

    async def list(
        self,
        agent: str | None = None,
        status: str | None = None,
        limit: int | None = PAGE,
        cursor: str | None = None,
    ) -> SessionPage:
        """Sessions, newest activity first; no log is read, and reading one is no activity.

        Args:
            agent: only those of this agent.
            status: only those whose newest save has this status, or that are ``ended``.
            limit: entries of a page; ``None`` for all.
            cursor: ``next_cursor`` of the page before. A session that gets a message meanwhile
                moves to the front of the list, and no other one is missed or given twice.

        Raises:
            ConfigurationError: the cursor or the limit is wrong.
        """
        return await list_page(
            self._client.store, agent=agent, status=status, limit=limit, cursor=cursor
        )

    def get(self, session_id: str) -> Session:
        """A session object, whether there is such a session or not; nothing is read."""
        return Session(self._client, session_id)

    async def open(self, session_id: str) -> Session:
        """The session object of a session that there is; its ``cached`` record is fresh.

        Its log is brought to the current format, and compared with its digests.

        Raises:
            SessionNotFoundError: the store has no such session.
            SessionFormatUnsupportedError: its log is of a version that this one does not read.
            SessionLogCorruptError: its log is damaged.
        """
        session = self.get(session_id)
        await self._client.store.verify(session_id)
        await session.info()
        return session

    async def messages(self, session_id: str) -> Sequence[Message]:
        """The messages of any session, read-only: what one conversation may learn from another.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await stored_messages(self._client.store, session_id)

    async def delete(
        self, session_id: str, *, force: bool = False, sub_agents: bool = False
    ) -> None:
        """Delete a session with its history; forks that share its beginning keep theirs.

        Only one that was ended, or whose last run failed, is deleted; ``force`` ends it first.
        With ``sub_agents`` the sessions of its sub-agents, and of theirs, go with it.

        Raises:
            SessionNotFoundError: there is no such session.
            SessionActiveError: it has not ended; nothing was deleted.
        """
        force, sub_agents = flag("force", force), flag("sub_agents", sub_agents)
        store = self._client.store
        row = await store.known_session(session_id)
        if force:
            await self.get(session_id).end()
        elif status_of(row) not in (ENDED, FAILED):
            msg = f"Session {session_id!r} is {status_of(row)}; it was not deleted."
            raise SessionActiveError(msg)
        await self._client.delete(session_id, sub_agents=sub_agents)


async def list_page(
    store: SqlStore,
    *,
    agent: str | None = None,
    status: str | None = None,
    limit: int | None = PAGE,
    cursor: str | None = None,
) -> SessionPage:
    """One page of the session list (see :meth:`Sessions.list`)."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        msg = f"limit is a whole number from 1, not {limit!r}."
        raise ConfigurationError(msg, field="limit")
    after = None if cursor is None else _read_cursor(cursor)
    # One more than asked for says whether there is another page.
    rows = await store.sessions(
        agent=agent, status=status, limit=None if limit is None else limit + 1, after=after
    )
    page = SessionPage(SessionInfo.of(row) for row in rows[:limit])
    if limit is not None and len(rows) > limit:
        page.next_cursor = f"{page[-1].updated_at}.{page[-1].session_id}"
    return page


def _read_cursor(cursor: str) -> tuple[int, str]:
    time, _, session_id = cursor.partition(".")
    if not time.isdecimal() or not session_id:
        msg = f"{cursor!r} is no cursor; give the next_cursor of a page."
        raise ConfigurationError(msg, field="cursor")
    return int(time), session_id
