"""Opens logs of older formats, finds damage, and gives what is stored as it is.

An upgrade writes a new log and points the session to it, in one transaction. The old log's
events are never changed; they go with their session.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update

from perdure.checkpoint_bridge.errors import (
    LogConflictError,
    SessionFormatUnsupportedError,
    SessionLogCorruptError,
)
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, dump, encode
from perdure.checkpoint_bridge.stores.store import session_not_found
from perdure.checkpoint_bridge.tables import sessions as session_rows
from perdure.checkpoint_bridge.tables.blobs import put_blob
from perdure.checkpoint_bridge.tables.event_log import (
    WITH_CONTENT,
    in_lineage,
    lineage,
    read_events,
)
from perdure.checkpoint_bridge.tables.schema import (
    approvals,
    blobs,
    effects,
    events,
    logs,
    mirrors,
    saves,
    sessions,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.log.formats import LogFormats
    from perdure.checkpoint_bridge.tables.database import Database
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_RAW = ("seq", "type", "time_ms", "data", "ref", "digest", "origin", "ignorable")
_BY_LOG = (saves, effects, approvals, mirrors)


class Versioned:
    """The part of a store that knows the formats of logs."""

    database: Database
    formats: LogFormats

    async def session(self, session_id: str) -> SessionRow | None:
        """A session's row, or ``None``; a log of an older format is brought to the current one.

        Raises:
            SessionFormatUnsupportedError: its format is newer, or too old, or is to become the
                current one while a run goes on. Nothing was changed.
            SessionLogCorruptError: it cannot be brought to the current format.
        """
        row = await self.database.read_quick(session_rows.find_session, session_id)
        if row is None or row.version == self.formats.version:
            return row
        self.formats.check(session_id, row.version)
        if row.is_busy:
            msg = (
                f"The log of session {session_id!r} has format {row.version}, older than "
                f"{self.formats.version}, and a run of it goes on."
            )
            hint = "Let its run end with the version of perdure that it began with."
            raise SessionFormatUnsupportedError(msg, hint=hint)
        return await self.database.write(_upgrade, session_id, self.formats)

    async def known_session(self, session_id: str) -> SessionRow:
        """As :meth:`session`, of one that there is.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        row = await self.session(session_id)
        if row is None:
            raise session_not_found(session_id)
        return row

    async def verify(self, session_id: str) -> None:
        """Compare every stored event of a session with its digest.

        Raises:
            SessionLogCorruptError: an event is missing, or is not what was written.
        """
        row = await self.session(session_id)
        if row is not None:
            await self.database.read(_verify, row)

    async def raw(self, session_id: str) -> dict[str, Any] | None:
        """A session as it is stored, undecoded, whatever its format or damage; or ``None``."""
        return await self.database.read(_raw, session_id)


def _upgrade(connection: Connection, session_id: str, formats: LogFormats) -> SessionRow | None:
    row = session_rows.find_session(connection, session_id, lock=True)
    if row is None or row.version == formats.version:
        return row  # another process was faster
    if row.is_busy:
        msg = f"A run of session {session_id!r} began meanwhile."
        raise LogConflictError(msg)
    stored = _verify(connection, row)
    old = read_events(connection, row.log_id, 0)
    new = formats.upgrade(session_id, row.version, old)
    # The uid is part of idempotency keys, so it stays with the session.
    uid = connection.scalar(select(logs.c.uid).where(logs.c.id == row.log_id))
    replaced = logs.c.id == row.log_id
    connection.execute(update(logs).where(replaced).values(uid=uuid.uuid4().hex))
    log_id: int = connection.execute(
        insert(logs)
        .values(uid=uid, parent_id=None, inherited=0, older_id=row.log_id)
        .returning(logs.c.id)
    ).scalar_one()
    written = []
    # Event for event: each one stays at its place and keeps what it is from.
    for event, before in zip(new, stored, strict=True):
        made = encode(NewEvent(event.type, event.data))
        if made.blob is not None:
            put_blob(connection, made.blob, event.time_ms)
        written.append(
            {
                "log_id": log_id,
                "seq": event.seq,
                "type": made.type,
                "time_ms": event.time_ms,
                "data": made.data,
                "ref": made.ref,
                "digest": made.digest,
                "origin": before.origin,
                "ignorable": event.ignorable,
            }
        )
    if written:
        connection.execute(insert(events), written)
    connection.execute(
        update(sessions)
        .where(sessions.c.session_id == session_id)
        .values(log_id=log_id, version=formats.version)
    )
    for table in _BY_LOG:
        connection.execute(update(table).where(table.c.log_id == row.log_id).values(log_id=log_id))
    return session_rows.find_session(connection, session_id)


def _rows(connection: Connection, log_id: int) -> list[Any]:
    query = (
        select(*(events.c[name] for name in _RAW), blobs.c.content)
        .select_from(WITH_CONTENT)
        .where(in_lineage(lineage(connection, log_id), 0))
        .order_by(events.c.seq)
    )
    return list(connection.execute(query))


def _verify(connection: Connection, row: SessionRow) -> list[Any]:
    """All events of a log as they are stored, each one compared with its digest."""
    found = _rows(connection, row.log_id)
    for place, stored in enumerate(found):
        if stored.seq != place or not _is_as_written(stored):
            msg = f"The log of session {row.session_id!r} is damaged at event {place}."
            raise SessionLogCorruptError(msg)
    if len(found) != row.head:
        msg = f"The log of session {row.session_id!r} ends at {len(found)}, before {row.head}."
        raise SessionLogCorruptError(msg)
    return found


def _is_as_written(stored: Any) -> bool:
    try:
        data = json.loads(stored.data)
        bulk = ev.BULK.get(stored.type)
        content = ""
        if stored.ref is not None:
            content = ev.digest_of(stored.content)
        elif bulk is not None:
            content = ev.digest_of(dump(data[bulk]))
        bare = dump({key: value for key, value in data.items() if key != bulk})
    except (TypeError, ValueError, KeyError, AttributeError):
        return False
    whole: str = ev.digest_of(f"{stored.type}\n{bare}\n{content}")
    return whole == stored.digest and stored.ref in (None, content)


def _raw(connection: Connection, session_id: str) -> dict[str, Any] | None:
    row = connection.execute(
        select(sessions).where(sessions.c.session_id == session_id)
    ).one_or_none()
    if row is None:
        return None
    stored = [dict(each._mapping) for each in _rows(connection, row.log_id)]  # noqa: SLF001 - public in SQLAlchemy
    return {"session": dict(row._mapping), "events": stored}  # noqa: SLF001 - as above
