"""The ledger of effects: one row for every model call and tool call.

A row says *started* before the effect and holds the outcome after it. So whoever comes after a
crash knows whether a call never began, may have happened, or is done and what it gave.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select, text, update

from perdure.checkpoint_bridge.blobs import get_blob, put_blob
from perdure.checkpoint_bridge.errors import LogConflictError
from perdure.checkpoint_bridge.events import INLINE_LIMIT, dump
from perdure.checkpoint_bridge.schema import effects, logs

if TYPE_CHECKING:
    from sqlalchemy import Connection

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

    @property
    def done(self) -> bool:
        """Whether the outcome is here."""
        return self.outcome is not None


_RETURNED = "name, started_at, starts, outcome, message, ref, attempts"
_BEGIN = {
    dialect: text(
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
    )
    for dialect, lock in (("sqlite", ""), ("postgresql", "FOR SHARE"))
}
"""One statement for the fence, the mark and the look at the outcome; no row: not the writer.

On PostgreSQL the fence holds until the mark is committed; SQLite has one writer anyway."""

_END = (
    update(effects)
    .where(
        effects.c.log_id == bindparam("b_log_id"),
        effects.c.seq == bindparam("b_seq"),
        effects.c.call_index == bindparam("b_call_index"),
        effects.c.ended_at.is_(None),
    )
    .values(
        ended_at=bindparam("new_ended_at"),
        outcome=bindparam("new_outcome"),
        message=bindparam("new_message"),
        ref=bindparam("new_ref"),
    )
    .returning(*(effects.c[name] for name in _RETURNED.split(", ")))
)


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
        LogConflictError: the session belongs to another run by now; the effect must not happen.
    """
    keys = {"log_id": effect_id.log_id, "seq": effect_id.seq, "call_index": effect_id.index}
    given = {"session_id": session_id, "run_id": run_id, "name": name, "time_ms": time_ms}
    row = connection.execute(_BEGIN[connection.dialect.name], {**keys, **given}).one_or_none()
    if row is None:
        msg = f"The session {session_id} belongs to a newer run; this call must not happen."
        raise LogConflictError(msg)
    return _effect(row, get_blob(connection, row.ref) if row.ref else row.message)


def end_effect(
    connection: Connection,
    effect_id: EffectId,
    *,
    outcome: dict[str, Any],
    message: dict[str, Any],
    time_ms: int,
) -> Effect:
    """Store an effect's outcome. The first one stays: a late second one changes nothing."""
    content = dump(message)
    ref = put_blob(connection, content, time_ms) if len(content) > INLINE_LIMIT else None
    values = {
        "b_log_id": effect_id.log_id,
        "b_seq": effect_id.seq,
        "b_call_index": effect_id.index,
        "new_ended_at": time_ms,
        "new_outcome": dump(outcome),
        "new_message": None if ref else content,
        "new_ref": ref,
    }
    row = connection.execute(_END, values).one_or_none()
    if row is not None:
        return _effect(row, content)
    stored = find_effect(connection, effect_id)
    if stored is None or not stored.done:
        msg = "The session was deleted while one of its calls ran."
        raise LogConflictError(msg)
    return stored


def note_attempt(
    connection: Connection, effect_id: EffectId, attempt: dict[str, Any]
) -> list[dict[str, Any]]:
    """Add a failed attempt (``{error, usage?}``); returns all of them."""
    found = find_effect(connection, effect_id)
    attempts = [*(found.attempts if found else []), attempt]
    connection.execute(update(effects).where(*_is(effect_id)).values(attempts=dump(attempts)))
    return attempts


def find_effect(connection: Connection, effect_id: EffectId) -> Effect | None:
    """The row of an effect, or ``None`` when it was never begun."""
    row = connection.execute(select(effects).where(*_is(effect_id))).one_or_none()
    if row is None:
        return None
    return _effect(row, get_blob(connection, row.ref) if row.ref else row.message)


def log_uid(connection: Connection, log_id: int) -> str:
    """The log's random id, which keeps idempotency keys apart from those of any other log."""
    uid: str = connection.execute(select(logs.c.uid).where(logs.c.id == log_id)).scalar_one()
    return uid


def _effect(row: Any, content: str | None) -> Effect:
    return Effect(
        name=row.name,
        started_at=row.started_at,
        starts=row.starts,
        outcome=None if row.outcome is None else json.loads(row.outcome),
        message=None if content is None else json.loads(content),
        ref=row.ref,
        size=len(content or ""),
        attempts=json.loads(row.attempts),
    )


def _is(effect_id: EffectId) -> tuple[Any, ...]:
    return (
        effects.c.log_id == effect_id.log_id,
        effects.c.seq == effect_id.seq,
        effects.c.call_index == effect_id.index,
    )
