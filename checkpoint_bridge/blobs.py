"""Large values, each stored once under the digest of its content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    insert: Any = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    connection.execute(
        insert(blobs)
        .values(digest=digest, size=len(content), content=content, created_at=time_ms)
        .on_conflict_do_nothing()
    )
    return digest


def get_blob(connection: Connection, digest: str) -> str | None:
    """The content under a digest, or ``None``."""
    content: str | None = connection.scalar(select(blobs.c.content).where(blobs.c.digest == digest))
    return content


def drop_unused(connection: Connection, digests: Iterable[str]) -> None:
    """Delete those of ``digests`` that no event and no effect names any more."""
    wanted = sorted(set(digests))
    for start in range(0, len(wanted), 500):
        connection.execute(
            delete(blobs).where(
                blobs.c.digest.in_(wanted[start : start + 500]),
                ~exists().where(events.c.ref == blobs.c.digest),
                ~exists().where(effects.c.ref == blobs.c.digest),
            )
        )
