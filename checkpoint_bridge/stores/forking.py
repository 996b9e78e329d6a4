"""Forks: logs that share their parent's beginning, and what a patch changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import LogConflictError, SessionNotFoundError
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint
from perdure.checkpoint_bridge.format.fork import ForkPatch, apply_patch
from perdure.checkpoint_bridge.format.stable_json import copy_json
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave, dump, label, shared_beginning
from perdure.checkpoint_bridge.log.fold import TAKES_OVER, SessionState
from perdure.checkpoint_bridge.stores.part import StorePart
from perdure.checkpoint_bridge.stores.store import id_taken, no_such_step
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables import sessions
from perdure.checkpoint_bridge.tables.event_log import (
    Batch,
    append,
    newest_event,
    newest_saves,
    read_events,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.tables.database import Database
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_TRIES = 20


class Forkable(StorePart):
    """The part of a store that forks sessions."""

    async def fork(
        self,
        session_id: str,
        *,
        from_step: int,
        patch: ForkPatch | None = None,
        new_session_id: str | None = None,
    ) -> tuple[str, Checkpoint]:
        """Start a session from a step of another one's history, sharing its events.

        Its cost does not grow with the session, unless the patch looks into the transcript.

        Returns:
            The fork's id and its checkpoint, which is read when it is first looked into.

        Raises:
            CheckpointNotFoundError: the history keeps no such step.
            ConfigurationError: the new id is taken, or the patch does not fit.
        """
        await self.session(session_id)  # its log has the current format then
        source, kept = await self.database.read(row_and_saves, session_id, self.history_limit)
        save = next((save for save in kept if save.step == from_step), None)
        if source is None or save is None:
            raise no_such_step(session_id, from_step, {save.step for save in kept})
        if not _looks_into(patch) and not self.database.in_memory:
            made = await self._fork(source, save, None, patch, new_session_id)
            if made is not None:
                fork_id, log_id, end = made
                load = partial(_load, self.database, fork_id, log_id, end, save.finish_reason)
                return fork_id, Checkpoint.later(load)
        state = await self.state(source.log_id, save.through_seq)
        record = apply_patch(checkpoint_at(state, session_id, save), patch)
        made = await self._fork(source, save, (state, record), patch, new_session_id)
        assert made is not None
        return made[0], Checkpoint.from_json({**record, "sessionId": made[0]})

    async def _fork(
        self,
        source: SessionRow,
        save: Any,
        whole: tuple[SessionState, dict[str, Any]] | None,
        patch: ForkPatch | None,
        new_session_id: str | None,
    ) -> tuple[str, int, int] | None:
        for last in tries():
            try:
                made = await self.database.write(
                    _write,
                    source,
                    save,
                    whole,
                    patch,
                    new_session_id=new_session_id,
                    time_ms=now_ms(),
                    keep_saves=self.keep_saves,
                )
            except LogConflictError:
                # Another process took the id between our look and our insert.
                if last:
                    raise
            else:
                if made is not None:
                    self.tell_saved(now_ms())
                return made
        raise AssertionError


def tries() -> Iterator[bool]:
    """Try again where another process was faster; true at the last time."""
    yield from (False,) * (_TRIES - 1)
    yield True


def row_and_saves(
    connection: Connection, session_id: str, count: int
) -> tuple[SessionRow | None, Sequence[Any]]:
    """A session's row and its newest saves, newest first."""
    row = sessions.find_session(connection, session_id)
    return row, newest_saves(connection, row.log_id, count) if row and count else ()


def checkpoint_at(state: SessionState, session_id: str, save: Any) -> dict[str, Any]:
    """The documented record of a save whose events ``state`` has folded."""
    return state.checkpoint(
        session_id,
        status=save.status,
        finish_reason=save.finish_reason,
        approval_id=save.approval_id,
    )


def _looks_into(patch: ForkPatch | None) -> bool:
    return patch is not None and (patch.messages is not None or patch.tool_result is not None)


def _load(
    database: Database, fork_id: str, log_id: int, end: int, finish_reason: str
) -> dict[str, Any]:
    """The checkpoint that a fork began with, whatever has happened to it since."""
    log = database.read_now(read_events, log_id, 0, end)
    if len(log) < end:
        raise SessionNotFoundError(f"The fork {fork_id!r} was deleted before it was read.")
    state = SessionState().fold(log)
    record: dict[str, Any] = copy_json(
        state.checkpoint(fork_id, status=ev.IN_PROGRESS, finish_reason=finish_reason)
    )
    return record


def _write(
    connection: Connection,
    source: SessionRow,
    save: Any,
    whole: tuple[SessionState, dict[str, Any]] | None,
    patch: ForkPatch | None,
    *,
    new_session_id: str | None,
    time_ms: int,
    keep_saves: int,
) -> tuple[str, int, int] | None:
    """Write the fork of ``source`` at ``save``; returns its id, its log and the log's length.

    ``whole`` is the source's fold at that save and the patched checkpoint; without it, ``None``
    is returned where they are needed.

    Raises:
        ConfigurationError: the id is taken (``field`` is ``newSessionId``).
    """
    # The source was read in another transaction: a fork of what is gone would be empty.
    current = sessions.find_session(connection, source.session_id, lock=True)
    if current is None or current.log_id != source.log_id:
        raise no_such_step(source.session_id, save.step, ())
    fork_id = free_id(connection, source.session_id) if new_session_id is None else new_session_id
    taken = sessions.find_session(connection, fork_id, lock=True)
    if taken is not None and (fork_id == source.session_id or taken.status != sessions.CLEARED):
        raise id_taken(fork_id)
    if whole is None and (
        taken is not None or _came_from_outside(connection, source.log_id, save.through_seq)
    ):
        return None
    if taken is not None and whole is not None:
        # Its checkpoint was deleted and its history kept: the fork is the next save of it.
        record = whole[1]
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
        changes = _added(patch) if whole is None else _difference(*whole)
        new = [NewEvent(ev.END_SEED, seed), *changes]
        log_id, head = row.log_id, row.head
    reason = save.finish_reason if whole is None else label(whole[1].get("finishReason"), 64)
    step = save.step if whole is None else whole[0].step
    saved = NewSave(len(new), ev.IN_PROGRESS, reason)
    batch = Batch(fork_id, log_id, None, head, time_ms, new, [saved])
    return fork_id, log_id, append(connection, batch, keep_saves=keep_saves, step=step)


def _came_from_outside(connection: Connection, log_id: int, through: int) -> bool:
    """Whether the checkpoint there is a record from outside, to which nothing was added."""
    deciding = (ev.CHECKPOINT_SET, *TAKES_OVER)
    seq = newest_event(connection, log_id, *deciding, before=through)
    if seq is None:
        return False
    return read_events(connection, log_id, seq, seq + 1)[0].type == ev.CHECKPOINT_SET


def _added(patch: ForkPatch | None) -> list[NewEvent]:
    """The events of a patch that only adds."""
    record = apply_patch({"messages": []}, patch)
    new = [NewEvent(ev.USER_MESSAGE, {"message": message}) for message in record["messages"]]
    if "businessState" in record:
        new.append(NewEvent(ev.BUSINESS_STATE, {"value": record["businessState"]}))
    return new


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
