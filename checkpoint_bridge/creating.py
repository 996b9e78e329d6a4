"""Makes a session before its first run: empty, or with a beginning that came from elsewhere."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    LogConflictError,
    SessionExistsError,
)
from perdure.checkpoint_bridge.format.stable_json import is_deeper
from perdure.checkpoint_bridge.format.transcript import assert_valid, input_messages
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import Event, NewEvent, NewSave
from perdure.checkpoint_bridge.log.fold import SessionState
from perdure.checkpoint_bridge.log.headers import header_text
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables import sessions
from perdure.checkpoint_bridge.tables.event_log import Batch, append

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

_MESSAGE_EVENTS = {"user": ev.USER_MESSAGE, "system": ev.SYSTEM_MESSAGE}


async def create_session(
    store: SqlStore,
    session_id: str,
    *,
    agent: str,
    beginning: Sequence[Event] = (),
    cwd: str | None = None,
    metadata: dict[str, Any] | None = None,
    claim: str | None = None,
) -> None:
    """Make a session that no run has opened yet, in one transaction.

    Args:
        store: where.
        session_id: its id.
        agent: the name of its agent.
        beginning: what its log begins with (:func:`from_transcript`, :func:`from_events`).
        cwd: the directory that it is about.
        metadata: a JSON object to keep in its header.
        claim: of the idempotency key that it is made under; kept in its header.

    Raises:
        SessionExistsError: the store has a session of this id.
        ConfigurationError: a value cannot be stored.
    """
    header = header_text(cwd=cwd, metadata=metadata, is_seeded=bool(beginning), claim=claim)
    time_ms = now_ms()
    border, saves = _border(beginning)
    keep = max(1, store.history_limit)

    def create(connection: Connection) -> None:
        if sessions.find_session(connection, session_id) is not None:
            raise session_exists(session_id)
        row = sessions.create_session(
            connection, session_id, agent=agent, time_ms=time_ms, header=header
        )
        head = 0
        # An event keeps the time that it had where it comes from.
        for moment, group in groupby(beginning, key=lambda event: event.time_ms):
            new = [NewEvent(event.type, event.data) for event in group]
            batch = Batch(session_id, row.log_id, None, head, moment or time_ms, new, is_seed=True)
            head = append(connection, batch, keep_saves=keep)
        sessions.set_created(connection, session_id)
        batch = Batch(session_id, row.log_id, None, head, time_ms, border, saves)
        append(connection, batch, keep_saves=keep)
        if store.retention is not None:
            store.retention.apply(connection, session_id, agent, time_ms)

    if await store.session(session_id) is None:
        await store.hooks.created(session_id)
    try:
        await store.database.write(create)
    except LogConflictError:
        # Another process took the id between our look and our insert.
        raise session_exists(session_id) from None
    if saves:
        store.tell_saved(time_ms)


def _border(beginning: Sequence[Event]) -> tuple[list[NewEvent], list[NewSave]]:
    """What stands between a beginning and what the session itself does; and its checkpoint."""
    if not beginning:
        return [], []
    border = [NewEvent(ev.END_SEED, {"inherited": False})]
    state = SessionState().fold(beginning)
    if state.open_turn is not None:
        reason = {"kind": "interrupted"}
        border.append(NewEvent(ev.TURN_END, {"turn": state.turn, "reason": reason}))
    state.fold(_as_appended(border, state.through))
    if not state.messages:
        return border, []
    finish_reason = str((state.last_end or {}).get("finishReason") or "stop")
    status = ev.FINISHED if state.finished else ev.IN_PROGRESS
    return border, [NewSave(len(border), status, finish_reason)]


def _as_appended(new: Iterable[NewEvent], head: int) -> list[Event]:
    return [Event(seq, each.type, 0, each.data) for seq, each in enumerate(new, start=head)]


def from_transcript(given: Any) -> list[Event]:
    """Messages of the documented format as the events that open a log.

    Raises:
        ConfigurationError: they are none, or no provider would take them in this order.
    """
    messages = input_messages(given)
    if is_deeper(messages):
        msg = "The transcript is nested too deep."
        raise ConfigurationError(msg, field="transcript")
    try:
        ev.dump(messages)
        assert_valid(messages)
    except (TypeError, ValueError) as error:
        msg = f"The transcript is not one that a model can be sent: {error}"
        raise ConfigurationError(msg, field="transcript") from error
    found = []
    for seq, message in enumerate(messages):
        kind = _MESSAGE_EVENTS.get(message["role"])
        if kind is None:
            # What a model or a tool said elsewhere is no call of this session: it costs nothing.
            found.append(Event(seq, ev.TRANSCRIPT_DELTA, 0, {"keep": seq, "append": [message]}))
        else:
            found.append(Event(seq, kind, 0, {"message": message}))
    return found


def from_events(given: Iterable[Any]) -> list[Event]:
    """Events of another log, to begin one with: numbered from 0 without a gap, as they are.

    Raises:
        ConfigurationError: they are not the beginning of a log; ``field`` is ``seed``.
    """
    found = []
    for seq, each in enumerate(given):
        event = each if isinstance(each, Event) else _read_event(each, seq)
        # A seed does not say who wrote an event, nor that it may be skipped.
        event = Event(event.seq, event.type, event.time_ms, event.data)
        if event.seq != seq:
            msg = f"The seed has seq {event.seq} at place {seq}: it is contiguous from 0."
            raise ConfigurationError(msg, field="seed")
        found.append(event)
    try:
        for event in found:
            ev.encode(NewEvent(event.type, event.data))
        SessionState().fold(found)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        msg = f"The seed is not a log: {type(error).__name__} {error}"
        raise ConfigurationError(msg, field="seed") from error
    return found


def _read_event(value: Any, seq: int) -> Event:
    """An event as ``perdure events --json`` prints it."""
    form = '{"seq": 0, "type": "…", "timeMs": …, "data": {…}}'
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
        msg = f"Event {seq} of the seed is not of the form {form}."
        raise ConfigurationError(msg, field="seed")
    kind, number, time = value.get("type"), value.get("seq"), value.get("timeMs", 0)
    if (
        not isinstance(kind, str)
        or not 0 < len(kind) <= _TYPE_LENGTH
        or not isinstance(number, int)
        or not isinstance(time, int)
        or is_deeper(value)
    ):
        msg = f"Event {seq} of the seed is not of the form {form}."
        raise ConfigurationError(msg, field="seed")
    return Event(number, kind, time, value["data"])


_TYPE_LENGTH = 64


def session_exists(session_id: str) -> SessionExistsError:
    """The error for an id of a session that was to be new."""
    return SessionExistsError(f"There is a session {session_id!r} already.")
