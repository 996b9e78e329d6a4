"""Rows of sessions and their logs: creating, sharing and deleting them in a transaction."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import and_, bindparam, delete, func, insert, or_, select, text, update

from perdure.checkpoint_bridge.errors import SessionEndedError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.headers import SESSION_FORMAT_VERSION, header_text
from perdure.checkpoint_bridge.log.lineage import ancestors, depth_of
from perdure.checkpoint_bridge.tables.blobs import drop_unused
from perdure.checkpoint_bridge.tables.inputs import drop_inputs
from perdure.checkpoint_bridge.tables.prepared import Prepared
from perdure.checkpoint_bridge.tables.schema import (
    approvals,
    effects,
    events,
    logs,
    saves,
    sessions,
)

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Table


CREATED = "created"
"""Status of a session that was made before it got its first message."""

CLEARED = "cleared"
"""Status of a session whose checkpoint was deleted and whose history was kept."""

OPEN, ENDING, ENDED = "open", "ending", "ended"
"""Phases of a session: ending and ended take no messages."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What a session's list entry knows, without its log."""

    session_id: str
    log_id: int
    head: int
    writer: str | None
    agent: str
    title: str
    created_at: int
    updated_at: int
    has_checkpoint: bool
    status: str
    step: int
    approval_id: str | None
    parent_session: str | None
    last_end: str | None
    """JSON of the last turn's ``reason``; ``None`` while a turn is open."""
    version: int
    """Format of the log."""
    phase: str
    header: str
    """JSON of what never changes, for :class:`.headers.SessionHeader`."""
    turn_sequence: int = 0
    """Sequence of the newest ``turn/start``; 0 while there is none."""
    emitted: int = 0
    """Bytes of events that tools have emitted in that turn."""
    followed_until: int = 0
    """Unix milliseconds until which somebody wants to be told of appends (PostgreSQL)."""

    @property
    def is_busy(self) -> bool:
        """Whether a run goes on or waits, as far as the store knows."""
        if self.phase == ENDED:
            return False
        if self.status == ev.AWAITING_APPROVAL:
            return True
        return self.status == ev.IN_PROGRESS and self.writer is not None and self.last_end is None

    @property
    def was_aborted(self) -> bool:
        """Whether its last turn was cancelled."""
        return self.last_end is not None and json.loads(self.last_end).get("kind") == ev.ABORTED


_BY_ID = select(*(sessions.c[name] for name in SessionRow.__slots__)).where(
    sessions.c.session_id == bindparam("session_id")
)
_FIND = Prepared(_BY_ID)
# One writer at a time (PostgreSQL; a SQLite transaction has the whole file).
_LOCK = Prepared(_BY_ID.with_for_update())
_INSERT = Prepared(insert(sessions))
_INSERT_LOG = Prepared(
    insert(logs)
    .values(
        uid=bindparam("uid", type_=logs.c.uid.type),
        parent_id=bindparam("parent_id", type_=logs.c.parent_id.type),
        inherited=bindparam("inherited", type_=logs.c.inherited.type),
    )
    .returning(logs.c.id)
)
_SET_RUNNING = Prepared(
    text(
        """
        UPDATE perdure_sessions
        SET agent = :agent, status = 'in-progress', approval_id = NULL, last_end = NULL
        WHERE session_id = :session_id
        """
    )
)


def find_session(
    connection: Connection, session_id: str, *, lock: bool = False
) -> SessionRow | None:
    """The row of a session, or ``None``; with ``lock`` it stays so until the transaction ends."""
    row = (_LOCK if lock else _FIND).one(connection, {"session_id": session_id})
    return None if row is None else SessionRow(*row)


def list_sessions(
    connection: Connection,
    *,
    limit: int | None,
    status: str | None,
    agent: str | None = None,
    after: tuple[int, str] | None = None,
) -> list[SessionRow]:
    """Sessions, newest activity first; reads no log.

    ``after`` is ``(updated_at, session_id)`` of the last one of the page before.
    """
    query = select(sessions).order_by(sessions.c.updated_at.desc(), sessions.c.session_id)
    if status is not None:
        query = query.where(_has_status(status))
    if agent is not None:
        query = query.where(sessions.c.agent == agent)
    if after is not None:
        time, session_id = after
        later = and_(sessions.c.updated_at == time, sessions.c.session_id > session_id)
        query = query.where(or_(sessions.c.updated_at < time, later))
    if limit is not None:
        query = query.limit(limit)
    rows = (connection.execute(query)).all()
    return [SessionRow(**row._mapping) for row in rows]  # noqa: SLF001 - public in SQLAlchemy


def _has_status(status: str) -> ColumnElement[bool]:
    if status in (ENDING, ENDED):
        return sessions.c.phase == status
    return sessions.c.status == status


def session_ids(connection: Connection) -> list[str]:
    """Ids of the sessions that have a checkpoint, sorted."""
    query = select(sessions.c.session_id).where(sessions.c.has_checkpoint)
    return sorted(connection.scalars(query).all())


def create_session(
    connection: Connection,
    session_id: str,
    *,
    agent: str,
    time_ms: int,
    parent: SessionRow | None = None,
    inherited: int = 0,
    header: str | None = None,
    version: int = SESSION_FORMAT_VERSION,
) -> SessionRow:
    """Make a session with a log of its own, or one that begins with a parent's events.

    ``header`` is what :func:`.headers.header_text` gives.
    """
    above = [] if parent else ancestors(session_id)
    if header is None:
        header = header_text(
            is_seeded=parent is not None, inherited=inherited, delegation_depth=len(above) or None
        )
    made = _INSERT_LOG.one(
        connection,
        {
            "uid": uuid.uuid4().hex,
            "parent_id": parent.log_id if parent else None,
            "inherited": inherited,
        },
    )
    assert made is not None
    row = SessionRow(
        session_id=session_id,
        log_id=made[0],
        head=inherited,
        writer=None,
        agent=agent,
        title=parent.title if parent else "",
        created_at=time_ms,
        updated_at=time_ms,
        has_checkpoint=False,
        status="in-progress",
        step=0,
        approval_id=None,
        parent_session=parent.session_id if parent else next(iter(above), None),
        last_end=None,
        version=parent.version if parent else version,
        phase=OPEN,
        header=header,
    )
    _INSERT.run(connection, {name: getattr(row, name) for name in SessionRow.__slots__})
    return row


def open_row(
    connection: Connection, session_id: str, *, agent: str, time_ms: int
) -> tuple[SessionRow, bool]:
    """The row of a session that a run opens, held for it, and whether it was made just now.

    Raises:
        SessionEndedError: it was ended.
    """
    row = find_session(connection, session_id, lock=True)
    if row is None:
        header = header_text(delegation_depth=depth_of(session_id) or None)
        made = create_session(connection, session_id, agent=agent, time_ms=time_ms, header=header)
        return made, True
    refuse_ended(row)
    return row, False


def refuse_ended(row: SessionRow) -> None:
    """Let no message into a session that was ended.

    Raises:
        SessionEndedError: it was.
    """
    if row.phase != OPEN:
        word = "was ended" if row.phase == ENDED else "is being ended"
        msg = f"Session {row.session_id!r} {word}; it takes no more messages."
        raise SessionEndedError(msg)


def delete_session(connection: Connection, row: SessionRow) -> None:
    """Delete a session and what only it used; forks that share its beginning keep it."""
    connection.execute(delete(sessions).where(sessions.c.session_id == row.session_id))
    drop_inputs(connection, row.session_id)
    for table in (saves, effects, approvals):
        refs = _refs(connection, effects, row.log_id) if table is effects else []
        connection.execute(delete(table).where(table.c.log_id == row.log_id))
        drop_unused(connection, refs)
    left = [row.log_id]
    while left:
        left.extend(_shrink_log(connection, left.pop()))


def _shrink_log(connection: Connection, log_id: int) -> list[int]:
    """Drop what no session needs of a log without a session; returns the next logs to look at."""
    _lock_log(connection, log_id)
    used = connection.scalar(select(func.max(logs.c.inherited)).where(logs.c.parent_id == log_id))
    rest = events.c.seq >= used if used is not None else None
    refs = _refs(connection, events, log_id, rest)
    drop = delete(events).where(events.c.log_id == log_id)
    connection.execute(drop if rest is None else drop.where(rest))
    drop_unused(connection, refs)
    if used is not None:
        return []
    below = connection.execute(
        select(logs.c.parent_id, logs.c.older_id).where(logs.c.id == log_id)
    ).one()
    connection.execute(delete(logs).where(logs.c.id == log_id))
    return [other for other in below if other is not None and _is_left(connection, other)]


def _is_left(connection: Connection, log_id: int) -> bool:
    """Whether a log is no session's, nor what a session's log was made of."""
    _lock_log(connection, log_id)
    owner = select(sessions.c.log_id).where(sessions.c.log_id == log_id)
    newer = select(logs.c.id).where(logs.c.older_id == log_id)
    return connection.execute(owner.union_all(newer)).first() is None


def _lock_log(connection: Connection, log_id: int) -> None:
    """Of two that delete a log's session and its forks, the second looks when the first is done."""
    connection.execute(select(logs.c.id).where(logs.c.id == log_id).with_for_update())


def _refs(
    connection: Connection,
    table: Table,
    log_id: int,
    where: ColumnElement[bool] | None = None,
) -> list[str]:
    query = select(table.c.ref).where(table.c.log_id == log_id, table.c.ref.is_not(None))
    if where is not None:
        query = query.where(where)
    return list((connection.scalars(query)).all())


def set_running(connection: Connection, session_id: str, agent: str) -> None:
    """Mark that a run goes on (its first save may be minutes away)."""
    _SET_RUNNING.run(connection, {"session_id": session_id, "agent": agent})


def set_created(connection: Connection, session_id: str) -> None:
    """Mark that no run has opened a new session yet."""
    connection.execute(
        update(sessions).where(sessions.c.session_id == session_id).values(status=CREATED)
    )


def set_cleared(connection: Connection, session_id: str) -> None:
    """Mark that a session has no checkpoint (its history stays)."""
    connection.execute(
        update(sessions)
        .where(sessions.c.session_id == session_id)
        .values(
            has_checkpoint=False,
            status=CLEARED,
            step=0,
            approval_id=None,
            writer=None,
            last_end=None,
        )
    )
