"""The turns of a log: where they start, how they ended, and what in them is uncertain."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from perdure.checkpoint_bridge.errors import NotATurnError
from perdure.checkpoint_bridge.format.messages import text_of
from perdure.checkpoint_bridge.format.tool_errors import CANCELLED, TIMEOUT, UNKNOWN_OUTCOME
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.lineage import child_session_id
from perdure.checkpoint_bridge.log.turn_states import FORKED, turn_state
from perdure.checkpoint_bridge.tables.event_log import read_events
from perdure.checkpoint_bridge.tables.ledger import EffectId, find_effect, idempotency_key, log_uid
from perdure.checkpoint_bridge.tables.schema import events, logs
from perdure.checkpoint_bridge.tables.sealing import is_sealed
from perdure.checkpoint_bridge.tables.sessions import find_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.log.events import Event
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_PAGE = 500
_UNCLEAR = frozenset({CANCELLED, TIMEOUT, UNKNOWN_OUTCOME})
"""Kinds of errors of calls that began, and may have had their effect before they were over."""


@dataclass(frozen=True)
class Outcome:
    """What became of one turn. That a session is idle says nothing about it."""

    sequence: int
    """Of the turn's start."""
    state: str
    """``pending``, ``ended`` or ``failed`` (:func:`.turn_state`)."""
    event: Event | None = None
    """The event that ended it; ``None`` while it is pending."""
    answer: str | None = None
    """The last text that the model gave in it."""
    tool_errors: int = 0
    """Results in it that are errors; an ended turn can have some."""
    open_tools: list[str] = field(default_factory=list)
    """Ids of calls without a result."""

    @property
    def reason(self) -> dict[str, Any] | None:
        """How it ended: ``{kind, error?}``."""
        return _reason(self.event)

    @property
    def error(self) -> dict[str, Any] | None:
        """What failed: ``{code, message, retryable?}``."""
        return (self.reason or {}).get("error")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with camelCase keys; absent values have no key."""
        value: dict[str, Any] = {
            "sequence": self.sequence,
            "state": self.state,
            "answer": self.answer,
            "toolErrors": self.tool_errors,
            "openTools": self.open_tools,
        }
        if self.event is not None:
            value["event"] = {
                "sequence": self.event.sequence,
                "type": self.event.type,
                "timeMs": self.event.time_ms,
                "data": self.event.data,
            }
        return {key: item for key, item in value.items() if item is not None}


@dataclass(frozen=True)
class AmbiguousCall:
    """A call that may have had its effect, and nobody can tell from here."""

    session_id: str
    """Whose call it is: the session's that was asked, or of a sub-agent below it."""
    tool: str
    tool_call_id: str
    arguments: Any
    """Its JSON, or the text where the model's arguments are none."""
    idempotency_key: str
    """What its ``ctx.idempotency_key`` was, by which the outside world knows it."""
    sequence: int
    """Of the event that announced it, in the log of its session."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with camelCase keys."""
        return {
            "sessionId": self.session_id,
            "tool": self.tool,
            "toolCallId": self.tool_call_id,
            "arguments": self.arguments,
            "idempotencyKey": self.idempotency_key,
            "sequence": self.sequence,
        }


@dataclass(frozen=True, slots=True)
class TurnStart:
    """Where a turn starts, and what its start says."""

    sequence: int
    data: dict[str, Any]


def turn_starts(
    connection: Connection, log_id: int, *, run_id: str | None = None, claim: str | None = None
) -> list[TurnStart]:
    """The turns of a log's own that a run or a claim has started, newest first."""
    name, value = ("runId", run_id) if claim is None else ("claim", claim)
    query = (
        select(events.c.seq, events.c.data)
        .where(events.c.log_id == log_id, events.c.type == ev.TURN_START)
        .order_by(events.c.seq.desc())
    )
    if not is_sealed(connection):
        says = events.c.data.contains(f'"{name}":{ev.dump(value)}', autoescape=True)
        query = query.where(says)
    found = [TurnStart(row.seq + 1, json.loads(row.data)) for row in connection.execute(query)]
    return [start for start in found if start.data.get(name) == value]


def newest_turn(connection: Connection, log_id: int) -> TurnStart | None:
    """The newest turn of a log's own."""
    query = (
        select(events.c.seq, events.c.data)
        .where(events.c.log_id == log_id, events.c.type == ev.TURN_START)
        .order_by(events.c.seq.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else TurnStart(row.seq + 1, json.loads(row.data))


def outcome_of(connection: Connection, log_id: int, sequence: int) -> Outcome:
    """What became of the turn that starts at ``sequence``, from the log alone.

    Raises:
        NotATurnError: no turn starts there.
    """
    seq = sequence - 1
    first = read_events(connection, log_id, seq, limit=1) if seq >= 0 else []
    if not first or first[0].type != ev.TURN_START:
        msg = f"No turn starts at sequence {sequence}."
        raise NotATurnError(msg, sequence=sequence)
    answer: str | None = None
    errors = 0
    open_calls: dict[tuple[int, int], str] = {}
    end: Event | None = None
    for event in _events(connection, log_id, seq + 1):
        if event.type == ev.TURN_START:
            break
        if event.type == ev.TURN_END:
            end = event
            break
        if event.type == ev.END_SEED and end is None:
            # Where a beginning from elsewhere leaves a turn open, its end follows if it has one.
            end = event
        if event.type == ev.ASSISTANT_MESSAGE:
            message = event.data["message"]
            answer = text_of(message) or answer
            for index, call in enumerate(message.get("toolCalls") or []):
                open_calls[event.seq, index] = str(call.get("id"))
        elif event.type == ev.TOOL_RESULT:
            errors += bool(event.data["message"].get("isError"))
            open_calls.pop((event.data["seq"], event.data["index"]), None)
    state = turn_state(_reason(end))
    return Outcome(sequence, state, end, answer, errors, list(open_calls.values()))


def _reason(end: Event | None) -> dict[str, Any] | None:
    """Why a turn ended, of the event that ended it."""
    return None if end is None else end.data.get("reason") or {"kind": FORKED}


def ambiguous_calls(
    connection: Connection, row: SessionRow, *, cut_short: bool = False
) -> list[AmbiguousCall]:
    """The session's own calls whose outcome is unknown, oldest first.

    Their result says that they were cut short (by a cancel, their deadline or the loss of their
    worker), or a person is being asked what became of them. What a sub-agent's call may have done
    are the calls of the sub-agent, so those stand in its place. ``cut_short``: nobody waits for
    the session, so its calls that began and have no result are unclear as well.
    """
    uid = log_uid(connection, row.log_id)
    found = []
    for place, unclear in _unclear(connection, row.log_id).items():
        if unclear.is_open and not cut_short:
            continue
        child = find_session(connection, child_session_id(row.session_id, row.log_id, *place))
        if child is not None:
            found.extend(ambiguous_calls(connection, child, cut_short=True))
            continue
        if unclear.is_open:
            effect = find_effect(connection, EffectId(row.log_id, *place))
            if effect is None or effect.done:
                continue  # it was announced and had not begun, or the ledger has its outcome
        function = unclear.call.get("function") or {}
        found.append(
            AmbiguousCall(
                session_id=row.session_id,
                tool=str(function.get("name")),
                tool_call_id=str(unclear.call.get("id")),
                arguments=_arguments(str(function.get("arguments") or "")),
                idempotency_key=idempotency_key(row.session_id, uid, *place),
                sequence=unclear.sequence,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _Unclear:
    """A call that the log does not say the outcome of."""

    call: dict[str, Any]
    sequence: int
    is_open: bool
    """It was announced and has no result; it may be going on."""


def _unclear(connection: Connection, log_id: int) -> dict[tuple[int, int], _Unclear]:
    """By their place, oldest first; those of its own alone, not what a fork begins with."""
    inherited = connection.scalar(select(logs.c.inherited).where(logs.c.id == log_id)) or 0
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    announced: dict[tuple[int, int], int] = {}
    unclear: dict[tuple[int, int], _Unclear] = {}
    for event in _events(connection, log_id, 0):
        data = event.data
        if event.type == ev.ASSISTANT_MESSAGE:
            for index, call in enumerate(data["message"].get("toolCalls") or []):
                calls[event.seq, index] = call
            continue
        if event.type not in (ev.TOOL_CALL, ev.APPROVAL_REQUESTED, ev.TOOL_RESULT):
            continue
        place = data["seq"], data["index"]
        if event.type == ev.TOOL_CALL:
            announced[place] = event.sequence
        if event.seq < inherited or place not in calls:
            continue
        is_open = event.type == ev.TOOL_CALL
        if is_open or _says_unclear(event):
            sequence = announced.get(place, event.sequence)
            unclear[place] = _Unclear(calls[place], sequence, is_open)
        elif event.type == ev.TOOL_RESULT:
            unclear.pop(place, None)
    return unclear


def _events(connection: Connection, log_id: int, start: int) -> Iterator[Event]:
    while page := read_events(connection, log_id, start, limit=_PAGE):
        yield from page
        start = page[-1].seq + 1


def _says_unclear(event: Event) -> bool:
    if event.type == ev.APPROVAL_REQUESTED:
        return bool(event.data["pending"].get("kind") == UNKNOWN_OUTCOME)
    return _may_have_happened(event.data["message"])


def _may_have_happened(message: dict[str, Any]) -> bool:
    if not message.get("isError"):
        return False
    try:
        error = json.loads(text_of(message))
    except ValueError:
        return False
    return isinstance(error, dict) and error.get("kind") in _UNCLEAR


def _arguments(raw: str) -> Any:
    try:
        return json.loads(raw) if raw.strip() else {}
    except ValueError:
        return raw
