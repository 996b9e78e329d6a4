"""What a run does at each step: at once where it can be, and never holding up its process."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.event import listen
from sqlalchemy.exc import IntegrityError

from perdure.checkpoint_bridge.errors import LogConflictError, StorageError
from perdure.checkpoint_bridge.log.events import NewEvent, encode
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.checkpoint_bridge.tables import backends
from perdure.checkpoint_bridge.tables.event_log import Batch, _insert
from perdure.checkpoint_bridge.tables.ledger import EffectId, begin_effect

if TYPE_CHECKING:
    from sqlalchemy import Connection


async def begin(store: SqlStore, log_id: int, seq: int) -> int:
    effect = EffectId(log_id, seq, 0)
    found = await store.begin_effect(effect, session_id="s", run_id="r", name="tool")
    return found.starts


async def opened(store: SqlStore) -> int:
    log_id, _ = await store.open_session("s", agent="a", run_id="r", head=0, time_ms=1, events=[])
    return log_id


def where() -> Any:
    def name(_: Connection) -> str:
        return threading.current_thread().name

    return name


async def test_it_runs_here_and_leaves_no_thread_waiting(store_url: str) -> None:
    async with SqlStore(store_url) as store:
        here = threading.current_thread().name
        assert await store.database.write_quick(where()) == here
        assert await store.database.read_quick(where()) == here
        assert await store.database.write(where()) != here


async def test_a_file_that_somebody_has_is_waited_for_elsewhere(store_url: str) -> None:
    async with SqlStore(store_url) as store:
        log_id = await opened(store)
        path = store_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(begin(store, log_id, 1))
            # The loop goes on, and so would the heartbeats of everything in it.
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            other.execute("COMMIT")
        assert await waiting == 1
        assert await begin(store, log_id, 1) == 2


async def test_a_slow_disk_is_left_to_the_threads(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqlStore(store_url) as store:
        here = threading.current_thread().name
        monkeypatch.setattr(backends, "_SLOW_SECONDS", -1.0)
        monkeypatch.setattr(backends, "_REST", 1e9)
        assert await store.database.write_quick(where()) == here
        assert await store.database.read_quick(where()) == here
        assert await store.database.write_quick(where()) == here  # once was no disk, perhaps
        assert await store.database.write_quick(where()) != here


async def test_a_disk_that_hangs_is_waited_for_once(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqlStore(store_url) as store:
        here = threading.current_thread().name
        monkeypatch.setattr(backends, "_HANGING_SECONDS", -1.0)
        monkeypatch.setattr(backends, "_REST", 1e9)
        assert await store.database.write_quick(where()) == here
        assert await store.database.write_quick(where()) != here


async def test_writers_of_one_process_never_find_the_file_locked(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that may run here do, however many others write in threads, of another store too."""
    monkeypatch.setattr(backends, "_SLOW_SECONDS", 60.0)
    async with SqlStore(store_url) as store, SqlStore(store_url) as other:
        log_id = await opened(store)
        here = threading.current_thread().name
        order: list[int] = []

        async def write(number: int) -> bool:
            def use(connection: Connection) -> str:
                begin_effect(
                    connection,
                    EffectId(log_id, number, 0),
                    session_id="s",
                    run_id="r",
                    name="tool",
                    time_ms=1,
                )
                order.append(number)
                return threading.current_thread().name

            database = (store, other)[number % 2].database
            quick = number % 3 > 0
            ran = await (database.write_quick if quick else database.write)(use)
            return (ran == here) is quick

        assert all(await asyncio.gather(*map(write, range(30))))
        assert sorted(order) == list(range(30))  # each of them once
        assert [await begin(store, log_id, number) for number in range(30)] == [2] * 30


async def test_who_is_cancelled_gives_its_turn_back(store_url: str) -> None:
    """While it waits for it; and while a thread writes, when that is done."""
    async with SqlStore(store_url) as store:
        log_id = await opened(store)
        inside, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def hold(_: Connection) -> None:
            loop.call_soon_threadsafe(inside.set)
            go_on.wait()

        holding = asyncio.create_task(store.database.write(hold))
        await inside.wait()
        waiting = [
            asyncio.create_task(store.database.write_quick(where())),
            asyncio.create_task(store.database.write(where())),
        ]
        behind = asyncio.create_task(begin(store, log_id, 1))
        for _ in range(10):
            await asyncio.sleep(0)
        for task in (holding, *waiting):
            task.cancel()
        gone = await asyncio.gather(holding, *waiting, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in gone)
        assert not behind.done()
        go_on.set()
        assert await behind == 1
        assert await store.database.write_quick(where()) == threading.current_thread().name


def test_a_store_is_used_from_one_event_loop_after_the_other(store_url: str) -> None:
    store = SqlStore(store_url)

    async def use() -> list[int]:
        log_id = await opened(store) if not await store.session("s") else 1
        return sorted(await asyncio.gather(*(begin(store, log_id, 1) for _ in range(5))))

    assert asyncio.run(use()) == [1, 2, 3, 4, 5]
    assert asyncio.run(use()) == [6, 7, 8, 9, 10]
    asyncio.run(store.close())


async def test_what_the_driver_says_is_told_as_ever(store_url: str) -> None:
    """The statements of each step go to it directly."""
    event = NewEvent("note", {})

    def twice(connection: Connection, batch: Batch) -> None:
        for _ in range(2):
            _insert(connection, batch, [encode(event)], 0, [None])

    async with SqlStore(store_url) as store:
        log_id = await opened(store)
        with pytest.raises(LogConflictError, match="was faster") as raised:
            await store.database.write_quick(twice, Batch("s", log_id, "r", 0, 1, [event]))
        assert isinstance(raised.value.__cause__, IntegrityError)
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as other:
            other.execute("DROP TABLE perdure_effects")
        with pytest.raises(StorageError, match="no such table: perdure_effects"):
            await begin(store, log_id, 1)


async def test_writes_that_wait_at_the_same_time_are_committed_together(store_url: str) -> None:
    """One that cannot be done fails alone, and none is done twice."""
    async with SqlStore(store_url) as store:
        log_id = await opened(store)
        backend: Any = await store.database.open()
        commits: list[object] = []
        listen(backend._quick_engines[True], "commit", commits.append)
        assert await asyncio.gather(*(begin(store, log_id, seq) for seq in range(9))) == [1] * 9
        assert len(commits) == 1
        stranger = EffectId(log_id, 9, 0)
        failed, *done = await asyncio.gather(
            store.begin_effect(stranger, session_id="s", run_id="other", name="tool"),
            *(begin(store, log_id, seq) for seq in range(9)),
            return_exceptions=True,
        )
        assert isinstance(failed, LogConflictError)
        assert done == [2] * 9
        assert await store.effect(stranger) is None
