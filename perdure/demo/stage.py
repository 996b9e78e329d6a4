"""The processes of the demo, the directory that they share, and the end of both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from perdure.checkpoint_bridge.errors import PerdureError
from perdure.demo.ledger import WORKER, Ledger
from perdure.dev_server import DevServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATIENCE = 60.0
"""Seconds after which something that should have happened counts as never coming."""

_LOOK_EVERY = 0.02


class DemoFailedError(PerdureError):
    """The demo cannot go on."""

    code = "PERDURE_DEMO_FAILED"
    hint = "Run it again; a machine that is very busy can be too slow for it."


class Stage:
    """A Temporal server, workers, a store and a ledger, in a temporary directory.

    At its end nothing is left of it, and nothing is ended that was not started here.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
        self.store = f"sqlite:///{self.directory / 'perdure.db'}"
        self.ledger = Ledger(self.directory / "ledger.jsonl")
        self.server = DevServer(
            db_filename=self.directory / "temporal.db",
            log_file=self.directory / "temporal.log",
        )
        self.workers: list[subprocess.Popen[bytes]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for worker in self.workers:
                worker.kill()
                worker.wait()
                if worker.stdin is not None:
                    worker.stdin.close()
            await self.server.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    async def start_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it serves."""
        with (self.directory / "worker.log").open("ab") as log:
            worker = subprocess.Popen(  # noqa: ASYNC220 - it returns when the process is there
                [
                    sys.executable,
                    *("-m", "perdure.demo.worker"),
                    *("--temporal", self.server.address),
                    *("--store", self.store),
                    *("--ledger", str(self.ledger.path)),
                ],
                stdin=subprocess.PIPE,  # open as long as we live; its end ends the worker
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end our workers ourselves
            )
        self.workers.append(worker)

        def serves() -> bool:
            if worker.poll() is not None:
                text = (self.directory / "worker.log").read_text("utf-8", "replace")
                last = text.strip().rpartition("\n")[2]
                raise DemoFailedError(f"The worker ended with {worker.returncode}: {last}")
            return any(line["pid"] == worker.pid for line in self.ledger.lines(WORKER))

        await until(serves, "a worker")
        return worker

    async def kill(self, worker: subprocess.Popen[bytes]) -> int:
        """End a worker with SIGKILL, as a crash of its machine would; returns its exit code."""
        worker.kill()
        await until(lambda: worker.poll() is not None, "the end of the worker")
        return worker.returncode

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        """Run a ``perdure`` command in a process of its own; code, output and errors."""
        environment = {
            **os.environ,
            "PERDURE_STORE": self.store,
            "TEMPORAL_ADDRESS": self.server.address,
            "TEMPORAL_NAMESPACE": "default",
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", *arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, errors = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        return process.returncode or 0, out.decode(), errors.decode()


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Wait for a condition.

    Raises:
        DemoFailedError: it does not come.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                found = condition()
                if found if isinstance(found, bool) else await found:
                    return
                await asyncio.sleep(_LOOK_EVERY)
    except TimeoutError:
        raise DemoFailedError(f"Waited {PATIENCE:g} s for {what}.") from None


def end_on_sigterm() -> None:
    """Let SIGTERM end the demo as Ctrl-C does, so that it cleans up."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
