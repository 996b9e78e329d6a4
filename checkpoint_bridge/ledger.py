"""The ledger of effects: one row for every model call and tool call.

A row says *started* before the effect and holds the outcome after it. So whoever comes after a
crash knows whether a call never began, may have happened, or is done and what it gave.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update

from perdure.checkpoint_bridge.blobs import put_blob
from perdure.checkpoint_bridge.errors import LogConflictError
from perdure.checkpoint_bridge.events import INLINE_LIMIT, dump
from perdure.checkpoint_bridge.schema import blobs, effects, logs, sessions

if TYPE_CHECKING:
    from sqlalchemy import Connection

MODEL_CALL = -1
"""The index under which a turn's model call itself is kept."""


@dataclass(frozen=True, slots=True)
class EffectId:
    """Names one effect: never reused, in any turn, session or fork."""

    log_id: int
    seq: int
    index: int


@dataclass(slots=True)
class Effect:
    """A row of the ledger."""

    name: str
    log_uid: str
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
    owner = (
        connection.execute(
            select(logs.c.uid, sessions.c.writer)
            .select_from(sessions.join(logs, logs.c.id == sessions.c.log_id))
            .where(sessions.c.session_id == session_id, sessions.c.log_id == effect_id.log_id)
        )
    ).one_or_none()
    if owner is None or owner.writer != run_id:
        msg = f"The session {session_id} belongs to a newer run; this call must not happen."
        raise LogConflictError(msg)
    found = find_effect(connection, effect_id)
    if found is None:
        connection.execute(
            insert(effects).values(
                log_id=effect_id.log_id,
                seq=effect_id.seq,
                call_index=effect_id.index,
                name=name,
                starts=1,
                started_at=time_ms,
                attempts="[]",
            )
        )
        return Effect(name=name, log_uid=owner.uid, starts=1)
    found.log_uid = owner.uid
    if not found.done:
        found.starts += 1
        connection.execute(update(effects).where(*_is(effect_id)).values(starts=found.starts))
    return found


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
    ref = None
    if len(content) > INLINE_LIMIT:
        ref = put_blob(connection, content, time_ms)
    connection.execute(
        update(effects)
        .where(*_is(effect_id), effects.c.ended_at.is_(None))
        .values(
            ended_at=time_ms,
            outcome=dump(outcome),
            message=None if ref else content,
            ref=ref,
        )
    )
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
    row = (
        connection.execute(
            select(effects, blobs.c.content, logs.c.uid)
            .select_from(
                effects.join(logs, logs.c.id == effects.c.log_id).outerjoin(
                    blobs, blobs.c.digest == effects.c.ref
                )
            )
            .where(*_is(effect_id))
        )
    ).one_or_none()
    if row is None:
        return None
    content = row.content if row.ref else row.message
    return Effect(
        name=row.name,
        log_uid=row.uid,
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
