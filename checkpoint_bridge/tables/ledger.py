"""The ledger of effects: one row for every model call and tool call.

A row says *started* before the effect and holds the outcome after it. So whoever comes after a
crash knows whether a call never began, may have happened, or is done and what it gave. What the
outcome means for the conversation goes into the log in the same transaction; the message is then
there alone, since it is the larger part of a store.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import bindparam, select, text

from perdure.checkpoint_bridge.errors import LogConflictError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import INLINE_LIMIT, digest_of, dump
from perdure.checkpoint_bridge.tables.blobs import get_blob, put_blob
from perdure.checkpoint_bridge.tables.event_log import append, lock_session, read_events
from perdure.checkpoint_bridge.tables.prepared import Prepared
from perdure.checkpoint_bridge.tables.schema import effects, logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import BindParameter, Connection

    from perdure.checkpoint_bridge.tables.event_log import Batch

MODEL_CALL = -1
"""The index under which a turn's model call itself is kept."""

TURN_HOOK = -2
"""The index under which the hook at a turn's end is kept, at the place where the turn ended."""


@dataclass(frozen=True, slots=True)
class EffectId:
    """Names one effect: never reused, in any turn, session or fork."""

    log_id: int
    seq: int
    index: int


def idempotency_key(session_id: str, log_uid: str, seq: int, index: int) -> str:
    """The key of a call: the same at every attempt, and of no other call anywhere.

    The log's random id keeps keys apart when a session starts over under its old id.
    """
    return f"{session_id}:{log_uid[:12]}:{seq}.{index}"


@dataclass(slots=True)
class Effect:
    """A row of the ledger."""

    name: str
    started_at: int = 0
    """When it was begun first, in Unix milliseconds."""
    starts: int = 0
    """How often it was begun, this time included."""
    outcome: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    ref: str | None = None
    size: int = 0
    attempts: list[dict[str, Any]] = field(default_factory=list)
    head: int | None = None
    """Length of the log with what the outcome meant for it, where that was written with it."""
    late: bool = field(default=False, compare=False)
    """Another attempt's outcome was there first, and this is that one."""

    @property
    def done(self) -> bool:
        """Whether the outcome is here."""
        return self.outcome is not None


class _Row(NamedTuple):
    """What is read of a row."""

    name: str
    started_at: int
    starts: int
    outcome: str | None
    message: str | None
    ref: str | None
    attempts: str


_RETURNED = ", ".join(_Row._fields)
_COLUMNS = [effects.c[name] for name in _Row._fields]


def _typed(*names: str) -> list[BindParameter[Any]]:
    """Parameters of a statement in SQL, with the types of their columns."""
    return [bindparam(name, type_=effects.c[name].type) for name in names]


_BEGIN = {
    dialect: Prepared(
        text(
            f"""
        INSERT INTO perdure_effects
            (log_id, seq, call_index, name, starts, started_at, attempts)
        SELECT log_id, :seq, :call_index, :name, 1, :time_ms, '[]'
        FROM perdure_sessions
        WHERE session_id = :session_id AND log_id = :log_id AND writer = :run_id
        {lock}
        ON CONFLICT (log_id, seq, call_index) DO UPDATE SET starts = perdure_effects.starts
            + CASE WHEN perdure_effects.ended_at IS NULL THEN 1 ELSE 0 END
        RETURNING {_RETURNED}
        """  # noqa: S608 - constants
        ).columns(*_COLUMNS)
    )
    for dialect, lock in (("sqlite", ""), ("postgresql", "FOR SHARE"))
}
"""One statement for the fence, the mark and the look at the outcome; no row: not the writer.

On PostgreSQL the fence holds until the mark is committed; SQLite has one writer anyway."""

_END = Prepared(
    text(
        f"""
    INSERT INTO perdure_effects (log_id, seq, call_index, name, starts, started_at, ended_at,
        outcome, message, ref, attempts)
    VALUES (:log_id, :seq, :call_index, :name, 1, :time_ms, :time_ms, :outcome, :message, :ref,
        '[]')
    ON CONFLICT (log_id, seq, call_index) DO UPDATE SET ended_at = excluded.ended_at,
        outcome = excluded.outcome, message = excluded.message, ref = excluded.ref
        WHERE perdure_effects.ended_at IS NULL
    RETURNING {_RETURNED}
    """  # noqa: S608 - constants
    )
    .bindparams(*_typed("outcome", "message", "ref"))
    .columns(*_COLUMNS)
)
_KEEP = text(
    """
    UPDATE perdure_effects SET message = :message, ref = :ref
    WHERE log_id = :log_id AND seq = :seq AND call_index = :call_index
    """
).bindparams(*_typed("message", "ref"))
_FIND = Prepared(
    text(
        f"""
    SELECT {_RETURNED} FROM perdure_effects
    WHERE log_id = :log_id AND seq = :seq AND call_index = :call_index
    """  # noqa: S608 - constants
    ).columns(*_COLUMNS)
)
_UID = Prepared(select(logs.c.uid).where(logs.c.id == bindparam("log_id")))
_NOTE = text(
    """
    INSERT INTO perdure_effects
        (log_id, seq, call_index, name, starts, started_at, attempts)
    VALUES (:log_id, :seq, :call_index, :name, 1, :time_ms, :attempts)
    ON CONFLICT (log_id, seq, call_index) DO UPDATE SET attempts = excluded.attempts
    """
).bindparams(*_typed("attempts"))


def begin_effect(
    connection: Connection,
    effect_id: EffectId,
    *,
    session_id: str,
    run_id: str,
    name: str,
    time_ms: int,
) -> Effect:
    """Mark an effect as started, or find its outcome when it has one (then nothing is marked).

    Raises:
        LogConflictError: the session is another run's by now, or gone; the effect must not happen.
    """
    given = {"session_id": session_id, "run_id": run_id, "name": name, "time_ms": time_ms}
    row = _BEGIN[connection.dialect.name].one(connection, {**_keys(effect_id), **given})
    if row is None:
        kept = lock_session(connection, session_id, effect_id.log_id) is not None
        raise LogConflictError.of(session_id, kept=kept)
    return _found(connection, effect_id, _Row(*row))


def end_effect(
    connection: Connection,
    effect_id: EffectId,
    *,
    session_id: str,
    name: str,
    outcome: dict[str, Any],
    message: dict[str, Any],
    time_ms: int,
    record: Callable[[Effect, int], Batch | None] | None = None,
    keep_saves: int = 1,
) -> Effect:
    """Store an effect's outcome. The first one stays: a late second one changes nothing.

    Args:
        connection: with a transaction for writing.
        effect_id: which effect; one that was never marked as started is now.
        session_id: the session that it belongs to.
        name: of the model or the tool.
        outcome: what is not the message.
        message: the message that it came to.
        time_ms: now.
        record: makes of the stored outcome, and the log's length, what it means for the log.
            Where the log has gone another way meanwhile (the run was closed, or replaced by
            another one), the outcome alone is stored, and the effect's ``head`` is ``None``.
        keep_saves: see :func:`.event_log.append`.

    Raises:
        LogConflictError: the session was deleted meanwhile.
    """
    session = lock_session(connection, session_id, effect_id.log_id)
    if session is None:
        raise LogConflictError.of(session_id, kept=False)
    content = dump(message)
    ref = put_blob(connection, content, time_ms) if len(content) > INLINE_LIMIT else None
    kept: dict[str, Any] = {"message": None if ref else content, "ref": ref}
    nowhere = dict.fromkeys(kept)
    values = {"name": name, "time_ms": time_ms, "outcome": dump(outcome)}
    values |= kept if record is None else nowhere
    row = _END.one(connection, {**_keys(effect_id), **values})
    if row is None:
        effect = find_effect(connection, effect_id)
        assert effect is not None
        effect.late = True
    else:
        effect = _effect(_Row(*row), content, ref)
    batch = record(effect, session.head) if record is not None else None
    if batch is not None:
        with contextlib.suppress(LogConflictError):
            effect.head = append(connection, batch, keep_saves=keep_saves, session=session)
    if record is not None and effect.head is None and not effect.late:
        connection.execute(_KEEP, {**_keys(effect_id), **kept})
    return effect


def note_attempt(
    connection: Connection,
    effect_id: EffectId,
    attempt: dict[str, Any],
    *,
    name: str,
    time_ms: int,
) -> list[dict[str, Any]]:
    """Add a failed attempt (``{error, usage?}``); returns all of them."""
    found = find_effect(connection, effect_id)
    attempts = [*(found.attempts if found else []), attempt]
    values = {"name": name, "time_ms": time_ms, "attempts": dump(attempts)}
    connection.execute(_NOTE, {**_keys(effect_id), **values})
    return attempts


def find_effect(connection: Connection, effect_id: EffectId) -> Effect | None:
    """The row of an effect, or ``None`` when it was never begun."""
    row = _FIND.one(connection, _keys(effect_id))
    return None if row is None else _found(connection, effect_id, _Row(*row))


def log_uid(connection: Connection, log_id: int) -> str:
    """The log's random id, which keeps idempotency keys apart from those of any other log.

    Raises:
        LogConflictError: the session was deleted meanwhile.
    """
    row = _UID.one(connection, {"log_id": log_id})
    if row is None:
        msg = "The session was deleted while one of its calls ran."
        raise LogConflictError(msg)
    return str(row[0])


def _found(connection: Connection, effect_id: EffectId, row: _Row) -> Effect:
    """The effect of a row, with its message, wherever that is."""
    content, ref = row.message, row.ref
    if ref is not None:
        content = get_blob(connection, ref)
    elif content is None and row.outcome is not None:
        content = _recorded(connection, effect_id)
        ref = digest_of(content) if content and len(content) > INLINE_LIMIT else None
    return _effect(row, content, ref)


def _recorded(connection: Connection, effect_id: EffectId) -> str | None:
    """The message that an effect came to, as the log has it."""
    is_answer = effect_id.index == MODEL_CALL
    for event in read_events(connection, effect_id.log_id, effect_id.seq):
        if event.type == ev.ASSISTANT_MESSAGE and is_answer:
            return dump(event.data["message"])
        if event.type == ev.TOOL_RESULT:
            place = (event.data["seq"], event.data["index"])
            if place == (effect_id.seq, effect_id.index):
                return dump(event.data["message"])
    return None


def _effect(row: _Row, content: str | None, ref: str | None) -> Effect:
    return Effect(
        name=row.name,
        started_at=row.started_at,
        starts=row.starts,
        outcome=None if row.outcome is None else json.loads(row.outcome),
        message=None if content is None else json.loads(content),
        ref=ref,
        size=len(content or ""),
        attempts=json.loads(row.attempts),
    )


def _keys(effect_id: EffectId) -> dict[str, int]:
    return {"log_id": effect_id.log_id, "seq": effect_id.seq, "call_index": effect_id.index}
