"""Writes a fork: a log that shares its parent's beginning, and what the patch changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge import events as ev, sessions
from perdure.checkpoint_bridge.event_log import Batch, append
from perdure.checkpoint_bridge.events import NewEvent, NewSave, dump, label, shared_beginning
from perdure.checkpoint_bridge.store import id_taken, no_such_step

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.fold import SessionState
    from perdure.checkpoint_bridge.sessions import SessionRow


def write_fork(
    connection: Connection,
    source: SessionRow,
    save: Any,
    state: SessionState,
    record: dict[str, Any],
    *,
    new_session_id: str | None,
    time_ms: int,
    keep_saves: int,
) -> str:
    """Write the fork of ``source`` at ``save``, so that its checkpoint is ``record``.

    ``state`` is the source's fold at that save; ``record`` is the patched checkpoint. Returns
    the fork's id.

    Raises:
        ConfigurationError: the id is taken (``field`` is ``newSessionId``).
    """
    # The source was read in another transaction: a fork of what is gone would be empty.
    current = sessions.find_session(connection, source.session_id, lock=True)
    if current is None or current.log_id != source.log_id:
        raise no_such_step(source.session_id, save.step, ())
    fork_id = free_id(connection, source.session_id) if new_session_id is None else new_session_id
    taken = sessions.find_session(connection, fork_id, lock=True)
    if taken is not None:
        if fork_id == source.session_id or taken.status != sessions.CLEARED:
            raise id_taken(fork_id)
        # Its checkpoint was deleted and its history kept: the fork is the next save of it.
        fields = {key: value for key, value in record.items() if key != "messages"}
        new = [
            NewEvent(ev.TRANSCRIPT_DELTA, {"keep": 0, "append": record["messages"]}),
            NewEvent(ev.CHECKPOINT_SET, {"fields": fields}),
        ]
        log_id, head = taken.log_id, taken.head
    else:
        row = sessions.create_session(
            connection,
            fork_id,
            agent=source.agent,
            time_ms=time_ms,
            parent=source,
            inherited=save.through_seq,
        )
        seed = {"inherited": True, "session": source.session_id, "step": save.step}
        new = [NewEvent(ev.END_SEED, seed), *_difference(state, record)]
        log_id, head = row.log_id, row.head
    saved = NewSave(len(new), ev.IN_PROGRESS, label(record.get("finishReason"), 64))
    batch = Batch(fork_id, log_id, None, head, time_ms, new, [saved])
    append(connection, batch, keep_saves=keep_saves, step=state.step)
    return fork_id


def _difference(state: SessionState, record: dict[str, Any]) -> list[NewEvent]:
    """The events that turn the shared beginning into ``record``."""
    new = []
    messages = record["messages"]
    keep = shared_beginning(state.messages, messages)
    if keep < len(state.messages) or keep < len(messages):
        data = {"keep": keep, "append": messages[keep:]}
        new.append(NewEvent(ev.TRANSCRIPT_DELTA, data))
    if state.raw is not None:
        fields = {key: value for key, value in record.items() if key != "messages"}
        new.append(NewEvent(ev.CHECKPOINT_SET, {"fields": fields}))
    elif "businessState" in record:
        had = "businessState" in state.fields
        if not had or dump(state.fields["businessState"]) != dump(record["businessState"]):
            new.append(NewEvent(ev.BUSINESS_STATE, {"value": record["businessState"]}))
    return new


def free_id(connection: Connection, session_id: str, *, reuse: bool = True) -> str:
    """The next id for a fork; ``reuse``: one whose checkpoint was deleted counts as free."""
    number = 1
    while not _is_free(connection, f"{session_id}.fork-{number}", reuse=reuse):
        number += 1
    return f"{session_id}.fork-{number}"


def _is_free(connection: Connection, session_id: str, *, reuse: bool) -> bool:
    row = sessions.find_session(connection, session_id)
    return row is None or (reuse and row.status == sessions.CLEARED)
