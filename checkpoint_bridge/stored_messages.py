"""The conversation of a stored session, for whoever may learn from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.log.derived import messages_of

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.messages import Message
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore


async def stored_messages(store: SqlStore, session_id: str) -> list[Message]:
    """The messages of a session as its log has them now: shared, and read-only.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    row = await store.known_session(session_id)
    return messages_of(await store.state(row.log_id, row.head))
