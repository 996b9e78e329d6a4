"""Keeps other stores up to date: every save of our log goes to them in the documented format.

A mirror never takes part in a run. When its store is down it lags, says so once, and catches up;
what the ring of our own history has dropped meanwhile the other store's ring would have dropped
too, so it ends with the same content.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    PerdureError,
    SessionConflictError,
    SessionIdInvalidError,
    SessionNotFoundError,
)
from perdure.checkpoint_bridge.mirrors.mirror_copy import Copier
from perdure.checkpoint_bridge.stores.addresses import name_of, stores_of
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables import mirror_rows as rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Any

    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.stores.addresses import Targets
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.stores.store import CheckpointStore
    from perdure.checkpoint_bridge.tables.mirror_rows import Behind

__all__ = ["Mirror", "mirroring"]

_LOOK_EVERY = 1.0
"""Seconds between looks for what other processes have saved."""
_LOOK_AT_ALL_EVERY = 10.0
_OVERLAP_MS = 120_000
"""A save can be committed this long after the moment that it bears, and is still found early."""
_LEASE = 15.0
_RENEW = 5.0
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 30.0
_FAILURES = 3
"""So many sessions in a row that cannot be written mean that the store is down."""
_AT_A_TIME = 20
"""Saves that are written in one go, where a target can, and noted then."""
_GATHER, _LONGEST_GATHER = 0.1, 2.0
"""Seconds between looks, so that the saves of busy runs are written together."""
_SHARE = 4
"""A mirror rests so many times as long as it worked: runs in this process go first."""
_PATIENCE = 0.5
"""Seconds in which a worker ends the write that it is at, when another process takes over."""
_CATCH_UP = 5.0
"""Seconds that a process which ends gives its mirrors."""
_REFUSALS = (ConfigurationError, SessionConflictError, SessionIdInvalidError)
"""About one session, and not over by waiting."""

_log = logging.getLogger("perdure.mirror")


class _LostLeaseError(Exception):
    """Another process writes to the mirror now."""


@dataclass(slots=True)
class _Retry:
    """When to try again, later each time."""

    at: float = 0.0
    delay: float = 0.0

    def failed(self, longest: float = _LONGEST_DELAY) -> None:
        self.delay = min(max(self.delay * 2, _FIRST_DELAY), longest)
        self.at = time.monotonic() + self.delay


class Mirror:
    """Copies every save of a store, in order and with its own time, to another store.

    Any number of processes may mirror to one name; one of them writes at a time.

    Args:
        source: whose saves are copied.
        target: any documented store; what it cannot keep (times, approvals) is left out.
        name: under which the place is remembered; default: the target's address or class.
    """

    def __init__(self, source: SqlStore, target: CheckpointStore, name: str | None = None) -> None:
        self.source = source
        self.target = target
        self.name = name or name_of(target)
        self._copier = Copier(source, target)
        self._owner = uuid.uuid4().hex
        self._lease_until = 0.0
        self._next_lease = 0.0
        self._notes: dict[str, tuple[Behind, int]] = {}
        """Places that were reached and not noted yet."""
        self._placed: set[int] = set()
        """Logs whose place in the target was looked up since this one began to write."""
        self._retries: dict[int, _Retry] = {}
        self._refused: dict[int, str] = {}
        self._down = _Retry()
        self._reason = ""
        self._told = False
        self._look_at_all = 0.0
        self._looked = False
        self._woken = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Mirror until this is cancelled. No error of either store ends it."""
        self.source.on_save.add(self._on_save)
        try:
            while True:
                self._woken.clear()
                started = time.monotonic()
                await self._look()
                rest = min((time.monotonic() - started) * _SHARE, _LONGEST_GATHER)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(rest, _GATHER)):
                        await self._hurry.wait()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._woken.wait()
        finally:
            self.source.on_save.discard(self._on_save)
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2.0):
                    await self._give_back()

    async def lag(self) -> int:
        """How many saves the target lacks."""
        return await self.source.database.read(rows.count_behind, self.name)

    async def catch_up(self, seconds: float = _CATCH_UP) -> bool:
        """While :meth:`run` goes on: wait until nothing is missing; false when it takes too long.

        It does not wait for a target that is down, or for another process that writes to it.
        """
        self._hurry.set()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    found = await self.source.database.read(rows.behind, self.name)
                    if all(each.log_id in self._retries for each in found):
                        return not found
                    if self._looked and not self._lease_until:
                        return False
                    self._look_at_all = 0.0
                    self._woken.set()
                    await asyncio.sleep(_FIRST_DELAY / 10)
        except (TimeoutError, PerdureError):
            return False
        finally:
            self._hurry.clear()

    async def copy_session(self, session_id: str) -> int:
        """Write the saves of one session that the target lacks, now; returns how many.

        Raises:
            SessionNotFoundError: the source has no such session.
            SessionConflictError: the target holds another session of this id.
            PerdureError: the target cannot be written.
        """
        session = await self._session(session_id)
        async with self._alone():
            written = await self._copy(session)
            await self._note()
            return written

    async def rebuild(self, session_id: str) -> int:
        """Delete a session in the target and write all saves that are kept; returns how many.

        Raises:
            SessionNotFoundError: the source has no such session.
            PerdureError: the target cannot be written.
        """
        session = await self._session(session_id)
        async with self._alone():
            await self.target.delete(session_id)
            saves = await self.source.database.read(rows.kept_saves, session.log_id)
            await self._write(session, saves, 0)
            await self._note()
            return len(saves)

    # -- who writes --------------------------------------------------------------------------

    async def _lead(self, *, force: bool = False) -> bool:
        """Be the one who writes; renewed long before it ends."""
        now = time.monotonic()
        if now < self._lease_until - (_LEASE - _RENEW) and not force:
            return True
        if now < self._next_lease and not force:
            return False
        self._next_lease = now + _LOOK_EVERY
        database, clock = self.source.database, now_ms()
        owner, until_ms = await database.read(rows.lease_of, self.name)
        mine = owner == self._owner and until_ms >= clock
        if owner not in ("", self._owner) and until_ms >= clock and not force:
            self._lost()
            return False
        taken = await database.write(
            rows.take_lease,
            self.name,
            self._owner,
            now_ms=clock,
            until_ms=clock + int(_LEASE * 1000),
            force=force,
        )
        if not taken:
            self._lost()
            return False
        if not mine:
            self._placed.clear()
        self._lease_until = now + _LEASE
        return True

    def _lost(self) -> None:
        self._lease_until = 0.0
        self._look_at_all = 0.0
        self._placed.clear()
        self._notes.clear()

    async def _give_back(self) -> None:
        if self._lease_until:
            self._lost()
            await self.source.database.write(rows.give_lease_back, self.name, self._owner)

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Write, whoever else does: a worker notices that, and goes on when this is done."""
        owner, until_ms = await self.source.database.read(rows.lease_of, self.name)
        await self._lead(force=True)
        if owner != self._owner and until_ms > now_ms():
            await asyncio.sleep(_PATIENCE)
        try:
            yield
        except _LostLeaseError:
            msg = f"Another process began to write to {self.name} meanwhile."
            raise SessionConflictError(msg, hint="Try again.") from None
        finally:
            await self._give_back()

    # -- what is to be written ---------------------------------------------------------------

    def _on_save(self, time_ms: int) -> None:
        if time_ms < now_ms() - _OVERLAP_MS:
            self._look_at_all = 0.0  # imported: the time is that of the original save
        self._woken.set()

    def _pause(self) -> float:
        now = time.monotonic()
        waits = [retry.at - now for retry in (*self._retries.values(), self._down)]
        return max(0.01, min([_LOOK_EVERY, *(wait for wait in waits if wait > 0)]))

    async def _look(self) -> None:
        """Write what is missing; errors are told and tried again."""
        try:
            if not await self._lead():
                return
            now = time.monotonic()
            # What cannot be written for long is no recent activity any more.
            at_all = now >= self._look_at_all or bool(self._failing) or self._down.at > 0
            since = None if at_all else now_ms() - _OVERLAP_MS
            if at_all:
                # Before the look: what is imported while it goes on asks for another one.
                self._look_at_all = now + _LOOK_AT_ALL_EVERY
            owner, found = await self.source.database.read(_look, self.name, since)
            if owner != self._owner:
                raise _LostLeaseError
            if at_all:
                self._forget({each.log_id for each in found})
            try:
                await self._copy_all(found)
            finally:
                await self._note()
            await self._tell()
        except _LostLeaseError:
            self._lost()
        except Exception as error:  # noqa: BLE001 - our own store is down; runs say so too
            _log.debug("Mirror %s cannot read its source: %s", self.name, error)
            self._look_at_all = 0.0
        finally:
            self._looked = True

    @property
    def _failing(self) -> set[int]:
        """Logs that could not be written because of the target."""
        return self._retries.keys() - self._refused.keys()

    def _forget(self, behind: set[int]) -> None:
        """Drop what is remembered of sessions that are not behind any more."""
        for log_id in self._retries.keys() - behind:
            del self._retries[log_id]
            self._refused.pop(log_id, None)
        if not behind:
            self._down = _Retry()

    async def _copy_all(self, found: list[Behind]) -> None:
        failures = 0
        # What failed before comes last: one session that cannot be written holds up no other.
        for session in sorted(found, key=lambda each: each.log_id in self._retries):
            now = time.monotonic()
            retry = self._retries.get(session.log_id)
            if (retry or self._down).at > now:
                continue
            try:
                await self._copy(session)
            except (_LostLeaseError, asyncio.CancelledError):
                raise
            except SessionNotFoundError:
                continue  # deleted just now
            except _REFUSALS as error:
                self._refuse(session, error)
            except Exception as error:  # noqa: BLE001 - whatever a store of a user's own raises
                self._reason = _reason(error)
                self._retries.setdefault(session.log_id, _Retry()).failed()
                self._refused.pop(session.log_id, None)
                failures += retry is None
                if failures == _FAILURES:
                    self._down.failed()
                    break
            else:
                self._retries.pop(session.log_id, None)
                self._refused.pop(session.log_id, None)
                self._down = _Retry()
                failures = 0

    def _refuse(self, session: Behind, error: Exception) -> None:
        retry = self._retries.setdefault(session.log_id, _Retry(delay=_LONGEST_DELAY))
        retry.failed()
        if self._refused.get(session.log_id) != str(error):
            self._refused[session.log_id] = str(error)
            _log.warning(
                "Mirror %s does not take session %s: %s", self.name, session.session_id, error
            )

    async def _tell(self) -> None:
        """Say once that the mirror lags, and once that it does not any more."""
        if self._failing and not self._told:
            self._told = True
            saves = await self.lag()
            _log.warning("Mirror %s lags by %d saves: %s", self.name, saves, self._reason)
        elif self._told and not self._failing and not self._down.at:
            self._told = False
            _log.info("Mirror %s has caught up", self.name)

    async def _copy(self, session: Behind) -> int:
        """Write what the target lacks of a session; returns how many saves."""
        saves = await self.source.database.read(rows.kept_saves, session.log_id)
        after = session.after
        if session.log_id not in self._placed:
            after = await self._copier.place(session, saves)
        # Until all is noted, what the target has is not known for sure.
        self._placed.discard(session.log_id)
        written = await self._write(session, saves, after)
        self._placed.add(session.log_id)
        return written

    async def _write(self, session: Behind, saves: Sequence[Any], after: int) -> int:
        first: int = sum(save.through_seq <= after for save in saves)
        for start in range(first, len(saves), _AT_A_TIME):
            if not await self._lead():
                raise _LostLeaseError
            group = saves[start : start + _AT_A_TIME]
            await self._copier.write(session, group, saves[start - 1] if start else None)
            after = group[-1].through_seq
            self._notes[session.session_id] = (session, after)
            if len(group) == _AT_A_TIME:
                await self._note()
        if session.after != after or not session.known:
            self._notes[session.session_id] = (session, after)
        return len(saves) - first

    async def _note(self) -> None:
        """Remember how far the target is with the sessions that were written."""
        notes, self._notes = list(self._notes.values()), {}
        if not notes:
            return
        try:
            mine = await self.source.database.write(
                rows.move_cursors, self.name, self._owner, notes
            )
        except BaseException:
            # What the target has is not what our store says: it is looked up again.
            self._placed.clear()
            raise
        if not mine:
            raise _LostLeaseError

    async def _session(self, session_id: str) -> Behind:
        found = await self.source.database.read(rows.behind, self.name, session_id=session_id)
        if not found:
            msg = f"There is no session {session_id!r} in the store."
            raise SessionNotFoundError(msg)
        return found[0]


@contextlib.asynccontextmanager
async def mirroring(source: SqlStore, targets: Targets) -> AsyncIterator[list[Mirror]]:
    """Mirror in the background while the block runs; at its end the mirrors may catch up.

    A mirror that fails, at any time, ends nothing but itself.

    Args:
        source: whose saves are copied.
        targets: stores, or addresses of stores.

    Raises:
        ConfigurationError: an address is wrong, or one store is meant twice.
    """
    stores = stores_of(targets)
    mirrors = [Mirror(source, store) for store, _ in stores]
    names = [name_of(source), *(mirror.name for mirror in mirrors)]
    for name in names:
        if names.count(name) > 1:
            msg = f"The mirror {name} is the store itself, or named twice."
            hint = "Give each of several stores of your own class a `name`."
            raise ConfigurationError(msg, field="mirror", hint=hint)
    tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
    try:
        yield mirrors
    finally:
        await asyncio.gather(*(mirror.catch_up() for mirror in mirrors))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store, is_ours in stores:
            close = getattr(store, "close", None)
            if is_ours and close is not None:
                with contextlib.suppress(Exception):
                    await close()


def _look(connection: Connection, name: str, since_ms: int | None) -> tuple[str, list[Behind]]:
    return rows.lease_of(connection, name)[0], rows.behind(connection, name, since_ms=since_ms)


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
