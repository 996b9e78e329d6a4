"""Rows of sessions and their logs: creating, sharing and deleting them in a transaction."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, select, update

from perdure.checkpoint_bridge.blobs import drop_unused
from perdure.checkpoint_bridge.schema import approvals, effects, events, logs, saves, sessions

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.ext.asyncio import AsyncConnection


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


async def find_session(connection: AsyncConnection, session_id: str) -> SessionRow | None:
    """The row of a session, or ``None``."""
    row = (
        await connection.execute(select(sessions).where(sessions.c.session_id == session_id))
    ).one_or_none()
    return None if row is None else SessionRow(**row._mapping)  # noqa: SLF001 - public in SQLAlchemy


async def list_sessions(
    connection: AsyncConnection, *, limit: int | None, status: str | None
) -> list[SessionRow]:
    """Sessions, newest activity first; reads no log."""
    query = select(sessions).order_by(sessions.c.updated_at.desc(), sessions.c.session_id)
    if status is not None:
        query = query.where(sessions.c.status == status)
    if limit is not None:
        query = query.limit(limit)
    rows = (await connection.execute(query)).all()
    return [SessionRow(**row._mapping) for row in rows]  # noqa: SLF001 - as above


async def create_session(
    connection: AsyncConnection,
    session_id: str,
    *,
    agent: str,
    time_ms: int,
    parent: SessionRow | None = None,
    inherited: int = 0,
) -> SessionRow:
    """Make a session with a log of its own, or one that begins with a parent's events."""
    result = await connection.execute(
        insert(logs)
        .values(
            uid=uuid.uuid4().hex,
            parent_id=parent.log_id if parent else None,
            inherited=inherited,
        )
        .returning(logs.c.id)
    )
    row = SessionRow(
        session_id=session_id,
        log_id=result.scalar_one(),
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
        parent_session=parent.session_id if parent else None,
    )
    values = {name: getattr(row, name) for name in SessionRow.__slots__}
    await connection.execute(insert(sessions).values(**values))
    return row


async def delete_session(connection: AsyncConnection, row: SessionRow) -> None:
    """Delete a session and what only it used; forks that share its beginning keep it."""
    await connection.execute(delete(sessions).where(sessions.c.session_id == row.session_id))
    for table in (saves, effects, approvals):
        refs = await _refs(connection, effects, row.log_id) if table is effects else []
        await connection.execute(delete(table).where(table.c.log_id == row.log_id))
        await drop_unused(connection, refs)
    log_id: int | None = row.log_id
    while log_id is not None:
        log_id = await _shrink_log(connection, log_id)


async def _shrink_log(connection: AsyncConnection, log_id: int) -> int | None:
    """Drop what no session needs of a log without a session; returns the next log to look at."""
    used = await connection.scalar(
        select(func.max(logs.c.inherited)).where(logs.c.parent_id == log_id)
    )
    rest = events.c.seq >= used if used is not None else None
    refs = await _refs(connection, events, log_id, rest)
    drop = delete(events).where(events.c.log_id == log_id)
    await connection.execute(drop if rest is None else drop.where(rest))
    await drop_unused(connection, refs)
    if used is not None:
        return None
    parent: int | None = await connection.scalar(
        select(logs.c.parent_id).where(logs.c.id == log_id)
    )
    await connection.execute(delete(logs).where(logs.c.id == log_id))
    if parent is None:
        return None
    owner = await connection.scalar(
        select(sessions.c.session_id).where(sessions.c.log_id == parent)
    )
    return parent if owner is None else None


async def _refs(
    connection: AsyncConnection,
    table: Table,
    log_id: int,
    where: ColumnElement[bool] | None = None,
) -> list[str]:
    query = select(table.c.ref).where(table.c.log_id == log_id, table.c.ref.is_not(None))
    if where is not None:
        query = query.where(where)
    return list((await connection.scalars(query)).all())


async def set_running(connection: AsyncConnection, session_id: str, agent: str) -> None:
    """Mark that a run goes on (its first save may be minutes away)."""
    await connection.execute(
        update(sessions)
        .where(sessions.c.session_id == session_id)
        .values(agent=agent, status="in-progress", approval_id=None)
    )


async def set_cleared(connection: AsyncConnection, session_id: str) -> None:
    """Mark that a session has no checkpoint (its history stays)."""
    await connection.execute(
        update(sessions)
        .where(sessions.c.session_id == session_id)
        .values(has_checkpoint=False, status="cleared", step=0, approval_id=None, writer=None)
    )
