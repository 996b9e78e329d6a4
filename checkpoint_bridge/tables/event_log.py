"""Reads and writes of the event log, inside a transaction that the caller holds.

A fork shares the beginning of its parent's log: its rows start after ``inherited`` events, and
a read follows the line of parents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, bindparam, delete, false, insert, or_, select, update

from perdure.checkpoint_bridge.errors import LogConflictError, SessionLogCorruptError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import (
    Event,
    NewEvent,
    NewSave,
    Origin,
    StoredEvent,
    encode,
)
from perdure.checkpoint_bridge.tables.blobs import put_blob
from perdure.checkpoint_bridge.tables.notices import tell_followers
from perdure.checkpoint_bridge.tables.prepared import Prepared
from perdure.checkpoint_bridge.tables.schema import approvals, blobs, events, logs, saves, sessions
from perdure.checkpoint_bridge.tables.sealing import refuse_sealed_text
from perdure.checkpoint_bridge.tables.sessions import find_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_TITLE_LENGTH = 80
_ERROR_LENGTH = 1000


@dataclass(frozen=True)
class Batch:
    """What one append puts into a session's log."""

    session_id: str
    log_id: int
    run_id: str | None
    """The run that writes; ``None`` for the bridge itself (fork, import)."""
    head: int
    time_ms: int
    events: Sequence[NewEvent]
    saves: Sequence[NewSave] = ()
    take_over: bool = False
    """True when a run opens the session: it becomes the writer if nobody wrote meanwhile."""
    is_seed: bool = False
    """True for events of another log, which a new one begins with."""

    @cached_property
    def encoded(self) -> list[StoredEvent]:
        """The events as they are stored; made once, whoever needs them.

        Raises:
            ConfigurationError: one of them holds what no JSON can say.
        """
        return [encode(event) for event in self.events]


# Built once: making a statement costs more than SQLite needs to run it.
_INSERT_EVENTS = Prepared(insert(events))
_INSERT_SAVES = Prepared(insert(saves))
_CHANGED = (
    *("head", "writer", "title", "updated_at", "has_checkpoint", "status", "step", "last_end"),
    *("turn_sequence", "emitted", "approval_id"),
)
_UPDATE = Prepared(
    update(sessions)
    .where(sessions.c.session_id == bindparam("key"))
    .values({name: bindparam(f"new_{name}", type_=sessions.c[name].type) for name in _CHANGED})
)

WITH_CONTENT = events.outerjoin(blobs, blobs.c.digest == events.c.ref)
_READ = (
    *(events.c.log_id, events.c.seq, events.c.type, events.c.time_ms, events.c.data),
    *(events.c.origin, events.c.ignorable, blobs.c.content),
)


def lock_session(connection: Connection, session_id: str, log_id: int) -> SessionRow | None:
    """A session's row, held until the transaction ends; ``None`` when it was deleted."""
    row = find_session(connection, session_id, lock=True)
    return row if row is not None and row.log_id == log_id else None


def append(
    connection: Connection,
    batch: Batch,
    *,
    keep_saves: int,
    step: int | None = None,
    session: SessionRow | None = None,
) -> int:
    """Append events and saves; returns the log's length after the last of them.

    ``step`` is the step count before the events, where the row does not know it (a new fork);
    ``session`` the row of :func:`lock_session`, where the caller has it. A conflict is found
    before anything is written.

    Doing it again changes nothing: events that are there already with the same digests count
    as appended (the digest leaves the time out).

    What the run's tools emitted since ``head`` does not stand in a run's way: its events go
    behind it, and what is emitted later does not change what this returns.

    Raises:
        LogConflictError: another writer was here, or wrote something else at this place.
    """
    row = session or lock_session(connection, batch.session_id, batch.log_id)
    _check_turn(batch, row)
    assert row is not None
    encoded = batch.encoded
    places: list[int] = []
    if row.head > batch.head:
        places = _already_there(connection, batch, [event.digest for event in encoded])
    there = len(places)
    places.extend(range(row.head, row.head + len(encoded) - there))
    values = {name: getattr(row, name) for name in _CHANGED}
    end = places[-1] + 1 if places else batch.head
    values["head"] = max(row.head, end)
    if batch.take_over:
        values["writer"] = batch.run_id
    if step is not None:
        values["step"] = step
    new = batch.events[there:]
    if new:
        origins = _origins(batch, places[there:], new, values)
        _insert(connection, batch, encoded[there:], row.head, origins)
        _project(connection, batch, new)
        values["updated_at"] = batch.time_ms
        values["title"] = row.title or _title(new)
        values["step"] = _step(values["step"], new)
        values["last_end"] = _last_end(values["last_end"], new)
    # A save that another attempt of this append has made already is not made again.
    new_saves = [save for save in batch.saves if save.after > there]
    if new_saves:
        rows = [(places[save.after - 1] + 1, save) for save in new_saves]
        _save(connection, batch, rows, values["step"], keep_saves)
        values["has_checkpoint"] = True
        values["status"] = new_saves[-1].status
        values["approval_id"] = new_saves[-1].approval_id
    changes = {f"new_{name}": value for name, value in values.items()}
    _UPDATE.run(connection, {"key": batch.session_id, **changes})
    tell_followers(connection, batch.log_id, row.followed_until)
    return end


def _origins(
    batch: Batch, places: Sequence[int], new: Sequence[NewEvent], values: dict[str, Any]
) -> list[str | None]:
    """Whose the events are: the loop's of the newest turn; what the bridge writes is nobody's."""
    origins: list[str | None] = []
    for place, event in zip(places, new, strict=True):
        if event.type == ev.TURN_START:
            values["turn_sequence"], values["emitted"] = place + 1, 0
        own = batch.run_id is not None
        origins.append(f"{ev.LOOP}:{values['turn_sequence']}" if own else None)
    return origins


def _insert(
    connection: Connection,
    batch: Batch,
    encoded: Sequence[StoredEvent],
    first: int,
    origins: Sequence[str | None],
) -> None:
    # In one order for all writers: two that store the same contents never wait for each other.
    for content in sorted({event.blob for event in encoded if event.blob is not None}):
        put_blob(connection, content, batch.time_ms)
    _INSERT_EVENTS.run(
        connection,
        *(
            {
                "log_id": batch.log_id,
                "seq": seq,
                "type": event.type,
                "time_ms": batch.time_ms,
                "data": event.data,
                "ref": event.ref,
                "digest": event.digest,
                "origin": origin,
                "ignorable": False,
            }
            for seq, (event, origin) in enumerate(zip(encoded, origins, strict=True), start=first)
        ),
    )


def _check_turn(batch: Batch, row: SessionRow | None) -> None:
    if row is None:
        raise LogConflictError.of(batch.session_id, kept=False)
    # A run repeats its appends; what the bridge itself writes is new each time.
    if batch.take_over or batch.run_id is None:
        if row.head != batch.head:
            msg = f"The session {batch.session_id} was written to meanwhile."
            raise LogConflictError(msg)
        return
    if batch.run_id is not None and row.writer != batch.run_id:
        raise LogConflictError.of(batch.session_id, kept=True)
    if row.head < batch.head:
        msg = f"The log of {batch.session_id} ends at {row.head}, before {batch.head}."
        raise LogConflictError(msg)


def _already_there(connection: Connection, batch: Batch, digests: list[str]) -> list[int]:
    """Where those of the events are that an earlier attempt of this append has written."""
    stored = connection.execute(
        select(events.c.seq, events.c.digest)
        .where(
            events.c.log_id == batch.log_id,
            events.c.seq >= batch.head,
            # What tools emit is beside the run's own events.
            ~events.c.ignorable,
        )
        .order_by(events.c.seq)
        .limit(len(digests))
    ).all()
    if [row.digest for row in stored] != digests[: len(stored)]:
        msg = f"Something else is at {batch.head} of the log of {batch.session_id}."
        raise LogConflictError(msg)
    return [row.seq for row in stored]


def _project(connection: Connection, batch: Batch, new: Sequence[NewEvent]) -> None:
    for event in new:
        # What a seed tells of another log waits for nobody here.
        if event.type == ev.APPROVAL_REQUESTED and not batch.is_seed:
            # Not of the event itself: announced again after a lost workflow task, it must be
            # the same event.
            pending = {"createdAt": ev.iso(batch.time_ms), **event.data["pending"]}
            connection.execute(
                insert(approvals).values(
                    id=event.data["id"],
                    log_id=batch.log_id,
                    session_id=batch.session_id,
                    run_id=batch.run_id or "",
                    seq=event.data["seq"],
                    call_index=event.data["index"],
                    pending=ev.dump(pending),
                    created_at=batch.time_ms,
                )
            )


def _title(new: Sequence[NewEvent]) -> str:
    from perdure.checkpoint_bridge.format.messages import text_of

    for event in new:
        if event.type == ev.USER_MESSAGE and "message" in event.data:
            messages = [event.data["message"]]
        elif event.type == ev.TRANSCRIPT_DELTA and "append" in event.data:
            messages = event.data["append"]
        else:
            continue
        for message in messages:
            if isinstance(message, dict) and message.get("role") == "user":
                words = text_of(message)[: _TITLE_LENGTH * 4].split()
                text = ev.label(" ".join(words), _TITLE_LENGTH * 4)
                return text if len(text) <= _TITLE_LENGTH else text[: _TITLE_LENGTH - 1] + "…"
    return ""


def _step(step: int, new: Sequence[NewEvent]) -> int:
    for event in new:
        if event.type == ev.TURN_START and event.data.get("fresh"):
            step = 0
        elif event.type == ev.ASSISTANT_MESSAGE:
            step += 1
        elif event.type == ev.CHECKPOINT_SET:
            step = ev.step_of(event.data["fields"])
    return step


def _last_end(before: str | None, new: Sequence[NewEvent]) -> str | None:
    """How the last turn ended, so that a list of sessions can tell it without their logs."""
    for event in new:
        if event.type == ev.TURN_END:
            reason = dict(event.data.get("reason") or {})
            error = reason.get("error")
            if isinstance(error, dict):
                message = ev.label(error.get("message"), _ERROR_LENGTH)
                reason["error"] = {"code": error.get("code"), "message": message}
            before = ev.dump(reason)
        elif event.type in (ev.TURN_START, ev.CHECKPOINT_SET):
            before = None
    return before


def _save(
    connection: Connection,
    batch: Batch,
    new: Sequence[tuple[int, NewSave]],
    step: int,
    keep: int,
) -> None:
    _INSERT_SAVES.run(
        connection,
        *(
            {
                "log_id": batch.log_id,
                "through_seq": through,
                "step": step,
                "status": save.status,
                "finish_reason": save.finish_reason,
                "approval_id": save.approval_id,
                "saved_at": batch.time_ms,
            }
            for through, save in new
        ),
    )
    if new[-1][1].status != ev.IN_PROGRESS:
        # Reads never look beyond the ring, so it need not be cut at each save.
        cut_ring(connection, batch.log_id, keep)


def cut_ring(connection: Connection, log_id: int, keep: int) -> int:
    """Delete all but the newest ``keep`` saves of a log; returns how many."""
    oldest = (
        select(saves.c.through_seq)
        .where(saves.c.log_id == log_id)
        .order_by(saves.c.through_seq.desc())
        .offset(keep - 1)
        .limit(1)
        .scalar_subquery()
    )
    some = delete(saves).where(saves.c.log_id == log_id, saves.c.through_seq < oldest)
    return connection.execute(some).rowcount


def lineage(connection: Connection, log_id: int) -> list[tuple[int, int, int | None]]:
    """The logs that a log is made of, oldest first: ``(log_id, from_seq, to_seq or None)``."""
    line: list[tuple[int, int, int | None]] = []
    end: int | None = None
    current: int | None = log_id
    while current is not None:
        row = (
            connection.execute(
                select(logs.c.parent_id, logs.c.inherited).where(logs.c.id == current)
            )
        ).one_or_none()
        if row is None:
            return []  # its session was deleted
        if end is None or row.inherited < end:
            line.append((current, row.inherited, end))
            end = row.inherited
        current = row.parent_id
    return line[::-1]


def read_events(
    connection: Connection,
    log_id: int,
    start: int,
    end: int | None = None,
    *,
    limit: int | None = None,
) -> list[Event]:
    """Committed events with ``start <= seq < end``, in order, at most ``limit``."""
    query = (
        select(*_READ)
        .select_from(WITH_CONTENT)
        .where(in_lineage(lineage(connection, log_id), start))
        .order_by(events.c.seq)
    )
    if end is not None:
        query = query.where(events.c.seq < end)
    if limit is not None:
        query = query.limit(limit)
    rows = (connection.execute(query)).all()
    return [_event(row, log_id) for row in rows]


def in_lineage(parts: Sequence[tuple[int, int, int | None]], start: int) -> ColumnElement[bool]:
    """The rows of a log from ``start`` on, wherever in its line of parents they are."""
    return or_(
        false(),
        *(
            and_(
                events.c.log_id == part,
                events.c.seq >= max(first, start),
                *((events.c.seq < stop,) if stop is not None else ()),
            )
            for part, first, stop in parts
            if stop is None or stop > start
        ),
    )


def newest_event(
    connection: Connection, log_id: int, *types: str, before: int | None = None
) -> int | None:
    """``seq`` of the newest event of some types, own or inherited, or ``None``."""
    for part, first, stop in reversed(lineage(connection, log_id)):
        query = (
            select(events.c.seq)
            .where(events.c.log_id == part, events.c.seq >= first, events.c.type.in_(types))
            .order_by(events.c.seq.desc())
            .limit(1)
        )
        for end in (stop, before):
            if end is not None:
                query = query.where(events.c.seq < end)
        found: int | None = connection.scalar(query)
        if found is not None:
            return found
    return None


def _event(row: Any, log_id: int) -> Event:
    origin = None
    if row.origin is not None:
        kind, sequence = row.origin.split(":")[:2]
        origin = Origin(kind, int(sequence))
    try:
        data = ev.decode(row.type, row.data, row.content)
    except (TypeError, ValueError, KeyError) as error:
        refuse_sealed_text(row.data)
        msg = f"Event {row.seq} of log {row.log_id} is damaged: {error}"
        raise SessionLogCorruptError(msg) from error
    return Event(
        row.seq,
        row.type,
        row.time_ms,
        data,
        origin,
        ignorable=row.ignorable,
        inherited=row.log_id != log_id,
    )


def newest_saves(connection: Connection, log_id: int, limit: int) -> Sequence[Any]:
    """Rows of the newest saves of a log, newest first."""
    query = select(saves).where(saves.c.log_id == log_id).order_by(saves.c.through_seq.desc())
    return (connection.execute(query.limit(limit))).all()
