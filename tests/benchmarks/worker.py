"""A worker process of the benchmark: of the floor, or of ours.

``python -m tests.benchmarks.worker floor|ours ADDRESS TASK_QUEUE STORE FOLDER``; it prints
``ready`` when it polls.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from perdure import Agent, tool
from perdure.activities.providers.base import ModelRequest, ModelResponse
from perdure.checkpoint_bridge.format.messages import text_of
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.event_loop import run_server
from perdure.process import run_program
from perdure.testing import call
from perdure.worker import serving
from tests.benchmarks.floor import Floor, ask_model, call_tool, result_text


class Model:
    """Asks for the tool that the first message names, as often as it says: ``TOOL STEPS SIZE``."""

    default_model = "bench"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """The next call, or the end."""
        first = next(message for message in request.messages if message["role"] == "user")
        name, steps, size = text_of(first).split()[:3]
        number = sum(message["role"] == "assistant" for message in request.messages)
        usage = {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110}
        if number >= int(steps):
            return ModelResponse(text="Done.", usage=usage, model="bench")
        asked = call(name, {"number": number + 1, "size": int(size)}, id=f"call_{number + 1}")
        return ModelResponse(
            tool_calls=[asked], finish_reason="tool_calls", usage=usage, model="bench"
        )


def agent(folder: Path) -> Agent:
    """The agent of all measures."""

    @tool(read_only=True)
    async def work(number: int, size: int) -> str:
        return result_text(number, size)

    @tool(read_only=True, needs_approval=True)
    async def gated(number: int, size: int) -> str:
        return result_text(number, size)

    @tool(read_only=True)
    async def hold(number: int, size: int) -> str:
        """Hang in the first process that is asked; any later one answers at once."""
        try:
            (folder / "held").touch(exist_ok=False)
        except FileExistsError:
            return result_text(number, size)
        await asyncio.Event().wait()
        return ""

    quick = tool(local=True, name="quick", read_only=True)(work.function)
    tools = [work, gated, hold, quick]
    return Agent("bench", provider=Model(), tools=tools, max_steps=1_000)


async def _serve(system: str, address: str, queue: str, store: str, folder: str) -> int:
    client = await Client.connect(address)
    if system == "floor":
        worker = Worker(
            client, task_queue=queue, workflows=[Floor], activities=[ask_model, call_tool]
        )
        async with worker:
            print("ready", flush=True)
            await asyncio.Event().wait()
    async with (
        SqlStore(store) as opened,
        serving(client, [agent(Path(folder))], opened, task_queue=queue),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()
    return 0


if __name__ == "__main__":
    serve = run_server if sys.argv[1] == "ours" else asyncio.run
    run_program(lambda: serve(_serve(*sys.argv[1:])))
