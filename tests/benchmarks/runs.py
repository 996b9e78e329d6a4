"""Measures of runs: each takes a rig and gives rows.

Floor and ours take turns, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.worker import Replayer

from perdure.checkpoint_bridge.format.stable_json import to_stored_text
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.client import connect
from perdure.worker import workflow_runner
from perdure.workflows.agent_workflow import AgentWorkflow
from tests.benchmarks.report import Row
from tests.benchmarks.rig import MEGABYTE, clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from temporalio.client import WorkflowHistory

    from tests.benchmarks.rig import Rig, WorkerProcess

KIB = 1024


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    rounds: int = 7
    steps: int = 20
    waves: int = 3
    concurrent: int = 50
    history_steps: tuple[int, ...] = (10, 20, 40, 80)
    history_sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    long_steps: int = 400
    long_rounds: int = 2
    waiting: int = 1_000
    image_steps: int = 200
    recoveries: int = 3
    sessions: int = 10_000
    events_each: int = 100
    forks: int = 9


QUICK = Sizes(1, 2, 1, 2, (1, 2), (1_000,), 5, 1, 3, 3, 1, 20, 20, 2)
"""The smallest form, which only shows that everything works."""


@contextlib.asynccontextmanager
async def both(rig: Rig) -> AsyncIterator[dict[str, tuple[WorkerProcess, str]]]:
    """The floor, ours, and ours with local tools, each warmed up."""
    async with rig.worker("floor") as floor, rig.worker("ours") as ours:
        kinds = {"floor": (floor, "work"), "ours": (ours, "work"), "local": (ours, "quick")}
        for worker, tool in kinds.values():
            await rig.run(worker, 3, 100, tool=tool)
        yield kinds


async def steps(rig: Rig, sizes: Sizes, where: str) -> list[Row]:
    """W(20, 100), one run at a time: time and CPU for each step."""
    async with both(rig) as kinds:
        times: dict[str, list[float]] = {name: [] for name in kinds}
        cpu: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(sizes.rounds):
            for name, (worker, tool) in kinds.items():
                before = worker.cpu
                with clock() as taken:
                    await rig.run(worker, sizes.steps, 100, tool=tool)
                times[name].append(1_000 * taken[0] / sizes.steps)
                cpu[name].append(1_000 * (worker.cpu - before) / sizes.steps)
    title = f"W({sizes.steps}, 100), server {where}"
    return [
        Row(f"time per step, {title}", "ms", times["ours"], times["floor"], at_most=1.2),
        Row(f"worker CPU per step, {title}", "ms", cpu["ours"], cpu["floor"], at_most=1.6),
        Row(f"time per step, local tools, {title}", "ms", times["local"], times["floor"]),
        Row(f"worker CPU per step, local tools, {title}", "ms", cpu["local"], cpu["floor"]),
    ]


async def throughput(rig: Rig, sizes: Sizes, where: str) -> list[Row]:
    """50 concurrent W(5, 100) on one worker: finished runs a second."""
    async with both(rig) as kinds:
        rates: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(sizes.waves):
            for name, (worker, tool) in kinds.items():
                with clock() as taken:
                    await asyncio.gather(
                        *(rig.run(worker, 5, 100, tool=tool) for _ in range(sizes.concurrent))
                    )
                rates[name].append(sizes.concurrent / taken[0])
    title = f"{sizes.concurrent} × W(5, 100) at once, server {where}"
    local = f"{title}, local tools"
    return [
        Row(title, "runs/s", rates["ours"], rates["floor"], at_least=0.85),
        Row(local, "runs/s", rates["local"], rates["floor"], at_least=1.3),
    ]


def _bytes(histories: list[WorkflowHistory]) -> int:
    return sum(event.ByteSize() for history in histories for event in history.events)


def _events(histories: list[WorkflowHistory]) -> int:
    return sum(len(history.events) for history in histories)


async def history(rig: Rig, sizes: Sizes, chart: dict[str, list[tuple[int, float]]]) -> list[Row]:
    """Bytes and events of Temporal's history for each step, beyond those of a run without one."""
    rows = []
    async with both(rig) as kinds:
        for size in sizes.history_sizes:
            cost: dict[str, dict[int, tuple[float, float]]] = {}
            for name, (worker, tool) in kinds.items():
                empty = await rig.histories(await rig.run(worker, 0, size, tool=tool))
                cost[name] = {}
                for count in sizes.history_steps:
                    run = await rig.histories(await rig.run(worker, count, size, tool=tool))
                    cost[name][count] = (
                        (_bytes(run) - _bytes(empty)) / count / KIB,
                        (_events(run) - _events(empty)) / count,
                    )
                    if size != 1_000 and not (name == "floor" and size > 10_000):
                        line = chart.setdefault(f"{name}, {size:,} characters", [])
                        line.append((count, _bytes(run) / KIB))
            rows += _history_rows(size, sizes.history_steps, cost)
    return rows


def _history_rows(
    size: int, counts: tuple[int, ...], cost: dict[str, dict[int, tuple[float, float]]]
) -> list[Row]:
    # A result that fits is in the history itself, where people look for it.
    goal = 3.0 if size > 4_000 else 2.0 + size / KIB
    rows = []
    for count in (counts[0], counts[-1]):
        ours, floor = cost["ours"][count][0], cost["floor"][count][0]
        name = f"history per step, W({count}, {size:,})"
        rows.append(Row(name, "KiB", [ours], [floor], at_most=goal, absolute=True))
    last = counts[-1]
    for kind, events, name in (("ours", 15, "events"), ("local", 10, "events, local tools,")):
        if size == 10_000:
            rows.append(
                Row(
                    f"{name} per step, W({last}, {size:,})",
                    "events",
                    [cost[kind][last][1]],
                    [cost["floor"][last][1]],
                    at_most=events,
                    absolute=True,
                )
            )
    return rows


async def long_run(rig: Rig, sizes: Sizes) -> list[Row]:
    """W(400, 20000): it completes, and what it costs; the cold replay of its longest execution."""
    times: dict[str, list[float]] = {"floor": [], "ours": []}
    async with rig.worker("floor") as floor, rig.worker("ours") as ours, ours.watched() as memory:
        for _ in range(sizes.long_rounds):
            for worker in (floor, ours):
                with clock() as taken:
                    run = await rig.run(worker, sizes.long_steps, 20_000)
                times[worker.system].append(taken[0])
    longest = max(await rig.histories(run), key=lambda each: len(each.events))
    replays = []
    for _ in range(3):
        replayer = Replayer(workflows=[AgentWorkflow], workflow_runner=workflow_runner())
        with clock() as taken:
            await replayer.replay_workflow(longest)
        replays.append(taken[0])
    title = f"W({sizes.long_steps}, 20,000)"
    count = len(longest.events)
    return [
        Row(f"{title} completes", "s", times["ours"], times["floor"], at_most=1.3),
        Row(f"{title}: worker memory, highest", "MB", [max(memory)], at_most=200),
        Row(f"cold replay at the roll-over ({count:,} events)", "s", replays, at_most=5),
    ]


async def waiting(rig: Rig, sizes: Sizes) -> list[Row]:
    """1,000 runs wait for approval on one worker; then all are decided."""
    count = sizes.waiting
    gate = asyncio.Semaphore(50)
    async with (
        rig.worker("ours") as worker,
        worker.watched() as memory,
        SqlStore(worker.store) as store,
    ):

        async def start() -> Any:
            async with gate:
                return await rig.start(worker, 1, 100, tool="gated")

        with clock() as paused:
            handles = await asyncio.gather(*(start() for _ in range(count)))
            while len(approvals := await store.approvals()) < count:  # noqa: ASYNC110 - others write them
                await asyncio.sleep(0.2)
        held = worker.memory

        async def decide(session_id: str, approval_id: str) -> None:
            async with gate:
                handle = rig.client.get_workflow_handle(session_id)
                decision = {"id": approval_id, "approved": True}
                await handle.signal("resolve_approval", decision)

        with clock() as finished:
            await asyncio.gather(*(decide(each.session_id, each.id) for each in approvals))
            await asyncio.gather(*(handle.result() for handle in handles))
        done = len(await store.sessions(status="finished"))
    title = f"{count:,} runs wait for approval"
    return [
        Row(f"{title}: decided and finished", "runs", [float(done)], at_least=count),
        Row(f"{title}: worker memory while they wait", "MB", [held], at_most=300),
        Row(f"{title}: worker memory, highest", "MB", [max(memory)], at_most=300),
        Row(f"{title}: until all wait", "s", [paused[0]]),
        Row(f"{title}: until all are finished", "s", [finished[0]]),
    ]


async def recovery(rig: Rig, sizes: Sizes) -> list[Row]:
    """SIGKILL in the middle of a tool, another worker at once: seconds until the run has ended."""
    seconds = []
    for _ in range(sizes.recoveries):
        held = rig.folder / "held"
        held.unlink(missing_ok=True)
        async with rig.worker("ours") as first:
            handle = await rig.start(first, 2, 100, tool="hold")
            while not held.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
            first.kill()
            with clock() as taken:
                async with rig.worker("ours", queue=first.queue, store=first.store):
                    await handle.result()
            seconds.append(taken[0])
    name = "worker killed in a tool, another one started: until the run has ended"
    # Five seconds of silence until a worker counts as dead, and five more for all the rest.
    return [Row(name, "s", seconds, at_most=10)]


async def image(rig: Rig, sizes: Sizes) -> list[Row]:
    """A 1 MB image in the first message, 200 steps: the store's size to its distinct content."""
    data = base64.b64encode(os.urandom(3 * MEGABYTE // 4)).decode()
    parts = [
        {"type": "text", "text": f"work {sizes.image_steps} 1000"},
        {"type": "image", "image": f"data:image/png;base64,{data}"},
    ]
    async with (
        rig.worker("ours") as worker,
        connect(worker.store, temporal=rig.client, task_queue=worker.queue) as client,
    ):
        message = {"role": "user", "content": parts}
        result = await client.execute("bench", [message], session_id=f"image-{worker.queue}")
        # The last checkpoint holds each message once.
        record = await client.checkpoint(result.session_id)
        assert record is not None
        content = len(to_stored_text(record.to_json()))
        saves = len(await client.history(result.session_id))
    size = _size_on_disk(Path(worker.store.removeprefix("sqlite:///")))
    name = f"store after {sizes.image_steps} steps with a 1 MB image ({saves} saves kept)"
    return [
        Row(f"{name}, to its content", "×", [size / content], at_most=1.3),
        Row(name, "MB", [size / MEGABYTE]),
    ]


def _size_on_disk(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size
