"""Runs functions in transactions: on SQLite here or in threads, on PostgreSQL on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from sqlalchemy import create_engine, event
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from perdure.checkpoint_bridge.tables.sqlite_file import is_locked

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable
    from concurrent.futures import Future

    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine import URL

    from perdure.checkpoint_bridge.tables.sealing import Cipher

__all__ = ["Backend", "Postgres", "Sqlite"]

R = TypeVar("R")

_READERS = 4

_BUSY_SECONDS = 30
"""How long a SQLite writer waits for another process's transaction."""

_SLOW_SECONDS = 0.05
_HANGING_SECONDS = 1.0
_REST = 50.0
"""When two quick reads, or writes, in a row took longer than the first, or one longer than the
second, they go to threads for so many times as long: a disk never has more than a fiftieth of the
event loop's time. One slow moment may be the processor's, which a thread would not have sooner."""

_TOGETHER = 32
"""How many writes are done in one transaction at most: their time is the event loop's."""

_TURNS: WeakKeyDictionary[AbstractEventLoop, WeakValueDictionary[object, asyncio.Lock]] = (
    WeakKeyDictionary()
)
"""Whose turn it is to write, for each file: this process may have opened it more than once."""


class Backend(Protocol):
    """Runs a function in a transaction on one kind of database."""

    async def run(self, use: Callable[[Connection], R], *, write: bool) -> R:
        """Give what ``use`` gives."""

    async def run_quick(self, use: Callable[[Connection], R], *, write: bool) -> R:
        """The same, where ``use`` touches a few rows; it can be called twice."""

    def attach(self, cipher: Cipher) -> None:
        """Encrypt content with this. Before the first transaction."""

    async def close(self) -> None:
        """Close all connections, when those who use or wait for one are done."""


_Waiting = tuple["Callable[[Connection], Any]", "asyncio.Future[Any]"]


@dataclass(slots=True)
class _Queue:
    """Who waits on one event loop to write."""

    loop: AbstractEventLoop
    turn: asyncio.Lock
    """Of all that this process writes to the file: in the order in which they came.

    Without it, what is to run here would find the file locked by a thread of ours, and have to
    become the thread's too."""
    waiting: list[_Waiting] = field(default_factory=list)
    writer: asyncio.Task[None] | None = None

    def release(self, _: Future[Any]) -> None:
        """Give the turn back from another thread."""
        # It can outlive its event loop; nobody waits for the turn then.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.turn.release)


class Sqlite:
    """SQLite: the event loop and one thread write by turns, a few threads read.

    In memory one thread does both.
    """

    def __init__(self, url: URL, *, in_memory: bool) -> None:
        threads = partial(ThreadPoolExecutor, thread_name_prefix="perdure-store")
        self._write_thread = threads(1)
        self._write_engine = _sqlite_engine(url, "BEGIN IMMEDIATE", in_memory=in_memory)
        # What is in memory is in one connection, so its readers wait for the writer too.
        self._read_threads = self._write_thread if in_memory else threads(_READERS)
        self._read_engine = self._write_engine if in_memory else _sqlite_engine(url, "BEGIN")
        self._quick_engines: dict[bool, Engine] = {}
        if not in_memory:  # which is another thread's
            for write, begin in ((True, "BEGIN IMMEDIATE"), (False, "BEGIN")):
                self._quick_engines[write] = _sqlite_engine(url, begin, busy=0)
        self._rests_until = 0.0
        self._slow = {True: False, False: False}
        """Whether the last quick write, and the last quick read, took long."""
        self._mine = threading.local()
        self._held: set[Connection] = set()
        self._file = object() if in_memory else os.path.realpath(url.database or "")
        self._waits: _Queue | None = None

    async def run(self, use: Callable[[Connection], R], *, write: bool) -> R:
        """Run it in a thread."""
        if write:
            queue = self._queue()
            await queue.turn.acquire()
            return await self._write(queue, use, quick=False)
        return await asyncio.wrap_future(self._in_thread(use, write=False))

    async def run_quick(self, use: Callable[[Connection], R], *, write: bool) -> R:
        """Run it here, unless another process has the file or the disk is slow.

        Handing a transaction to a thread and back costs more than the transaction: the threads
        wait for each other's turn with the interpreter.
        """
        if write:
            return await self._write_soon(use)
        await asyncio.sleep(0)  # others have their turn between two of them
        done = self._here(use, write=False)
        if done is not None:
            return done[0]
        return await asyncio.wrap_future(self._in_thread(use, write=False))

    async def _write_soon(self, use: Callable[[Connection], R]) -> R:
        """Write together with what else is to be written by then."""
        queue = self._queue()
        written: asyncio.Future[R] = queue.loop.create_future()
        queue.waiting.append((use, written))
        if queue.writer is None:
            queue.writer = queue.loop.create_task(self._write_waiting(queue))
        return await written

    async def _write_waiting(self, queue: _Queue) -> None:
        """Write what waits. A commit, with its wait for the disk, is most of what a write costs."""
        try:
            while queue.waiting:
                await queue.turn.acquire()
                some = queue.waiting[:_TOGETHER]
                del queue.waiting[:_TOGETHER]
                await self._write_some(queue, some)
                await asyncio.sleep(0)
        finally:
            queue.writer = None
            for _, written in queue.waiting:
                written.cancel()

    async def _write_some(self, queue: _Queue, some: list[_Waiting]) -> None:
        """Use a turn for all of them; where one fails, for each of them by itself again."""
        some = [each for each in some if not each[1].done()]  # it is: cancelled

        def together(connection: Connection) -> list[Any]:
            return [use(connection) for use, _ in some]

        try:
            results = await self._write(queue, together, quick=True)
        except Exception as error:  # noqa: BLE001 - those who wait for it get it
            if len(some) > 1 and not isinstance(error, OperationalError):
                for each in some:
                    await queue.turn.acquire()
                    await self._write_some(queue, [each])
                return
            for _, written in some:
                if not written.done():
                    written.set_exception(error)
        else:
            for (_, written), result in zip(some, results, strict=True):
                if not written.done():
                    written.set_result(result)
        finally:
            for _, written in some:
                written.cancel()  # where nothing has come of it: the event loop ends

    async def _write(self, queue: _Queue, use: Callable[[Connection], R], *, quick: bool) -> R:
        """Write, and give back the turn that the caller has taken."""
        writing: Future[R] | None = None
        try:
            done = self._here(use, write=True) if quick else None
            if done is not None:
                return done[0]
            writing = self._in_thread(use, write=True)
            return await asyncio.wrap_future(writing)
        finally:
            if writing is None or writing.done():
                queue.turn.release()
            else:
                # Nobody waits for it any more, but the thread has the file until it is done.
                writing.add_done_callback(queue.release)

    def _queue(self) -> _Queue:
        loop = asyncio.get_running_loop()
        if self._waits is None or self._waits.loop is not loop:
            files = _TURNS.setdefault(loop, WeakValueDictionary())
            self._waits = _Queue(loop, files.setdefault(self._file, asyncio.Lock()))
        return self._waits

    def _here(self, use: Callable[[Connection], R], *, write: bool) -> tuple[R] | None:
        """What it gives; ``None`` when it is to run in a thread."""
        began = time.monotonic()
        if not self._quick_engines or began < self._rests_until:
            return None
        try:
            return (self._transaction(self._quick_engines[write], use),)
        except OperationalError as error:
            if not is_locked(error):
                raise
            return None
        finally:
            self._note_time(began, time.monotonic(), write=write)

    def _note_time(self, began: float, ended: float, *, write: bool) -> None:
        took = ended - began
        slow = took > _SLOW_SECONDS
        if took > _HANGING_SECONDS or (slow and self._slow[write]):
            self._rests_until = ended + took * _REST
        self._slow[write] = slow

    def _in_thread(self, use: Callable[[Connection], R], *, write: bool) -> Future[R]:
        threads = self._write_thread if write else self._read_threads
        engine = self._write_engine if write else self._read_engine
        return threads.submit(self._transaction, engine, use)

    def _transaction(self, engine: Engine, use: Callable[[Connection], R]) -> R:
        """Each thread holds its connections: taking one from the pool costs as much again."""
        mine: dict[Engine, Connection] = self._mine.__dict__.setdefault("connections", {})
        connection = mine.get(engine)
        if connection is None:
            connection = mine[engine] = engine.connect()
            self._held.add(connection)
        try:
            with connection.begin():
                return use(connection)
        except SQLAlchemyError:
            # Perhaps it is the connection that is broken; the next transaction has a new one.
            del mine[engine]
            self._held.discard(connection)
            with contextlib.suppress(SQLAlchemyError):
                connection.close()
            raise

    def attach(self, cipher: Cipher) -> None:
        """Encrypt content with this."""
        for engine in self._engines():
            cipher.attach(engine.dialect)

    def _engines(self) -> list[Engine]:
        return [self._write_engine, self._read_engine, *self._quick_engines.values()]

    async def close(self) -> None:
        """End the threads, and close what they and the event loop hold."""
        queue = self._queue()
        while queue.writer is not None:
            await asyncio.wait([queue.writer])
        async with queue.turn:  # after those who wait for it already
            for threads in (self._write_thread, self._read_threads):
                await asyncio.to_thread(threads.shutdown)
            for connection in self._held:
                connection.close()
            for engine in self._engines():
                engine.dispose()


class Postgres:
    """PostgreSQL: pooled connections on the event loop."""

    def __init__(self, url: URL, pool: dict[str, int]) -> None:
        self._engine = create_async_engine(url, pool_pre_ping=True, **pool)
        # The statements of a read see one state of the database, as they do in SQLite.
        self._read_engine = self._engine.execution_options(isolation_level="REPEATABLE READ")

    async def run(self, use: Callable[[Connection], R], *, write: bool) -> R:
        """Run it as what SQLAlchemy takes for a thread, on the event loop."""
        engine = self._engine if write else self._read_engine
        async with engine.begin() as connection:
            return await connection.run_sync(use)

    run_quick = run

    def attach(self, cipher: Cipher) -> None:
        """Encrypt content with this."""
        cipher.attach(self._engine.sync_engine.dialect)

    async def close(self) -> None:
        """Close the pool."""
        await self._engine.dispose()


def _sqlite_engine(
    url: URL, begin: str, *, in_memory: bool = False, busy: float | None = None
) -> Engine:
    """Take transactions out of the driver's hands, and make commits survive a power cut."""
    engine = create_engine(
        url,
        connect_args={
            "timeout": _BUSY_SECONDS if busy is None else busy,
            "check_same_thread": False,
        },
        **({"poolclass": StaticPool} if in_memory else {"pool_size": _READERS}),
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # The driver's own: through SQLAlchemy it costs more than all else that it does.
        driver: Any = connection.connection.dbapi_connection
        try:
            driver.execute(begin)
        except sqlite3.Error as error:
            raise OperationalError(begin, None, error) from error

    return engine
