"""How an append is heard of by those who follow its log, on PostgreSQL.

A notification makes commits wait for each other in the whole server, so they are only sent for
sessions that somebody follows: followers say so in the session's row, for a while.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqlalchemy import text, update

from perdure.checkpoint_bridge.tables.schema import sessions

if TYPE_CHECKING:
    from sqlalchemy import Connection

CHANNEL = "perdure_appends"
"""Its payload is the id of the log."""

FOLLOWED_FOR = 60.0
"""Seconds after which a follower that is gone costs appends nothing any more."""

_NOTIFY = text("SELECT pg_notify(:channel, :payload)")


def tell_followers(connection: Connection, log_id: int, followed_until: int) -> None:
    """Tell who follows a log that it has grown, once this transaction is committed."""
    if followed_until and connection.dialect.name == "postgresql" and followed_until > _now():
        connection.execute(_NOTIFY, {"channel": CHANNEL, "payload": str(log_id)})


def ask_for_notices(connection: Connection, session_id: str) -> None:
    """Say that somebody follows a session.

    It waits for an append that has looked at the row already: that one tells nobody, but is
    committed when this returns.
    """
    connection.execute(
        update(sessions)
        .where(sessions.c.session_id == session_id)
        .values(followed_until=_now() + int(FOLLOWED_FOR * 1000))
    )


def _now() -> int:
    return int(time.time() * 1000)
