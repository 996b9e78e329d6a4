"""The store: the event log and everything that is derived from it, in one SQL database."""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import select

from perdure.checkpoint_bridge.errors import LogConflictError, SessionFormatUnsupportedError
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry, WaitingApproval
from perdure.checkpoint_bridge.format.stable_json import copy_json
from perdure.checkpoint_bridge.keyring import resolve
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import Event, NewEvent, StoredEvent
from perdure.checkpoint_bridge.log.fold import SessionState
from perdure.checkpoint_bridge.log.formats import CURRENT, LogFormats
from perdure.checkpoint_bridge.log.lineage import child_session_prefix, depth_of, is_within
from perdure.checkpoint_bridge.log.record_events import record_events
from perdure.checkpoint_bridge.option_checks import of_type, refusal
from perdure.checkpoint_bridge.stores.effect_store import EffectStore
from perdure.checkpoint_bridge.stores.entry_feed import EntryFeed
from perdure.checkpoint_bridge.stores.entry_stores import SessionStore
from perdure.checkpoint_bridge.stores.forking import Forkable, checkpoint_at, row_and_saves, tries
from perdure.checkpoint_bridge.stores.hooks import SessionHooks
from perdure.checkpoint_bridge.stores.pruning import Prunable
from perdure.checkpoint_bridge.stores.retention import Retention
from perdure.checkpoint_bridge.stores.store import (
    DEFAULT_HISTORY_LIMIT,
    check_history_limit,
    run_goes_on,
)
from perdure.checkpoint_bridge.stores.stored import entry_record, now_ms
from perdure.checkpoint_bridge.stores.upgrading import Versioned
from perdure.checkpoint_bridge.tables import approvals as approval_rows, inputs, sessions
from perdure.checkpoint_bridge.tables.blobs import get_blob, put_blob
from perdure.checkpoint_bridge.tables.database import Database
from perdure.checkpoint_bridge.tables.event_log import Batch, append, read_events
from perdure.checkpoint_bridge.tables.schema import sessions as sessions_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.keyring import Encryption
    from perdure.checkpoint_bridge.tables.approvals import ApprovalRow
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_CACHED_LOGS = 256
NO_HOOKS = SessionHooks()


class SqlStore(EffectStore, Forkable, Prunable, Versioned):
    """Sessions in SQLite or PostgreSQL.

    It is a documented ``CheckpointStore`` with history; the runs themselves write events, and
    checkpoints are views of the log.

    Args:
        url: ``sqlite:///FILE``, ``postgresql://…`` or ``sqlite://`` (in memory).
        history_limit: how many saves ``history`` keeps for a session; 0 keeps none.
        create: make the SQLite file when it is missing; ``"late"``: at the first write.
        retention: how many sessions of an agent it keeps, and how long; default: all.
        hooks: what is told of the sessions that this object makes, writes to and deletes.
        entries: gets each entry as it is written, awaited; when it raises, the run fails.
        formats: which formats of logs it reads (for tests of steps from one to the next).
        encryption: keys that encrypt content at rest; default: those of
            ``PERDURE_ENCRYPTION_KEYS``, if it is set. ``False``: none.

    Raises:
        ConfigurationError: the address, a key or an option is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        history_limit: int = DEFAULT_HISTORY_LIMIT,
        create: bool | Literal["late"] = True,
        retention: Retention | None = None,
        hooks: SessionHooks = NO_HOOKS,
        entries: SessionStore | None = None,
        formats: LogFormats = CURRENT,
        encryption: Encryption = None,
    ) -> None:
        self.history_limit = check_history_limit(history_limit)
        if create not in (True, False, "late"):
            raise refusal("create", "True, False or 'late'", create)
        super().__init__(Database(url, create=create, keys=resolve(encryption)))
        if retention is not None:
            of_type("retention", retention, Retention, "Retention(…) or None")
        self.retention = retention
        self.hooks: SessionHooks = of_type("hooks", hooks, SessionHooks, "SessionHooks(…)")
        if entries is not None:
            of_type("entries", entries, SessionStore, "a SessionStore or None")
        self._feed = None if entries is None else EntryFeed(self, entries)
        self.formats = formats
        self._states: OrderedDict[int, SessionState] = OrderedDict()
        self.on_save: set[Callable[[int], object]] = set()
        """Called after each save that this object has committed, with its time in Unix ms."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and bring the schema up to date.

        Raises:
            StorageError: the database is missing, damaged, something else's or too new.
        """
        await self.database.open()

    async def close(self) -> None:
        """Close all connections; the next call opens the store again.

        What was remembered of it is forgotten: the database may be another one by then, such as
        a backup that was put back.
        """
        await self.database.close()
        self._states.clear()
        self._uids.clear()

    # -- the documented contract -------------------------------------------------------------

    async def save(self, session_id: str, checkpoint: Checkpoint) -> None:
        """Write a record that came from outside; it is kept key for key.

        Raises:
            SessionConflictError: a run of the session goes on, or was cut off; this would break it.
        """
        await self.save_at(session_id, checkpoint, now_ms())

    async def save_at(self, session_id: str, checkpoint: Checkpoint, saved_at_ms: int) -> None:
        """As :meth:`save`, with the time of the save that the record had where it comes from."""
        record = checkpoint.to_json()
        for last in tries():
            try:
                row = await self.database.write(_find_or_create, session_id, record, saved_at_ms)
                state = await self.state(row.log_id, row.head)
                if state.open_turn is not None:
                    raise run_goes_on(session_id)
                new, saved = record_events(state.messages, record)
                await self.append(
                    Batch(session_id, row.log_id, None, row.head, saved_at_ms, new, [saved])
                )
            except LogConflictError:
                if last:
                    raise
            else:
                return

    async def load(self, session_id: str) -> Checkpoint | None:
        """The newest checkpoint of a session, or ``None``."""
        row, kept = await self.database.read(row_and_saves, session_id, 1)
        if row is not None and row.version != self.formats.version:
            await self.session(session_id)  # brings its log to the current format
            row, kept = await self.database.read(row_and_saves, session_id, 1)
        if row is None or not row.has_checkpoint or not kept:
            return None
        try:
            state = await self.state(row.log_id, kept[0].through_seq)
        except LogConflictError:
            return None  # deleted just now
        # A copy: the state is shared, and a caller may change what it got.
        return Checkpoint.from_json(copy_json(checkpoint_at(state, session_id, kept[0])))

    async def history(self, session_id: str, limit: int | None = None) -> list[HistoryEntry]:
        """The saves that are kept, newest first; ``[]`` for an unknown session."""
        count = self.history_limit if limit is None else min(limit, self.history_limit)
        if count <= 0:
            return []
        await self.session(session_id)  # its log has the current format then
        kept, log = await self.database.read(_saves_and_events, session_id, count)
        state = SessionState()
        entries = []
        for save in reversed(kept):
            state.fold(log[state.through : save.through_seq])
            record = checkpoint_at(state, session_id, save)
            entries.append(HistoryEntry.later(entry_record(record, save.saved_at)))
        return entries[::-1]

    async def session_ids(self) -> list[str]:
        """Ids of the sessions that have a checkpoint, sorted."""
        return await self.database.read(sessions.session_ids)

    async def sub_agents(self, session_id: str) -> list[str]:
        """Ids of the sessions of a session's sub-agents, and of theirs, the deepest first."""
        return await self.database.read(_sub_agents, session_id)

    async def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        """Delete a session: all of it, or only its checkpoint (then its history grows on)."""
        await self.database.write(
            _delete,
            session_id,
            keep_history=keep_history,
            time_ms=now_ms(),
            keep_saves=self.keep_saves,
        )
        if not keep_history:
            await self.hooks.disposed(session_id)

    # -- sessions and the log ----------------------------------------------------------------

    async def sessions(
        self, *, limit: int | None = None, status: str | None = None, **more: Any
    ) -> list[SessionRow]:
        """Sessions, newest activity first (see :func:`.sessions.list_sessions`)."""
        return await self.database.read(sessions.list_sessions, limit=limit, status=status, **more)

    async def open_session(
        self,
        session_id: str,
        *,
        agent: str,
        run_id: str,
        head: int,
        time_ms: int,
        events: Sequence[NewEvent],
    ) -> tuple[int, int]:
        """Make ``run_id`` the session's writer and append what opens its run.

        A session that does not exist yet is created. ``head`` is the length of the log that
        ``events`` were made for.

        Returns:
            The log's id and its new length.

        Raises:
            LogConflictError: somebody wrote to the session meanwhile; read it again.
            SessionEndedError: it takes no more messages.
            EntryStoreError: the store of entries raised; the run is open all the same.
        """
        keep = self.keep_saves

        def open_session(connection: Connection) -> tuple[Batch, int]:
            row, made = sessions.open_row(connection, session_id, agent=agent, time_ms=time_ms)
            batch = Batch(session_id, row.log_id, run_id, head, time_ms, events, take_over=True)
            end = append(connection, batch, keep_saves=keep, session=row)
            sessions.set_running(connection, session_id, agent)
            if made and self.retention is not None:
                self.retention.apply(connection, session_id, agent, time_ms)
            return batch, end

        asks = self.hooks.on_session_created is not None
        if asks and head == 0 and await self.session(session_id) is None:
            await self.hooks.created(session_id)
        # Retention may have much to delete.
        write = self.database.write_quick if self.retention is None else self.database.write
        batch, end = await write(open_session)
        await self._hand_over(batch, end)
        self._follow(batch)
        return batch.log_id, end

    async def append(self, batch: Batch) -> int:
        """Append to a log (see :func:`.event_log.append`); returns its length after it."""
        end = await self.database.write_quick(append, batch, keep_saves=self.keep_saves)
        await self.appended(batch, end)
        return end

    async def appended(self, batch: Batch, end: int) -> None:
        """Do what follows from an append that is committed; ``end`` is the log's length."""
        if batch.saves:
            self.tell_saved(batch.time_ms)
        await self.hooks.flushed(batch.session_id, batch.events)
        await self._hand_over(batch, end)
        if end == batch.head + len(batch.events):
            self._follow(batch)

    async def _hand_over(self, batch: Batch, end: int) -> None:
        """Give the store of entries, if there is one, what it is to have of an append."""
        if self._feed is not None:
            before = await self.state(batch.log_id, batch.head)
            await self._feed.follow(batch, end, before)

    def tell_saved(self, time_ms: int) -> None:
        """Tell who listens that there is a new save."""
        for listener in tuple(self.on_save):
            listener(time_ms)

    def _follow(self, batch: Batch) -> None:
        """Fold what was just appended, so that the next step need not read it again."""
        cached = self._states.get(batch.log_id)
        if cached is None and batch.head == 0:
            cached = SessionState()
        if cached is None or cached.through != batch.head:
            return
        if any(each.ref and ev.BULK[each.type] not in each.data for each in batch.events):
            return  # it would have to be read anyway
        # As it will be read: a mirror is to get the same bytes from any worker.
        new = [
            Event(seq, event.type, batch.time_ms, _as_read(event, stored))
            for seq, (event, stored) in enumerate(
                zip(batch.events, batch.encoded, strict=True), start=batch.head
            )
        ]
        # It is stored: what this version does not know is said to whoever reads it.
        with contextlib.suppress(SessionFormatUnsupportedError):
            self._remember(batch.log_id, cached.copy().fold(new))

    def _remember(self, log_id: int, state: SessionState) -> None:
        self._states[log_id] = state
        self._states.move_to_end(log_id)
        while len(self._states) > _CACHED_LOGS:
            self._states.popitem(last=False)

    async def close_run(self, batch: Batch, reason: str) -> int:
        """Append what closes a run, and close the approvals that it waited for."""
        keep = self.keep_saves

        def close_run(connection: Connection) -> int:
            approval_rows.close_approvals(connection, batch.log_id, reason, batch.time_ms)
            return append(connection, batch, keep_saves=keep)

        end = await self.database.write_quick(close_run)
        await self.appended(batch, end)
        return end

    async def events(
        self, session_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Committed events behind the cursor ``after`` (0: from the beginning), in order.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        row = await self.known_session(session_id)
        return await self.database.read(read_events, row.log_id, after, limit=limit)

    async def state(self, log_id: int, through: int) -> SessionState:
        """The fold of a log's first ``through`` events. Shared: read it, don't change it."""
        cached = self._states.get(log_id)
        if cached is not None and cached.through == through:
            return cached
        # The log is append-only, so a state that was right once is right for ever.
        usable = cached is not None and cached.through < through
        state = cached.copy() if usable and cached else SessionState()
        state.fold(await self.database.read(read_events, log_id, state.through, through))
        if state.through < through:
            msg = f"Log {log_id} of the store {self.database} is gone: its session was deleted."
            raise LogConflictError(msg)
        if cached is None or usable:
            self._remember(log_id, state)
        return state

    # -- content, approvals ------------------------------------------------------------------

    async def put_content(self, value: Any) -> str:
        """Store JSON under its digest; returns the digest."""
        return await self.database.write_quick(put_blob, ev.dump(value), now_ms())

    async def put_input(self, session_id: str, messages: list[dict[str, Any]]) -> str:
        """Store input for a session until its run takes it; returns a digest for the request."""
        return await self.database.write(inputs.put_input, session_id, messages, now_ms())

    async def input(self, digest: str) -> Any:
        """The input that was stored under a digest, or ``None``."""
        return await self.database.read(inputs.get_input, digest)

    async def content(self, digest: str) -> str | None:
        """The JSON text under a digest, or ``None``."""
        return await self.database.read(get_blob, digest)

    async def approval(self, approval_id: str) -> ApprovalRow | None:
        """An approval, pending or decided, or ``None``."""
        return await self.database.read_quick(approval_rows.find_approval, approval_id)

    async def approvals(self, session_id: str | None = None) -> list[ApprovalRow]:
        """What waits for a decision, oldest first."""
        return await self.database.read(approval_rows.pending_approvals, session_id)

    async def pending_approvals(self, session_id: str | None = None) -> list[WaitingApproval]:
        """The documented records of what waits for a decision, oldest first."""
        pending = []
        for row in await self.approvals(session_id):
            record = row.pending
            if "args" not in record:
                # They were too large for the row, so they are in the log only.
                state = await self.state(row.log_id, row.seq + 1)
                raw = state.calls[row.call_index]["function"]["arguments"]
                record = {**record, "args": json.loads(raw)}
            record = {**record, "sessionId": row.session_id}
            pending.append(WaitingApproval.from_json(record))
        return pending

    async def decide(
        self, approval_id: str, decision: dict[str, Any]
    ) -> tuple[bool, ApprovalRow | None]:
        """Take a decision unless one was taken; returns whether it counts, and the row."""

        def decide(connection: Connection) -> tuple[bool, ApprovalRow | None]:
            mine = approval_rows.decide_approval(connection, approval_id, decision, now_ms())
            return mine, approval_rows.find_approval(connection, approval_id)

        return await self.database.write_quick(decide)


def _as_read(event: NewEvent, stored: StoredEvent) -> dict[str, Any]:
    """The data of an event that was just stored, as a later read gives it."""
    data: dict[str, Any] = json.loads(ev.dump(event.data) if stored.ref else stored.data)
    return data


def _find_or_create(
    connection: Connection, session_id: str, record: dict[str, Any], time_ms: int
) -> SessionRow:
    row = sessions.find_session(connection, session_id)
    if row is not None:
        return row
    agent = ev.label(record.get("agentId"), 200)
    return sessions.create_session(connection, session_id, agent=agent, time_ms=time_ms)


def _sub_agents(connection: Connection, session_id: str) -> list[str]:
    column = sessions_table.c.session_id
    beginning = child_session_prefix(session_id)
    found = connection.scalars(select(column).where(column.startswith(beginning, autoescape=True)))
    # Not the forks of theirs: those are sessions of their own.
    below = [each for each in found if is_within(each, session_id)]
    return sorted(below, key=lambda each: (-depth_of(each), each))


def _saves_and_events(
    connection: Connection, session_id: str, count: int
) -> tuple[Sequence[Any], list[Event]]:
    row, kept = row_and_saves(connection, session_id, count)
    if row is None or not kept:
        return (), []
    return kept, read_events(connection, row.log_id, 0, kept[0].through_seq)


def _delete(
    connection: Connection,
    session_id: str,
    *,
    keep_history: bool,
    time_ms: int,
    keep_saves: int,
) -> None:
    row = sessions.find_session(connection, session_id, lock=True)
    if row is None:
        return
    if not keep_history:
        sessions.delete_session(connection, row)
        return
    new = [NewEvent(ev.SESSION_CLEARED, {})]
    batch = Batch(session_id, row.log_id, None, row.head, time_ms, new)
    append(connection, batch, keep_saves=keep_saves)
    approval_rows.close_approvals(connection, row.log_id, "deleted", time_ms)
    sessions.set_cleared(connection, session_id)


class MemoryStore(SqlStore):
    """A store that lasts as long as the process: the same code on SQLite in memory."""

    def __init__(self, *, history_limit: int = DEFAULT_HISTORY_LIMIT) -> None:
        super().__init__("sqlite://", history_limit=history_limit)
