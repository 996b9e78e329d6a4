"""Measures of the store alone: forks by size, and reads of a store with many sessions."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge import events as ev
from perdure.checkpoint_bridge.event_log import Batch
from perdure.checkpoint_bridge.events import NewEvent, NewSave, encode
from perdure.checkpoint_bridge.sql_store import SqlStore
from tests.benchmarks.report import Row
from tests.benchmarks.rig import clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
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


async def fork(folder: Path, sizes: Sizes) -> list[Row]:
    """Fork a session of 10 MB and one of 10 KB, each by a store that has read nothing before."""
    url = f"sqlite:///{folder / 'forks.db'}"
    kinds = {"small": 10, "large": 10_000}
    async with SqlStore(url) as store:
        for name, messages in kinds.items():
            log_id, head = await store.open_session(
                name, agent="bench", run_id="r", head=0, time_ms=1, events=[]
            )
            events = conversation(messages)
            save = NewSave(len(events), ev.FINISHED, "stop")
            await store.append(Batch(name, log_id, "r", head, 2, events, [save]))
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
    async with SqlStore(url):
        pass
    seed(path, sizes.sessions, sizes.events_each)
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


def seed(path: Path, sessions: int, events_each: int) -> None:
    """Fill a store with finished sessions, past the store's own code: a million events."""
    encoded = [encode(event) for event in conversation(events_each - 2, 200)]
    end = json.dumps({"kind": "completed"})

    def events() -> Iterator[tuple[Any, ...]]:
        for number in range(1, sessions + 1):
            for seq, event in enumerate(encoded):
                yield number, seq, event.type, number, event.data, event.ref, event.digest

    def many(marks: int) -> str:
        return ", ".join("?" * marks)

    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        numbers = range(1, sessions + 1)
        connection.executemany(
            "INSERT INTO perdure_logs (id, uid, inherited) VALUES (?, ?, 0)",
            ((number, f"{number:032d}") for number in numbers),
        )
        names = "session_id, log_id, head, writer, agent, title, created_at, updated_at"
        names += ", has_checkpoint, status, step, last_end"
        connection.executemany(
            f"INSERT INTO perdure_sessions ({names}) VALUES ({many(12)})",
            (
                (f"s{n}", n, len(encoded), "r", "bench", "Hello", n, n, 1, ev.FINISHED, 49, end)
                for n in numbers
            ),
        )
        names = "log_id, seq, type, time_ms, data, ref, digest"
        connection.executemany(f"INSERT INTO perdure_events ({names}) VALUES ({many(7)})", events())
        names = "log_id, through_seq, step, status, finish_reason, saved_at"
        connection.executemany(
            f"INSERT INTO perdure_saves ({names}) VALUES ({many(6)})",
            ((n, len(encoded), 49, ev.FINISHED, "stop", n) for n in numbers),
        )
