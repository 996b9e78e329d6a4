"""Forks a session behind an event of its log: it needs no saves, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.creating import session_exists
from perdure.checkpoint_bridge.errors import ForkBoundaryError, LogConflictError
from perdure.checkpoint_bridge.format.tool_errors import NOT_RUN, tool_error_result
from perdure.checkpoint_bridge.format.tool_results import error_result
from perdure.checkpoint_bridge.format.transcript import split_pending_turn
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import Event, NewEvent, NewSave
from perdure.checkpoint_bridge.stores.forking import free_id
from perdure.checkpoint_bridge.stores.store import session_not_found
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables import sessions
from perdure.checkpoint_bridge.tables.event_log import Batch, append, newest_event

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_TRIES = 20
_FORKED = "The conversation was forked before this call had its result; it was not run here."
OPEN_TURN = "PERDURE_OPEN_TURN"


async def fork_behind(
    store: SqlStore,
    session_id: str,
    boundary: int | None = None,
    *,
    close_open_turn: bool = False,
    new_session_id: str | None = None,
) -> str:
    """Start a session that begins with another one's events up to ``boundary``.

    Args:
        store: where both are.
        session_id: the source; a run of it may go on.
        boundary: ``seq`` of the last event to begin with; default: the end of the newest turn
            that has ended.
        close_open_turn: a boundary in the middle of a turn is closed in the fork: calls without
            a result get an error, and the turn ends as ``forked``.
        new_session_id: default: ``<session_id>.fork-<n>``.

    Returns:
        The fork's id.

    Raises:
        SessionNotFoundError: there is no such source.
        ForkBoundaryError: there is no such event, or it is in the middle of a turn.
        SessionExistsError: the new id is taken.
    """
    source = await store.known_session(session_id)
    if boundary is None:
        boundary = await store.database.read(_newest_end, source.log_id)
    if isinstance(boundary, bool) or not isinstance(boundary, int):
        msg = f"The boundary is the seq of an event, not {boundary!r}."
        raise ForkBoundaryError(msg)
    if not 0 <= boundary < source.head:
        msg = f"Session {session_id!r} has no event {boundary}; its last one is {source.head - 1}."
        raise ForkBoundaryError(msg)
    state = await store.state(source.log_id, boundary + 1)
    if state.open_turn is not None and not close_open_turn:
        msg = f"Event {boundary} of session {session_id!r} is inside turn {state.turn}."
        hint = "Fork behind the end of a turn, or with close_open_turn."
        raise ForkBoundaryError(msg, code=OPEN_TURN, hint=hint)
    new, saves = _border(session_id, boundary, state)
    keep = max(1, store.history_limit)
    for remaining in reversed(range(_TRIES)):
        try:
            fork_id = await store.database.write(
                _write,
                source,
                new,
                saves,
                boundary=boundary,
                step=state.step,
                new_session_id=new_session_id,
                keep_saves=keep,
            )
        except LogConflictError:
            # Another process took the id between our look and our insert.
            if not remaining:
                raise
        else:
            store.tell_saved(now_ms())
            return fork_id
    raise AssertionError


def _newest_end(connection: Connection, log_id: int) -> int:
    """Where the newest ended turn ends; before the first turn, where a seeded beginning ends."""
    ended = newest_event(connection, log_id, ev.TURN_END)
    if ended is None:
        ended = newest_event(connection, log_id, ev.END_SEED)
    return -1 if ended is None else ended


def _border(
    session_id: str, boundary: int, state: SessionState
) -> tuple[list[NewEvent], list[NewSave]]:
    """The mark behind the inherited events, and what closes a turn that they leave open."""
    seed = {"inherited": True, "session": session_id, "boundary": boundary}
    new = [NewEvent(ev.END_SEED, seed)]
    if state.open_turn is not None:
        pending = split_pending_turn(state.messages).pending_tool_calls
        for index, call in enumerate(state.calls):
            if pending and call == pending[0]:
                pending = pending[1:]
                tool = str(call["function"]["name"])
                error = tool_error_result(NOT_RUN, tool, _FORKED)
                message = error_result(call["id"], tool, error)
                data = {"seq": state.call_seq, "index": index, "message": message}
                new.append(NewEvent(ev.TOOL_RESULT, data))
        if state.open_step:
            new.append(NewEvent(ev.STEP_END, {"turn": state.turn, "step": state.step}))
        end = {"turn": state.turn, "reason": {"kind": "forked"}}
        new.append(NewEvent(ev.TURN_END, end))
    made = state.copy().fold(
        Event(seq, each.type, 0, each.data) for seq, each in enumerate(new, start=boundary + 1)
    )
    if not made.messages:
        return new, []
    finish_reason = str((made.last_end or {}).get("finishReason") or "stop")
    status = ev.FINISHED if made.finished else ev.IN_PROGRESS
    return new, [NewSave(len(new), status, finish_reason)]


def _write(
    connection: Connection,
    source: SessionRow,
    new: list[NewEvent],
    saves: list[NewSave],
    *,
    boundary: int,
    step: int,
    new_session_id: str | None,
    keep_saves: int,
) -> str:
    # The source was read in another transaction: a fork of what is gone would be empty.
    current = sessions.find_session(connection, source.session_id, lock=True)
    if current is None or current.log_id != source.log_id:
        raise session_not_found(source.session_id)
    fork_id = new_session_id or free_id(connection, source.session_id, reuse=False)
    if sessions.find_session(connection, fork_id) is not None:
        raise session_exists(fork_id)
    row = sessions.create_session(
        connection,
        fork_id,
        agent=source.agent,
        time_ms=now_ms(),
        parent=source,
        inherited=boundary + 1,
    )
    if not saves:
        sessions.set_created(connection, fork_id)
    batch = Batch(fork_id, row.log_id, None, row.head, now_ms(), new, saves)
    append(connection, batch, keep_saves=keep_saves, step=step)
    return fork_id
