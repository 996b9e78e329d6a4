"""What a run does at each step: at once where it can be, and never holding up its process."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.checkpoint_bridge.tables import database
from perdure.checkpoint_bridge.tables.ledger import EffectId

if TYPE_CHECKING:
    import pytest
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
        monkeypatch.setattr(database, "_SLOW_SECONDS", -1.0)
        assert await store.database.write_quick(where()) == here
        assert await store.database.write_quick(where()) != here
