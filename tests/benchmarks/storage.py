"""Measures of the store alone: forks by size, and reads of a store with many sessions."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.checkpoint_bridge.tables.event_log import Batch
from tests.benchmarks.report import Row
from tests.benchmarks.rig import clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.benchmarks.runs import Sizes

_MESSAGE = 1_000


def conversation(messages: int, size: int = _MESSAGE) -> list[NewEvent]:
    """The events of a finished run of so many messages."""
    start = {"turn": 1, "runId": "r", "agent": "bench", "fresh": True, "fingerprint": None}
    events = [NewEvent(ev.TURN_START, start)]
    usage = {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110}
    for number in range(messages // 2):
        text = f"{number:06d}".ljust(size, "x")
        events.append(NewEvent(ev.USER_MESSAGE, {"message": {"role": "user", "content": text}}))
        said = {"message": {"role": "assistant", "content": text}, "model": "m", "usage": usage}
        events.append(NewEvent(ev.ASSISTANT_MESSAGE, said))
    events.append(NewEvent(ev.TURN_END, {"turn": 1, "reason": {"kind": "completed"}}))
    return events


async def write(store: SqlStore, session_id: str, events: list[NewEvent]) -> None:
    """Make a finished session of events."""
    log_id, head = await store.open_session(
        session_id, agent="bench", run_id="r", head=0, time_ms=1, events=[]
    )
    save = NewSave(len(events), ev.FINISHED, "stop")
    await store.append(Batch(session_id, log_id, "r", head, 2, events, [save]))


async def fork(folder: Path, sizes: Sizes) -> list[Row]:
    """Fork a session of 10 MB and one of 10 KB, each by a store that has read nothing before."""
    url = f"sqlite:///{folder / 'forks.db'}"
    kinds = {"small": 10, "large": 10_000}
    async with SqlStore(url) as store:
        for name, messages in kinds.items():
            await write(store, name, conversation(messages))
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(sizes.forks):
        for name, messages in kinds.items():
            async with SqlStore(url) as store:
                with clock() as taken:
                    await store.fork(name, from_step=messages // 2)
            times[name].append(1_000 * taken[0])
    more = [a - b for a, b in zip(times["large"], times["small"], strict=True)]
    return [Row("fork of a 10 MB session, more than of a 10 KB one", "ms", more, at_most=50)]


async def many(folder: Path, sizes: Sizes) -> list[Row]:
    """Reads of a store with 10,000 sessions of 100 events."""
    path = folder / "many.db"
    url = f"sqlite:///{path}"
    async with SqlStore(url) as store:
        await write(store, "s1", conversation(sizes.events_each - 2, 200))
    multiply(path, sizes.sessions)
    middle = f"s{sizes.sessions // 2}"
    title = f"{sizes.sessions:,} sessions of {sizes.events_each} events"
    reads: dict[str, Callable[[SqlStore], Awaitable[Any]]] = {
        "first page of events": lambda store: store.events(middle, limit=50),
        "last checkpoint": lambda store: store.load(middle),
        "first page of sessions": lambda store: store.sessions(limit=50),
    }
    rows = []
    for name, read in reads.items():
        times = []
        for _ in range(sizes.forks):
            async with SqlStore(url) as store:
                with clock() as taken:
                    await read(store)
            times.append(1_000 * taken[0])
        rows.append(Row(f"{name}, {title}", "ms", times, at_most=50))
    return rows


def multiply(path: Path, count: int) -> None:
    """Make ``count`` sessions of the one that a store holds, past the store's own code."""
    own = {
        "perdure_logs": {"id": "n", "uid": "printf('%032d', n)"},
        "perdure_sessions": {"session_id": "'s' || n", "log_id": "n", "updated_at": "n"},
        "perdure_events": {"log_id": "n"},
        "perdure_saves": {"log_id": "n"},
    }
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for table, changed in own.items():
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            values = ", ".join(changed.get(name, f"one.{name}") for name in names)
            connection.execute(
                "WITH RECURSIVE numbers(n) AS "
                "(SELECT 2 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
                f"INSERT INTO {table} SELECT {values} FROM numbers, "
                f"(SELECT * FROM {table} WHERE {next(iter(changed))} IN (1, 's1')) AS one",
                (count,),
            )
