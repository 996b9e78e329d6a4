"""Pages of a log: a reader never has to hold more than one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from perdure.checkpoint_bridge.log.formats import CURRENT
from perdure.checkpoint_bridge.stores.store import session_not_found
from perdure.checkpoint_bridge.tables.event_log import (
    WITH_CONTENT,
    in_lineage,
    lineage,
    read_events,
)
from perdure.checkpoint_bridge.tables.schema import blobs, events, sessions

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.log.events import Event

__all__ = ["PAGE_BYTES", "PAGE_EVENTS", "EventPage", "place_of", "read_page"]

PAGE_EVENTS = 1_000
PAGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some committed events, in order, and where to go on."""

    events: list[Event]
    cursor: int
    """Sequence of the last of them: the ``after`` of the next page."""
    has_more: bool
    """Whether there were more behind them when the page was read."""
    log_id: int
    """Of the log that they are from: a session that was deleted and begun anew has another."""


def read_page(
    connection: Connection,
    session_id: str,
    after: int,
    limit: int = PAGE_EVENTS,
    max_bytes: int = PAGE_BYTES,
) -> EventPage:
    """The events behind the cursor ``after``: as many as fit, and one at least where there is one.

    Sizes are looked at first, so an event that is larger than a page comes alone, and what does
    not fit is not read.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    log_id, head = place_of(connection, session_id)
    end = _end(connection, log_id, after, min(limit, PAGE_EVENTS), max_bytes)
    found = read_events(connection, log_id, after, end) if end > after else []
    cursor = found[-1].sequence if found else after
    return EventPage(found, cursor, cursor < head, log_id)


def place_of(connection: Connection, session_id: str) -> tuple[int, int]:
    """The id of a session's log, and the sequence of its newest event.

    Raises:
        SessionNotFoundError: there is no such session.
        SessionFormatUnsupportedError: its log has another format than the current one.
    """
    query = select(sessions.c.log_id, sessions.c.head, sessions.c.version).where(
        sessions.c.session_id == session_id
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise session_not_found(session_id)
    CURRENT.require(session_id, row.version)
    return row.log_id, row.head


def _end(connection: Connection, log_id: int, after: int, limit: int, max_bytes: int) -> int:
    """The ``seq`` before which the page ends."""
    # ASCII, so a character is a byte; and PostgreSQL knows bytes without reading them.
    bytes_of: Any = func.length if connection.dialect.name == "sqlite" else func.octet_length
    sizes = connection.execute(
        select(events.c.seq, bytes_of(events.c.data) + func.coalesce(blobs.c.size, 0))
        .select_from(WITH_CONTENT)
        .where(in_lineage(lineage(connection, log_id), after))
        .order_by(events.c.seq)
        .limit(limit)
    )
    end, total = after, 0
    for seq, size in sizes.all():
        total += size
        if total > max_bytes and end > after:
            break
        end = seq + 1
    return end
