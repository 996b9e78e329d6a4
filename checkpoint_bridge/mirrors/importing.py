"""Brings sessions from another store into ours, with their history and what they wait for.

A session comes over in one transaction: all of it is there, or nothing. Its records are kept key
for key; only what lists say of it (and what a run goes on from) follows our own rules:

- A pause whose approval record is there too waits for the same decision, under the same id.
- A pause without one cannot be decided by anybody, so the session counts as in progress: its
  call is gated again when it is resumed.
- An old approval record, which does not name the calls after the paused one: those are not run,
  and each gets an error result that says so (format page, *Approval records*).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    LogConflictError,
    PerdureError,
    SessionConflictError,
    SessionNotFoundError,
    StorageError,
)
from perdure.checkpoint_bridge.format._record import member, plain
from perdure.checkpoint_bridge.format.checkpoint import HistoryEntry
from perdure.checkpoint_bridge.format.snapshots import last_calls
from perdure.checkpoint_bridge.format.stable_json import copy_json, json_equal, to_json_text
from perdure.checkpoint_bridge.format.tool_errors import (
    NOT_REACHED_MESSAGE,
    NOT_RUN,
    tool_error_result,
)
from perdure.checkpoint_bridge.format.transcript import split_pending_turn, tool_message
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.checkpoint_bridge.log.record_events import record_events
from perdure.checkpoint_bridge.stores.store import (
    ApprovalStore,
    ListingStore,
    get_checkpoint_history,
)
from perdure.checkpoint_bridge.stores.stored import check_checkpoint_id, now_ms
from perdure.checkpoint_bridge.tables import sessions
from perdure.checkpoint_bridge.tables.event_log import Batch, append

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.format.stable_json import JsonObject
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.stores.store import CheckpointStore
    from perdure.checkpoint_bridge.stores.stored import StoredApproval

__all__ = ["Imported", "import_all", "import_session"]


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one session."""

    session_id: str
    saves: int = 0
    """How many came over; 0 when our store has all of it already."""
    approval_id: str | None = None
    """What it waits for."""
    error: PerdureError | None = None
    """Why it stayed where it is (of :func:`import_all`)."""


@dataclass(frozen=True, slots=True)
class _Save:
    record: JsonObject
    time_ms: int


async def import_session(
    source: CheckpointStore, store: SqlStore, session_id: str, *, agent: str | None = None
) -> Imported:
    """Bring one session over; the source stays as it is.

    Args:
        source: any documented store; one without a history gives its checkpoint alone.
        store: where the session is to be.
        session_id: its id, here and there.
        agent: who is to continue it; default: the checkpoint's ``agentId``.

    Raises:
        SessionNotFoundError: the source has no checkpoint of it.
        SessionConflictError: our store has another session of this id.
        SessionIdInvalidError: the id cannot be one.
        StorageError: a store cannot be used, or the record is damaged.
    """
    return await _import(source, store, session_id, agent, None)


async def import_all(
    source: CheckpointStore,
    store: SqlStore,
    session_ids: Iterable[str] | None = None,
    *,
    agent: str | None = None,
) -> AsyncIterator[Imported]:
    """Bring many sessions over, one after the other; one that cannot be does not stop the rest.

    Args:
        source: as for :func:`import_session`.
        store: as for :func:`import_session`.
        session_ids: which; default: all that the source has.
        agent: as for :func:`import_session`.

    Raises:
        ConfigurationError: the source cannot say which sessions it has (``field`` is ``session``).
        StorageError: the source cannot be read.
    """
    if session_ids is None:
        if not isinstance(source, ListingStore):
            msg = f"{type(source).__name__} does not list its sessions; name those to import."
            raise ConfigurationError(msg, field="session")
        session_ids = await source.session_ids()
    approvals = await source.pending_approvals() if isinstance(source, ApprovalStore) else []
    for session_id in session_ids:
        try:
            yield await _import(source, store, session_id, agent, approvals)
        except PerdureError as error:
            yield Imported(session_id, error=error)


async def _import(
    source: CheckpointStore,
    store: SqlStore,
    session_id: str,
    agent: str | None,
    approvals: Sequence[StoredApproval] | None,
) -> Imported:
    check_checkpoint_id(session_id)
    loaded = await source.load(session_id)
    if loaded is None:
        msg = f"{type(source).__name__} has no checkpoint of session {session_id!r}."
        raise SessionNotFoundError(msg)
    saves = await _saves(source, session_id, plain(loaded))
    if await store.session(session_id) is not None:
        return await _present(store, session_id, saves)
    newest = saves[-1].record
    if approvals is None and newest.get("status") == ev.AWAITING_APPROVAL:
        approvals = await source.pending_approvals() if isinstance(source, ApprovalStore) else []
    waits = _Pause.of(newest, approvals or (), session_id)
    if waits is not None and await store.approval(waits.approval_id) is not None:
        waits = None  # the id is in use here, by another session
    try:
        await store.database.write(
            _write, session_id, agent, saves, waits, keep_saves=max(1, store.history_limit)
        )
    except LogConflictError:
        # Another process imports it at the same moment, or began a session of this id.
        if await store.session(session_id) is None:
            raise
        return await _present(store, session_id, saves)
    store.tell_saved(saves[-1].time_ms)
    return Imported(session_id, len(saves), waits.approval_id if waits else None)


async def _saves(source: CheckpointStore, session_id: str, current: JsonObject) -> list[_Save]:
    """The source's saves, oldest first; its checkpoint is the last of them."""
    saves: list[_Save] = []
    for given in reversed(await get_checkpoint_history(source, session_id) or []):
        entry = HistoryEntry.from_json(plain(given))
        before = saves[-1].time_ms if saves else None
        record = plain(entry.checkpoint)
        saves.append(_Save(_checked(record, session_id), _time_of(entry.saved_at, before)))
    if not saves or not json_equal(saves[-1].record, current):
        saves.append(_Save(_checked(current, session_id), now_ms()))
    return saves


def _checked(record: JsonObject, session_id: str) -> JsonObject:
    if not isinstance(record.get("messages") or [], list):
        msg = f"The checkpoint of session {session_id!r} is damaged: messages is no list."
        raise StorageError(msg)
    return copy_json(record)  # type: ignore[no-any-return]


def _time_of(saved_at: str, before: int | None) -> int:
    try:
        moment = datetime.fromisoformat(saved_at)
    except (TypeError, ValueError):
        return now_ms() if before is None else before
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # In whole numbers: a float would lose the last millisecond now and then.
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


async def _present(store: SqlStore, session_id: str, saves: Sequence[_Save]) -> Imported:
    """Our store has the id: fine when it is this session, perhaps further on by now.

    Raises:
        SessionConflictError: it is another one.
    """
    newest = saves[-1].record
    current = await store.load(session_id)
    if current is not None and json_equal(plain(current), {**newest, "sessionId": session_id}):
        return Imported(session_id)
    for entry in await store.history(session_id):
        if json_equal(plain(entry.checkpoint), {**newest, "sessionId": session_id}):
            return Imported(session_id)
    msg = f"The store {store.database} has another session {session_id!r}; nothing was imported."
    raise SessionConflictError(msg, hint="Delete one of the two, or import into another store.")


@dataclass(frozen=True, slots=True)
class _Pause:
    """A call that waits for a decision, and the calls that an old record does not name."""

    approval_id: str
    index: int
    pending: JsonObject
    not_reached: list[tuple[int, JsonObject]]

    @classmethod
    def of(
        cls, record: JsonObject, approvals: Iterable[StoredApproval], session_id: str
    ) -> _Pause | None:
        """What a checkpoint waits for, when its approval is there and is about one of its calls.

        A sub-agent's call is not one of them: that agent's own run is not in the checkpoint.
        """
        approval_id = record.get("approvalId")
        if record.get("status") != ev.AWAITING_APPROVAL or not isinstance(approval_id, str):
            return None
        found = next((each for each in approvals if each.pending.id == approval_id), None)
        if found is None or found.snapshot.subagent or ev.label(approval_id, 128) != approval_id:
            return None
        if found.snapshot.session_id not in (None, session_id):
            return None
        calls = last_calls(record)
        open_calls = split_pending_turn(record.get("messages") or []).pending_tool_calls
        waiting = [
            (index, call)
            for index, call in enumerate(calls)
            if any(call is each for each in open_calls)
        ]
        index = next(
            (at for at, call in waiting if member(call, "id") == found.pending.tool_call_id), None
        )
        if index is None:
            return None
        later: list[tuple[int, JsonObject]] = []
        if found.snapshot.remaining_tool_calls is None:
            later = [(at, _not_reached(call)) for at, call in waiting if at > index]
        return cls(approval_id, index, found.pending.to_json(), later)


def _not_reached(call: Any) -> JsonObject:
    name, call_id = str(member(member(call, "function"), "name")), member(call, "id")
    error = tool_error_result(NOT_RUN, name, NOT_REACHED_MESSAGE, tool_call_id=call_id)
    return tool_message(call, to_json_text(error), is_error=True)


def _write(
    connection: Connection,
    session_id: str,
    agent: str | None,
    saves: Sequence[_Save],
    waits: _Pause | None,
    *,
    keep_saves: int,
) -> None:
    if sessions.find_session(connection, session_id, lock=True) is not None:
        msg = f"The session {session_id} was begun meanwhile."
        raise LogConflictError(msg)
    name = ev.label(saves[-1].record.get("agentId") if agent is None else agent, 200)
    first = saves[0].time_ms
    row = sessions.create_session(connection, session_id, agent=name, time_ms=first)
    stored: list[Any] = []
    head = 0
    for save in saves:
        new, saved = record_events(stored, save.record)
        place = head + len(new) - 1
        if save is saves[-1] and waits is not None:
            asked = {"id": waits.approval_id, "seq": place, "index": waits.index}
            new.append(NewEvent(ev.APPROVAL_REQUESTED, {**asked, "pending": waits.pending}))
            saved.after = len(new)
        elif save is saves[-1] and saved.status == ev.AWAITING_APPROVAL:
            saved.status, saved.approval_id = ev.IN_PROGRESS, None
        batch = Batch(session_id, row.log_id, None, head, save.time_ms, new, [saved])
        head = append(connection, batch, keep_saves=keep_saves)
        stored = save.record.get("messages") or []
    if waits is not None and waits.not_reached:
        # After the save: the checkpoint itself stays as it came.
        results = [
            NewEvent(ev.TOOL_RESULT, {"seq": place, "index": index, "message": message})
            for index, message in waits.not_reached
        ]
        append(
            connection,
            Batch(session_id, row.log_id, None, head, saves[-1].time_ms, results),
            keep_saves=keep_saves,
        )
