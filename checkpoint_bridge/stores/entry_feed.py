"""Hands a store of entries what is committed to the logs, entry by entry."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import EntryStoreError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.entries import entries_of
from perdure.checkpoint_bridge.tables.event_log import read_events

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.entries import Entry
    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.stores.entry_stores import SessionStore
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.event_log import Batch

_REMEMBERED_LOGS = 256


class EntryFeed:
    """Keeps a :class:`.entry_stores.SessionStore` level with the logs of a store of ours.

    The log comes first: what a run does next goes by it alone. So after a crash, or an append
    that raised, the target may be behind; the next entries bring what it lacks.
    """

    def __init__(self, store: SqlStore, target: SessionStore) -> None:
        self._store = store
        self._target = target
        self._level: OrderedDict[int, int] = OrderedDict()
        """How far the target is known to be level with a log, by the log's id."""

    async def follow(self, batch: Batch, end: int, before: SessionState) -> None:
        """Hand over the entries of a batch that is committed, in order.

        The end of a turn that this itself has made fail is not handed over: nothing comes behind
        an entry that was refused, until the session goes on.

        Args:
            batch: what was appended.
            end: the log's length after it.
            before: the fold of what was in the log before it.

        Raises:
            EntryStoreError: the target raised, or holds another session's entries.
        """
        if end <= batch.head or _is_own_failure(batch):
            return
        level = self._level.pop(batch.log_id, None)
        read = await self._store.database.read(read_events, batch.log_id, batch.head, end)
        entries = entries_of(read, before)
        if entries:
            row = await self._store.session(batch.session_id)
            agent = row.agent if row is not None else ""
            try:
                if level != batch.head:
                    entries = await self._missing(agent, batch, end)
                for entry in entries:
                    await self._target.append(agent, batch.session_id, entry)
            except EntryStoreError:
                raise
            except Exception as error:
                msg = (
                    f"The store of entries refused an entry of session {batch.session_id!r}: "
                    f"{type(error).__name__}: {error}"
                )
                raise EntryStoreError(msg) from error
        elif level != batch.head:
            return
        self._level[batch.log_id] = end
        if len(self._level) > _REMEMBERED_LOGS:
            self._level.popitem(last=False)

    async def _missing(self, agent: str, batch: Batch, end: int) -> list[Entry]:
        """What the target lacks of the log's first ``end`` events."""
        log = await self._store.database.read(read_events, batch.log_id, 0, end)
        entries, held = entries_of(log), await self._target.read(agent, batch.session_id)
        count = len(held)
        if count > len(entries) or (held and held[-1].sequence != entries[count - 1].sequence):
            msg = f"The store of entries holds another session under the id {batch.session_id!r}."
            raise EntryStoreError(msg, hint="Delete that session's entries, or use another id.")
        return entries[count:]


def _is_own_failure(batch: Batch) -> bool:
    ends = (event.data["reason"] for event in batch.events if event.type == ev.TURN_END)
    return any((end.get("error") or {}).get("code") == EntryStoreError.code for end in ends)
