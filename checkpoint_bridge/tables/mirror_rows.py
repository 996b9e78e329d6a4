"""How far each mirror is, and who writes to it; inside a transaction that the caller holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, exists, func, insert, select, update

from perdure.checkpoint_bridge.tables.schema import mirror_leases, mirrors, saves, sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection, FromClause


@dataclass(frozen=True, slots=True)
class Behind:
    """A session with saves that a mirror lacks."""

    session_id: str
    log_id: int
    after: int
    """``through_seq`` of the newest save that was written to the mirror; 0: none was."""
    known: bool
    """Whether what the mirror holds under this id was written by us."""


def _joined(name: str) -> FromClause:
    is_row = and_(mirrors.c.name == name, mirrors.c.session_id == sessions.c.session_id)
    return sessions.outerjoin(mirrors, is_row)


# A session that was deleted and begun anew has another log.
_AFTER = case((mirrors.c.log_id == sessions.c.log_id, mirrors.c.through_seq), else_=0)
_IS_LACKING = and_(saves.c.log_id == sessions.c.log_id, saves.c.through_seq > _AFTER)


def behind(
    connection: Connection,
    name: str,
    *,
    since_ms: int | None = None,
    session_id: str | None = None,
) -> list[Behind]:
    """Sessions with saves that the mirror lacks, those that wait longest first.

    With ``since_ms`` only sessions with events since then are looked at: an index finds them.
    """
    where: list[ColumnElement[bool]] = []
    if since_ms is not None:
        where.append(sessions.c.updated_at >= since_ms)
    if session_id is not None:
        where.append(sessions.c.session_id == session_id)
    else:
        where.append(exists(select(saves.c.log_id).where(_IS_LACKING)))
    query = (
        select(sessions.c.session_id, sessions.c.log_id, _AFTER.label("after"), mirrors.c.name)
        .select_from(_joined(name))
        .where(*where)
        .order_by(sessions.c.updated_at)
    )
    return [
        Behind(row.session_id, row.log_id, row.after, row.name is not None)
        for row in connection.execute(query)
    ]


def is_known(connection: Connection, name: str, session_id: str) -> bool:
    """Whether what a mirror holds under this id was written by us."""
    query = select(mirrors.c.name).where(mirrors.c.name == name, mirrors.c.session_id == session_id)
    return connection.execute(query).one_or_none() is not None


def count_behind(connection: Connection, name: str) -> int:
    """How many saves the mirror lacks."""
    query = select(func.count()).select_from(_joined(name).join(saves, _IS_LACKING))
    return int(connection.execute(query).scalar_one())


def kept_saves(connection: Connection, log_id: int) -> Sequence[Any]:
    """Rows of all saves of a log that the store still has, oldest first."""
    query = select(saves).where(saves.c.log_id == log_id).order_by(saves.c.through_seq)
    return connection.execute(query).all()


def move_cursors(
    connection: Connection, name: str, owner: str, places: Sequence[tuple[Behind, int]]
) -> bool:
    """Note how far the mirror is with sessions; returns whether ``owner`` may still write."""
    lease = connection.execute(
        select(mirror_leases.c.owner).where(mirror_leases.c.name == name).with_for_update()
    ).scalar()
    if lease != owner:
        return False
    for session, through_seq in places:
        key = (mirrors.c.name == name, mirrors.c.session_id == session.session_id)
        values = {"log_id": session.log_id, "through_seq": through_seq}
        if connection.execute(update(mirrors).where(*key).values(**values)).rowcount == 0:
            row = {"name": name, "session_id": session.session_id, **values}
            connection.execute(insert(mirrors).values(**row))
    return True


def lease_of(connection: Connection, name: str) -> tuple[str, int]:
    """Who may write to a mirror, and until when; ``("", 0)`` when nobody did yet."""
    query = select(mirror_leases.c.owner, mirror_leases.c.until_ms)
    row = connection.execute(query.where(mirror_leases.c.name == name)).one_or_none()
    return ("", 0) if row is None else (row.owner, row.until_ms)


def take_lease(
    connection: Connection, name: str, owner: str, *, now_ms: int, until_ms: int, force: bool
) -> bool:
    """Become (or stay) the one who writes to a mirror, unless somebody else is."""
    free = mirror_leases.c.owner == owner
    free = free | (mirror_leases.c.until_ms < now_ms)
    where = [mirror_leases.c.name == name, *(() if force else (free,))]
    values = {"owner": owner, "until_ms": until_ms}
    if connection.execute(update(mirror_leases).where(*where).values(**values)).rowcount:
        return True
    if lease_of(connection, name)[0]:
        return False
    connection.execute(insert(mirror_leases).values(name=name, **values))
    return True


def give_lease_back(connection: Connection, name: str, owner: str) -> None:
    """Let the next one begin at once."""
    is_mine = (mirror_leases.c.name == name, mirror_leases.c.owner == owner)
    connection.execute(update(mirror_leases).where(*is_mine).values(until_ms=0))
