"""The program as a subprocess, with a worker and a store of the test module."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - the dataclass's annotations are looked at
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.dev_server import DevServer

APP = """
import asyncio

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import ProviderError
from perdure.testing import ScriptedModel, call


@tool(read_only=True)
def weather(city: str) -> dict:
    return {"city": city, "forecast": "sunny"}


@tool(needs_approval=True)
async def book(hotel: str, ctx: ToolContext) -> dict:
    return {"booked": hotel}


@tool(read_only=True)
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


trip = Agent(
    "trip",
    instructions="You plan trips.",
    provider=ScriptedModel(
        [
            [call("weather", {"city": "Rome"}, id="call_weather")],
            [call("book", {"hotel": "Sole"}, id="call_book")],
            "All done.",
            "Once more.",
        ]
    ),
    tools=[weather, book],
)
echo = Agent("echo", provider=ScriptedModel(["Hello.", "\\x1b[31mGrüße \\ud83d", "More."]))
failing = Agent("failing", provider=ScriptedModel([ProviderError("the model is away")]))
slow = Agent("slow", provider=ScriptedModel([[call("nap", {"seconds": 600})], "Up."]), tools=[nap])
several = [trip, echo]
"""


@dataclass
class Run:
    """How a command ended."""

    code: int
    out: str
    errors: str

    @property
    def json(self) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@dataclass
class Program:
    """Runs ``perdure`` in a directory, against one Temporal, store and task queue."""

    folder: Path
    environment: dict[str, str]
    queue: str
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self, *arguments: str, **more: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", *arguments),
            cwd=self.folder,
            env={**os.environ, **self.environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What a shell without job control sets for its background jobs is not meant for us.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.started.append(process)
        return process

    async def __call__(self, *arguments: str, **more: str) -> Run:
        process = await self.start(*arguments, **more)
        out, errors = await process.communicate()
        assert process.returncode is not None
        return Run(process.returncode, out.decode("utf-8"), errors.decode("utf-8"))

    def files(self) -> dict[str, bytes]:
        """What is on the disk."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }

    async def end(self) -> None:
        for process in self.started:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def program_in(folder: Path, address: str) -> Program:
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    folder.joinpath("app.py").write_text(APP, "utf-8")
    environment = {
        "PERDURE_STORE": f"sqlite:///{folder / 'perdure.db'}",
        "PERDURE_TASK_QUEUE": queue,
        "TEMPORAL_ADDRESS": address,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Program(folder, environment, queue)


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """The first line of a process's output that holds a text."""
    assert stream is not None
    seen = []
    async with asyncio.timeout(120):
        while line := (await stream.readline()).decode():
            seen.append(line)
            if text in line:
                return line
    raise AssertionError(f"no {text!r} in {seen}")


@pytest.fixture
async def program(tmp_path: Path, temporal_address: str) -> AsyncIterator[Program]:
    """The program with a directory of its own, in which no worker runs yet."""
    program = program_in(tmp_path, temporal_address)
    yield program
    await program.end()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def perdure(
    tmp_path_factory: pytest.TempPathFactory, temporal_server: DevServer
) -> AsyncIterator[Program]:
    """The program, beside a worker that serves app.py. Give each test session ids of its own."""
    program = program_in(tmp_path_factory.mktemp("app"), temporal_server.address)
    worker = await program.start("worker", "app.py")
    await line_with(worker.stderr, "Serving trip, echo, failing, slow")
    yield program
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    await worker.stderr.read()
    code = await worker.wait()
    await program.end()
    assert code == 0


@pytest.fixture
def session() -> str:
    return f"s-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def wait_for_line() -> Any:
    return line_with
