"""Large values, each stored once under the digest of its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, bindparam, delete, exists, select, text

from perdure.checkpoint_bridge.log.events import digest_of
from perdure.checkpoint_bridge.tables.prepared import Prepared
from perdure.checkpoint_bridge.tables.schema import blobs, effects, events, inputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

_FRESH = 60 * 60 * 1000
_UNUSED = and_(
    ~exists().where(events.c.ref == blobs.c.digest),
    ~exists().where(effects.c.ref == blobs.c.digest),
    ~exists().where(inputs.c.digest == blobs.c.digest),
)


_PUT = {
    dialect: Prepared(
        text(
            f"""
            INSERT INTO perdure_blobs (digest, size, created_at, content)
            VALUES (:digest, :size, :created_at, :content)
            ON CONFLICT (digest) DO UPDATE SET {renewed}
            """  # noqa: S608 - constants
        ).bindparams(*(bindparam(each.name, type_=each.type) for each in blobs.c))
    )
    for dialect, renewed in {
        # Who stores what nobody names yet needs it from now on (see drop_orphans). Only now and
        # then: a change writes all of a row.
        "sqlite": f"""created_at = excluded.created_at
            WHERE perdure_blobs.created_at < excluded.created_at - {_FRESH}""",
        # The update also holds the row until this transaction has named it; meanwhile
        # drop_unused waits.
        "postgresql": "created_at = greatest(perdure_blobs.created_at, excluded.created_at)",
    }.items()
}
_GET = Prepared(
    select(blobs.c.content).where(blobs.c.digest == bindparam("digest", type_=blobs.c.digest.type))
)


def put_blob(connection: Connection, content: str, time_ms: int) -> str:
    """Store ``content`` (ASCII JSON) unless it is there; returns its digest."""
    digest = digest_of(content)
    values = {"digest": digest, "size": len(content), "content": content, "created_at": time_ms}
    _PUT[connection.dialect.name].run(connection, values)
    return digest


def get_blob(connection: Connection, digest: str) -> str | None:
    """The content under a digest, or ``None``."""
    row = _GET.one(connection, {"digest": digest})
    return None if row is None else row[0]


def drop_unused(connection: Connection, digests: Iterable[str]) -> None:
    """Delete those of ``digests`` that no event, effect or input names any more."""
    wanted = sorted(set(digests))
    for start in range(0, len(wanted), 500):
        some = blobs.c.digest.in_(wanted[start : start + 500])
        # First the rows, then a second look at who names them (PostgreSQL; see put_blob).
        connection.execute(
            select(blobs.c.digest).where(some).order_by(blobs.c.digest).with_for_update()
        )
        connection.execute(delete(blobs).where(some, _UNUSED))


def find_orphans(connection: Connection, before_ms: int, *, after: str, limit: int) -> list[str]:
    """Digests behind ``after`` of what nobody names and nobody stored since ``before_ms``."""
    query = (
        select(blobs.c.digest)
        .where(blobs.c.digest > after, blobs.c.created_at < before_ms, _UNUSED)
        .order_by(blobs.c.digest)
        .limit(limit)
    )
    return list(connection.scalars(query).all())


def drop_orphans(connection: Connection, digests: Iterable[str], before_ms: int) -> int:
    """Delete what :func:`find_orphans` found, where that is still so; returns how many."""
    some = and_(blobs.c.digest.in_(sorted(digests)), blobs.c.created_at < before_ms)
    # As in drop_unused; who stores one of them meanwhile has made it new again.
    found = select(blobs.c.digest).where(some).order_by(blobs.c.digest).with_for_update()
    connection.execute(found)
    return connection.execute(delete(blobs).where(some, _UNUSED)).rowcount
