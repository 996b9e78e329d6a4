"""Servers, worker processes and runs of the benchmark."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, Literal

import psutil
from temporalio.client import Client

from perdure.dev_server import DevServer
from tests.benchmarks.floor import Floor, Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from temporalio.client import WorkflowHandle, WorkflowHistory

System = Literal["floor", "ours"]
MEGABYTE = 1024 * 1024
_LOOK = 0.05


class WorkerProcess:
    """A worker in a process of its own, whose CPU and memory can be read."""

    def __init__(
        self, system: System, address: str, folder: Path, *, queue: str = "", store: str = ""
    ) -> None:
        name = uuid.uuid4().hex[:8]
        self.system = system
        self.queue = queue or f"{system}-{name}"
        self.store = store or f"sqlite:///{folder / f'{name}.db'}"
        self._log = (folder / f"worker-{name}.log").open("wb")
        command = [sys.executable, "-m", "tests.benchmarks.worker", system, address]
        self._process = subprocess.Popen(
            [*command, self.queue, self.store, str(folder)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
        )
        self._facts = psutil.Process(self._process.pid)
        self._peak = 0

    async def ready(self) -> None:
        """Wait until it polls."""
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        if line.strip() != b"ready":
            msg = f"A worker did not start; see {self._log.name}."
            raise RuntimeError(msg)

    @property
    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        times = self._facts.cpu_times()
        return float(times.user + times.system)

    @property
    def memory(self) -> float:
        """Megabytes that it holds now (RSS)."""
        return float(self._facts.memory_info().rss) / MEGABYTE

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[list[float]]:
        """Collect its memory in megabytes, several times a second, while the block runs."""
        seen = [self.memory]

        async def watch() -> None:
            while True:
                await asyncio.sleep(_LOOK)
                seen.append(self.memory)

        watching = asyncio.create_task(watch())
        try:
            yield seen
        finally:
            watching.cancel()

    def kill(self) -> None:
        """SIGKILL, as the end of its machine would be."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


class Rig:
    """A server of our own, and workers on it."""

    def __init__(self, server: DevServer, client: Client, folder: Path) -> None:
        self.server = server
        self.client = client
        self.folder = folder

    @contextlib.asynccontextmanager
    async def worker(self, system: System, **options: Any) -> AsyncIterator[WorkerProcess]:
        """A worker that polls."""
        worker = WorkerProcess(system, self.server.address, self.folder, **options)
        try:
            await worker.ready()
            yield worker
        finally:
            worker.close()

    async def start(
        self, worker: WorkerProcess, steps: int, size: int, *, tool: str = "work", given: Any = None
    ) -> WorkflowHandle[Any, Any]:
        """Start a run with the plain Temporal client, the same way for both systems."""
        run_id = f"{worker.system}-{uuid.uuid4().hex}"
        if worker.system == "floor":
            return await self.client.start_workflow(
                Floor.run, Work(steps, size), id=run_id, task_queue=worker.queue
            )
        text = f"{tool} {steps} {size}"
        return await self.client.start_workflow(
            "AgentWorkflow",
            {"agent": "bench", "input": text if given is None else given(text)},
            id=run_id,
            task_queue=worker.queue,
        )

    async def run(self, worker: WorkerProcess, steps: int, size: int, **options: Any) -> str:
        """A run from its start to its end; returns its workflow id."""
        handle = await self.start(worker, steps, size, **options)
        await handle.result()
        return handle.id

    async def histories(self, workflow_id: str) -> list[WorkflowHistory]:
        """What Temporal keeps of all executions of a run, newest first."""
        found = []
        run_id: str | None = None
        while True:
            handle = self.client.get_workflow_handle(workflow_id, run_id=run_id)
            history = await handle.fetch_history()
            found.append(history)
            started = history.events[0].workflow_execution_started_event_attributes
            run_id = started.continued_execution_run_id or None
            if run_id is None:
                return found


@contextlib.asynccontextmanager
async def rig(folder: Path, *, on_file: bool) -> AsyncIterator[Rig]:
    """A tuned development server, which keeps its state in a file or in memory."""
    database = folder / "temporal.db" if on_file else None
    async with DevServer(headless=True, db_filename=database) as server:
        yield Rig(server, await Client.connect(server.address), folder)


@contextlib.contextmanager
def clock() -> Iterator[list[float]]:
    """Seconds that the block took, as the only entry of the list once it has ended."""
    taken: list[float] = []
    started = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - started)
