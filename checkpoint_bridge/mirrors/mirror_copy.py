"""Writes the saves of one session of our log to another store, in the documented format."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    SessionConflictError,
    SessionNotFoundError,
)
from perdure.checkpoint_bridge.format._record import plain
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry
from perdure.checkpoint_bridge.format.snapshots import around, stored_approval
from perdure.checkpoint_bridge.format.stable_json import copy_json, json_equal
from perdure.checkpoint_bridge.log.events import iso
from perdure.checkpoint_bridge.log.fold import SessionState
from perdure.checkpoint_bridge.log.lineage import ancestors, call_of
from perdure.checkpoint_bridge.stores.key_value import KeyValueStore
from perdure.checkpoint_bridge.stores.lousho_files import LoushoFileStore
from perdure.checkpoint_bridge.stores.lousho_sqlite import LoushoSqliteStore
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.checkpoint_bridge.stores.store import (
    ApprovalStore,
    BulkStore,
    DatedStore,
    HistoryStore,
)
from perdure.checkpoint_bridge.tables.event_log import read_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.checkpoint_bridge.format.stable_json import JsonObject
    from perdure.checkpoint_bridge.stores.store import CheckpointStore
    from perdure.checkpoint_bridge.stores.stored import StoredApproval
    from perdure.checkpoint_bridge.tables.approvals import ApprovalRow
    from perdure.checkpoint_bridge.tables.mirror_rows import Behind

_CACHED_LOGS = 64
_OURS = (SqlStore, LoushoSqliteStore, LoushoFileStore, KeyValueStore)


class Copier:
    """Gives a target the saves of our log, one by one."""

    def __init__(self, source: SqlStore, target: CheckpointStore) -> None:
        self.source = source
        self.target = target
        self._states: OrderedDict[int, SessionState] = OrderedDict()

    async def write(self, session: Behind, saves: Sequence[Any], before: Any | None) -> None:
        """Write saves, oldest first; ``before`` is the one before them.

        Doing it again is harmless for the approvals; the caller sees to it that a save is not
        written twice.
        """
        group: list[tuple[Checkpoint, int]] = []
        for save in saves:
            decided = before.approval_id if before is not None else None
            if isinstance(self.target, ApprovalStore) and (save.approval_id or decided):
                # Before the checkpoint: it may never name an approval that is not there yet.
                await self._save(session.session_id, group)
                group = []
                await self._copy_approval(self.target, await self.record(session, save), save)
                if decided not in (None, save.approval_id) and await self._is_over(str(decided)):
                    with contextlib.suppress(ConfigurationError):
                        await self.target.claim_approval_at(str(decided), save.saved_at)
            record = await self.record(session, save)
            if not isinstance(self.target, _OURS):
                # It may change what it gets; a long one is not copied on the event loop.
                record = await asyncio.to_thread(copy_json, record)
            group.append((Checkpoint.from_json(record), save.saved_at))
            before = save
        await self._save(session.session_id, group)

    async def _save(self, session_id: str, group: Sequence[tuple[Checkpoint, int]]) -> None:
        if not group:
            return
        if isinstance(self.target, BulkStore):
            await self.target.save_all(session_id, group)
            return
        for checkpoint, saved_at in group:
            if isinstance(self.target, DatedStore):
                await self.target.save_at(session_id, checkpoint, saved_at)
            else:
                await self.target.save(session_id, checkpoint)

    async def _copy_approval(self, target: ApprovalStore, record: JsonObject, save: Any) -> None:
        if save.approval_id is None:
            return
        row = await self.source.approval(save.approval_id)
        if row is None:
            return
        session_id = str(record["sessionId"])
        if row.session_id == session_id and await self._is_told_above(row):
            return
        approval = await self._approval(record, row)
        if approval is not None:
            # An id from elsewhere may be none that the form takes; the checkpoint can go.
            with contextlib.suppress(ConfigurationError):
                await target.save_approval_at(approval, save.saved_at)

    async def _is_over(self, approval_id: str) -> bool:
        """Whether an approval that no save names any more was decided.

        One of a sub-agent may wait on while another call of its parent has got its result.
        """
        row = await self.source.approval(approval_id)
        return row is None or row.decided_at is not None

    async def _is_told_above(self, row: ApprovalRow) -> bool:
        """Whether the run above has the approval: its snapshot has that of the sub-agent in it."""
        for above in ancestors(row.session_id)[-1:]:
            found = await self.source.session(above)
            return found is not None and found.approval_id == row.id
        return False

    async def _approval(self, record: JsonObject, row: ApprovalRow) -> StoredApproval | None:
        """The pause that a record names: its own, or that of a sub-agent with all above it."""
        session_id = str(record["sessionId"])
        if row.session_id == session_id:
            return stored_approval(record, row.pending, row.call_index)
        below = await self.source.load(row.session_id)
        approval = stored_approval(plain(below), row.pending, row.call_index) if below else None
        call = call_of(row.session_id)
        while approval is not None and call is not None:
            parent, _, _, index = call
            if parent == session_id:
                return around(record, approval, index)
            between = await self.source.load(parent)
            approval = around(plain(between), approval, index) if between else None
            call = call_of(parent)
        return None

    async def place(self, session: Behind, saves: Sequence[Any]) -> int:
        """Find the save that the target has reached: what follows it is to be written.

        A crash between a write and the note of it must not put a save into the target's history
        twice; and what is there from elsewhere must not be written over.

        Returns:
            ``through_seq`` of that save; 0: the target has none.

        Raises:
            SessionConflictError: the target holds another session of this id.
        """
        newest = await self._newest(session.session_id)
        found = await self._find(session, saves, newest) if newest is not None else None
        if found is not None:
            return found
        loaded = await self.target.load(session.session_id)
        if loaded is None:
            # It has no checkpoint (any more): begun anew there, or never begun.
            return 0 if newest is None else session.after
        if session.known:
            return session.after
        if newest is None:
            current = HistoryEntry.from_json({"checkpoint": plain(loaded)})
            if await self._find(session, saves, current) is not None:
                return session.after
        msg = (
            f"It holds another session {session.session_id!r}, which was not written from here; "
            "it stays as it is."
        )
        hint = "Import that one, or replace it with `perdure mirror --rebuild`."
        raise SessionConflictError(msg, hint=hint)

    async def _newest(self, session_id: str) -> HistoryEntry | None:
        if not isinstance(self.target, HistoryStore):
            return None
        entries = await self.target.history(session_id, 1)
        # A store of a user's own may give its entries as plain JSON.
        return HistoryEntry.from_json(plain(entries[0])) if entries else None

    async def _find(self, session: Behind, saves: Sequence[Any], entry: HistoryEntry) -> int | None:
        dated = isinstance(self.target, DatedStore) and "savedAt" in entry
        wanted = plain(entry.checkpoint)
        found: list[int] = []
        for save in saves:
            if dated and iso(save.saved_at) != entry.saved_at:
                continue
            if json_equal(await self.record(session, save), wanted):
                found.append(save.through_seq)
        # Without a time two saves can be the same; then the first that is not noted yet is it.
        later = [seq for seq in found if seq >= session.after]
        return later[0] if later else found[-1] if found else None

    async def record(self, session: Behind, save: Any) -> JsonObject:
        """The checkpoint of a save. Its parts are shared: read it, don't change it.

        Raises:
            SessionNotFoundError: the session was deleted meanwhile.
        """
        state = self._states.pop(session.log_id, None)
        if state is None or state.through > save.through_seq:
            state = SessionState()
        if state.through < save.through_seq:
            state.fold(
                await self.source.database.read(
                    read_events, session.log_id, state.through, save.through_seq
                )
            )
        if state.through < save.through_seq:
            msg = f"Session {session.session_id!r} was deleted."
            raise SessionNotFoundError(msg)
        self._states[session.log_id] = state
        if len(self._states) > _CACHED_LOGS:
            self._states.popitem(last=False)
        return state.checkpoint(
            session.session_id,
            status=save.status,
            finish_reason=save.finish_reason,
            approval_id=save.approval_id,
        )
