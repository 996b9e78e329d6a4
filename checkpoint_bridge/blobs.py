"""Large values, each stored once under the digest of its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, exists, select
from sqlalchemy.dialects import postgresql, sqlite

from perdure.checkpoint_bridge.events import digest_of
from perdure.checkpoint_bridge.schema import blobs, effects, events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection


def put_blob(connection: Connection, content: str, time_ms: int) -> str:
    """Store ``content`` (ASCII JSON) unless it is there; returns its digest."""
    digest = digest_of(content)
    values = {"digest": digest, "size": len(content), "content": content, "created_at": time_ms}
    if connection.dialect.name == "sqlite":
        connection.execute(sqlite.insert(blobs).values(values).on_conflict_do_nothing())
    else:
        # An update that changes nothing holds the row until this transaction has named it;
        # meanwhile drop_unused waits.
        query = postgresql.insert(blobs).values(values)
        same = {"size": query.excluded.size}
        connection.execute(query.on_conflict_do_update(index_elements=["digest"], set_=same))
    return digest


def get_blob(connection: Connection, digest: str) -> str | None:
    """The content under a digest, or ``None``."""
    content: str | None = connection.scalar(select(blobs.c.content).where(blobs.c.digest == digest))
    return content


def drop_unused(connection: Connection, digests: Iterable[str]) -> None:
    """Delete those of ``digests`` that no event and no effect names any more."""
    wanted = sorted(set(digests))
    for start in range(0, len(wanted), 500):
        some = blobs.c.digest.in_(wanted[start : start + 500])
        # First the rows, then a second look at who names them (PostgreSQL; see put_blob).
        connection.execute(
            select(blobs.c.digest).where(some).order_by(blobs.c.digest).with_for_update()
        )
        connection.execute(
            delete(blobs).where(
                some,
                ~exists().where(events.c.ref == blobs.c.digest),
                ~exists().where(effects.c.ref == blobs.c.digest),
            )
        )
