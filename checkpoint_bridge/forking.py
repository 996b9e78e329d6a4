"""Writes a fork: a log that shares its parent's beginning, and what the patch changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge import events as ev, sessions
from perdure.checkpoint_bridge.errors import CheckpointNotFoundError, ConfigurationError
from perdure.checkpoint_bridge.event_log import Batch, append
from perdure.checkpoint_bridge.events import NewEvent, NewSave

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.fold import SessionState
    from perdure.checkpoint_bridge.sessions import SessionRow


def no_such_step(session_id: str, step: int, kept: Collection[int]) -> CheckpointNotFoundError:
    """The error for a step that the history does not keep (format page, *History*)."""
    steps = sorted(kept)
    shown = ", ".join(map(str, steps)) or "none"
    msg = f"fork: session {session_id!r} has no checkpoint of step {step} (steps kept: {shown})"
    return CheckpointNotFoundError(msg, kept=steps)


def fork_session(
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
    fork_id = new_session_id or _free_id(connection, source.session_id)
    if sessions.find_session(connection, fork_id) is not None:
        msg = f"fork: session {fork_id!r} already has a checkpoint."
        raise ConfigurationError(msg, field="newSessionId")
    row = sessions.create_session(
        connection,
        fork_id,
        agent=source.agent,
        time_ms=time_ms,
        parent=source,
        inherited=save.through_seq,
    )
    new = [
        NewEvent(ev.END_SEED, {"inherited": True, "session": source.session_id, "step": save.step}),
        *_difference(state, record),
    ]
    saved = NewSave(len(new), ev.IN_PROGRESS, record.get("finishReason") or "")
    batch = Batch(fork_id, row.log_id, None, row.head, time_ms, new, [saved])
    append(connection, batch, keep_saves=keep_saves, step=state.step)
    return fork_id


def _difference(state: SessionState, record: dict[str, Any]) -> list[NewEvent]:
    """The events that turn the shared beginning into ``record``."""
    new = []
    messages = record["messages"]
    keep = 0
    while keep < min(len(state.messages), len(messages)) and state.messages[keep] == messages[keep]:
        keep += 1
    if keep < len(state.messages) or keep < len(messages):
        data = {"keep": keep, "append": messages[keep:]}
        new.append(NewEvent(ev.TRANSCRIPT_DELTA, data))
    if state.raw is not None:
        fields = {key: value for key, value in record.items() if key != "messages"}
        new.append(NewEvent(ev.CHECKPOINT_SET, {"fields": fields}))
    elif "businessState" in record:
        had = "businessState" in state.fields
        if not had or state.fields["businessState"] != record["businessState"]:
            new.append(NewEvent(ev.BUSINESS_STATE, {"value": record["businessState"]}))
    return new


def _free_id(connection: Connection, session_id: str) -> str:
    number = 1
    while sessions.find_session(connection, f"{session_id}.fork-{number}") is not None:
        number += 1
    return f"{session_id}.fork-{number}"
