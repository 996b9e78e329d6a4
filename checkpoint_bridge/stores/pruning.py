"""Takes out of a store what is old: whole sessions, history entries, content that nobody names.

Everything happens in small transactions, each of which looks again whether what it deletes may
still go, so runs go on meanwhile and a pruning that was interrupted is simply done again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, exists, func, or_, select

from perdure.checkpoint_bridge.errors import ConfigurationError, StorageError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.stores.part import StorePart
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables import sessions as session_rows
from perdure.checkpoint_bridge.tables.blobs import drop_orphans, find_orphans
from perdure.checkpoint_bridge.tables.event_log import cut_ring
from perdure.checkpoint_bridge.tables.inputs import drop_lost_inputs
from perdure.checkpoint_bridge.tables.schema import inputs, saves, sessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement, Connection

    from perdure.checkpoint_bridge.tables.database import Database

ORPHANS_KEPT = timedelta(days=30)
"""Content that nobody names may be input of a run that no worker has opened yet."""

_AT_A_TIME = 100
_HOUR = 60 * 60 * 1000
_BUSY_SECONDS = 30.0

IDLE: ColumnElement[bool] = and_(
    sessions.c.approval_id.is_(None),
    sessions.c.status != ev.AWAITING_APPROVAL,
    or_(
        sessions.c.status != ev.IN_PROGRESS,
        # A turn was closed: completed, failed or cancelled; or no run ever had the session.
        sessions.c.last_end.is_not(None),
        sessions.c.writer.is_(None),
    ),
)
"""Neither running nor waiting, and not cut off in the middle of a turn."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went, or would go."""

    sessions: tuple[str, ...] = ()
    """Ids of the deleted sessions, those without activity for longest first."""
    saves: int = 0
    """History entries of sessions that stay."""
    contents: int = 0
    """Large values that nothing named any more."""


class Prunable(StorePart):
    """The part of a store that prunes."""

    async def prune(
        self,
        *,
        older_than: timedelta | None = None,
        keep_latest: int | None = None,
        agent: str | None = None,
        history_older_than: timedelta | None = None,
        dry_run: bool = False,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> Pruned:
        """Delete old sessions and old history entries, while runs go on.

        A session goes when every condition that is given holds for it. One that runs, waits for
        a decision or was cut off in the middle of a turn never goes; it counts all the same as
        one of the newest. Forks keep the beginning that they share. Entries beyond
        ``history_limit``, and content that nothing names any more, go always.

        Args:
            older_than: sessions without activity for that long.
            keep_latest: sessions that are not among the newest so many of their agent.
            agent: only sessions of this agent.
            history_older_than: entries of the history that were saved so long ago; the newest
                one, which is the session's checkpoint, stays.
            dry_run: say what would go, and change nothing.
            on_progress: called with the sessions that are done and that are to be done.

        Raises:
            ConfigurationError: an argument is wrong; ``field`` names it.
        """
        now = now_ms()
        before = _before(now, older_than, "older_than")
        history_before = _before(now, history_older_than, "history_older_than")
        if keep_latest is not None and (type(keep_latest) is not int or keep_latest < 0):
            msg = f"keep_latest is a whole number from 0, not {keep_latest!r}."
            raise ConfigurationError(msg, field="keep_latest")
        found: list[tuple[str, int]] = []
        if before is not None or keep_latest is not None:
            found = await self.database.read(find_idle, before, keep_latest, agent)
        gone = []
        for done, (session_id, updated_at) in enumerate(found, start=1):
            if dry_run or await self.database.write(delete_idle, session_id, updated_at):
                gone.append(session_id)
            if on_progress is not None:
                on_progress(done, len(found))
        return Pruned(
            sessions=tuple(gone),
            saves=await self._prune_saves(gone, agent, history_before, dry_run=dry_run),
            contents=await self._prune_contents(now, dry_run=dry_run),
        )

    async def vacuum(self) -> None:
        """Give the space of what was deleted back to the system.

        It needs as much free space as the file has content, and writers wait for it.

        Raises:
            ConfigurationError: the store is on PostgreSQL, which does that by itself.
            StorageError: the disk is full, or another process holds the file.
        """
        if not self.database.is_sqlite:
            msg = "PostgreSQL gives space back by itself (autovacuum); only SQLite is told to."
            raise ConfigurationError(msg, field="vacuum")
        if not self.database.in_memory:
            await self.database.open()
            await asyncio.to_thread(_vacuum, self.database)

    async def _prune_saves(
        self, gone: list[str], agent: str | None, before: int | None, *, dry_run: bool
    ) -> int:
        keep = self.keep_saves
        found = await self.database.read(_logs_with_old_saves, keep, agent, before)
        deleted = set(gone)  # in a dry run they are still there
        logs = [log_id for log_id, session_id in found if session_id not in deleted]
        count = 0
        for start in range(0, len(logs), _AT_A_TIME):
            some = logs[start : start + _AT_A_TIME]
            if dry_run:
                count += await self.database.read(_count_saves, some, keep, before)
            else:
                count += await self.database.write(_cut_saves, some, keep, before)
        return count

    async def _prune_contents(self, now: int, *, dry_run: bool) -> int:
        kept = now - int(ORPHANS_KEPT.total_seconds() * 1000)
        run = self.database.read if dry_run else self.database.write
        count = await run(drop_lost_inputs, kept, dry_run=dry_run)
        before = await self.database.read(_orphans_before, kept)
        after = ""
        while True:
            found = await self.database.read(find_orphans, before, after=after, limit=_AT_A_TIME)
            if not found:
                return count
            after = found[-1]
            if dry_run:
                count += len(found)
            else:
                count += await self.database.write(drop_orphans, found, before)


def _before(now: int, age: timedelta | None, name: str) -> int | None:
    if age is None:
        return None
    if not isinstance(age, timedelta) or age < timedelta(0):
        msg = f"{name} is a timedelta from 0, not {age!r}."
        raise ConfigurationError(msg, field=name)
    return now - int(age.total_seconds() * 1000)


def find_idle(
    connection: Connection, before: int | None, keep_latest: int | None, agent: str | None
) -> list[tuple[str, int]]:
    """Sessions that may go, with the time of their last activity, oldest first."""
    newest_first = (sessions.c.updated_at.desc(), sessions.c.session_id)
    rank = func.row_number().over(partition_by=sessions.c.agent, order_by=newest_first)
    ranked = select(
        sessions.c.session_id, sessions.c.updated_at, IDLE.label("idle"), rank.label("rank")
    )
    if agent is not None:
        ranked = ranked.where(sessions.c.agent == agent)
    rows = ranked.subquery()
    query = select(rows.c.session_id, rows.c.updated_at).where(rows.c.idle)
    if before is not None:
        query = query.where(rows.c.updated_at < before)
    if keep_latest is not None:
        query = query.where(rows.c.rank > keep_latest)
    query = query.order_by(rows.c.updated_at, rows.c.session_id)
    return [(row.session_id, row.updated_at) for row in connection.execute(query)]


def delete_idle(connection: Connection, session_id: str, updated_at: int) -> bool:
    """Delete a session that is still as it was found."""
    # Not one whose next run is on its way.
    given = inputs.c.session_id == session_id, inputs.c.created_at > now_ms() - _HOUR
    unchanged = and_(
        sessions.c.session_id == session_id,
        sessions.c.updated_at == updated_at,
        IDLE,
        ~exists().where(*given),
    )
    # Whoever opens a run of it meanwhile waits, finds no session then and begins a new one.
    if connection.execute(select(sessions.c.log_id).where(unchanged).with_for_update()).first():
        row = session_rows.find_session(connection, session_id)
        assert row is not None
        session_rows.delete_session(connection, row)
        return True
    return False


def _logs_with_old_saves(
    connection: Connection, keep: int, agent: str | None, before: int | None
) -> list[tuple[int, str]]:
    old = func.count() > keep
    if before is not None:
        old = or_(old, func.min(saves.c.saved_at) < before)
    query = (
        select(saves.c.log_id, sessions.c.session_id)
        .join(sessions, sessions.c.log_id == saves.c.log_id)
        .group_by(saves.c.log_id, sessions.c.session_id)
        # Of a single save nothing can go.
        .having(func.count() > 1, old)
    )
    if agent is not None:
        query = query.where(sessions.c.agent == agent)
    return [(row.log_id, row.session_id) for row in connection.execute(query)]


def _cut_saves(connection: Connection, logs: list[int], keep: int, before: int | None) -> int:
    count = sum(cut_ring(connection, log_id, keep) for log_id in logs)
    if before is not None:
        count += connection.execute(delete(saves).where(_is_old(logs, before))).rowcount
    return count


def _count_saves(connection: Connection, logs: list[int], keep: int, before: int | None) -> int:
    newest_first = saves.c.through_seq.desc()
    rank = func.row_number().over(partition_by=saves.c.log_id, order_by=newest_first)
    rows = select(saves.c.saved_at, rank.label("rank")).where(saves.c.log_id.in_(logs)).subquery()
    goes = rows.c.rank > keep
    if before is not None:
        goes = or_(goes, and_(rows.c.rank > 1, rows.c.saved_at < before))
    return connection.scalar(select(func.count()).select_from(rows).where(goes)) or 0


def _is_old(logs: list[int], before: int) -> ColumnElement[bool]:
    other = saves.alias()
    newest = (
        select(func.max(other.c.through_seq))
        .where(other.c.log_id == saves.c.log_id)
        .scalar_subquery()
    )
    return and_(saves.c.log_id.in_(logs), saves.c.saved_at < before, saves.c.through_seq < newest)


def _orphans_before(connection: Connection, kept: int) -> int:
    """Content stored before this time is no input that a run has yet to read.

    A run that is open, or was cut off, may have been given input since its last event.
    """
    oldest = connection.scalar(select(func.min(sessions.c.updated_at)).where(~IDLE))
    return kept if oldest is None else min(kept, oldest)


def _vacuum(database: Database) -> None:
    path = database.url.database or ""
    try:
        with contextlib.closing(
            sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        ) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        msg = f"The store {database} cannot be made smaller: {error}"
        raise StorageError(msg) from error
