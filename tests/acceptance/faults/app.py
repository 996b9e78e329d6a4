"""A user's program that serves agents; a test sees what it does and can stop it anywhere.

Everything that leaves the worker is appended to a ledger file: each request to the model, each
tool that starts, each effect. The tools' effects go to a backend that honours idempotency keys,
as a payment service does. At named points the program waits for as long as a file of that name
exists, so a test can kill it there. All of it lives here: the product has no such points.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import Agent, ToolContext, tool, worker
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.checkpoint_bridge.tables import backends
from perdure.process import run_program
from perdure.testing import ScriptedModel, call
from perdure.workflows import options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.activities.providers.base import ModelRequest, ModelResponse
    from perdure.checkpoint_bridge.log.events import NewEvent
    from perdure.checkpoint_bridge.tables.approvals import ApprovalRow
    from perdure.checkpoint_bridge.tables.event_log import Batch
    from perdure.checkpoint_bridge.tables.ledger import Effect, EffectId

_LOOK = 0.01


class Outside:
    """What a test and the world see of the worker, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._ledger = folder / "ledger.jsonl"
        self._holds = folder / "holds"
        self._backend = folder / "backend"

    def note(self, kind: str, session: str = "", **facts: Any) -> None:
        """Append a line that survives whatever happens to this process next."""
        line = json.dumps({"kind": kind, "session": session, "pid": os.getpid(), **facts})
        file = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)

    def effect(self, key: str) -> bool:
        """Do something in the world, once for each key; whether it was done now."""
        name = hashlib.sha256(key.encode()).hexdigest()
        try:
            os.close(os.open(self._backend / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def held(self, session: str, point: str) -> bool:
        return (self._holds / f"{session}:{point}".replace("/", "_")).exists()

    async def pause(self, session: str, point: str) -> None:
        """Wait here while the test wants it."""
        if self.held(session, point):
            self.note("held", session, point=point)
            while self.held(session, point):  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(_LOOK)

    def pause_thread(self, session: str, point: str) -> None:
        if self.held(session, point):
            self.note("held", session, point=point)
            while self.held(session, point):
                time.sleep(_LOOK)


class WatchedStore(SqlStore):
    """The store, with a place to stop before and behind each transaction."""

    def __init__(self, url: str, outside: Outside) -> None:
        super().__init__(url)
        self._outside = outside

    async def open_session(self, session_id: str, **options: Any) -> tuple[int, int]:
        opened = await super().open_session(session_id, **options)
        await self._written(session_id, options["events"])
        return opened

    async def append(self, batch: Batch) -> int:
        end = await super().append(batch)
        await self._written(batch.session_id, batch.events)
        return end

    async def close_run(self, batch: Batch, reason: str) -> int:
        end = await super().close_run(batch, reason)
        await self._outside.pause(batch.session_id, "closed")
        return end

    async def _written(self, session: str, events: Sequence[NewEvent]) -> None:
        for name in dict.fromkeys(event.type for event in events):
            await self._outside.pause(session, f"append:{name}")

    async def begin_effect(
        self, effect_id: EffectId, *, session_id: str, run_id: str, name: str
    ) -> Effect:
        await self._outside.pause(session_id, f"begin:{name}")
        return await super().begin_effect(
            effect_id, session_id=session_id, run_id=run_id, name=name
        )

    async def end_effect(
        self,
        effect_id: EffectId,
        *,
        session_id: str,
        name: str,
        outcome: dict[str, Any],
        message: dict[str, Any],
        record: Callable[[Effect, int], Batch | None] | None = None,
    ) -> Effect:
        written: list[NewEvent] = []

        def noted(effect: Effect, head: int) -> Batch | None:
            batch = record(effect, head) if record else None
            written.extend(batch.events if batch else [])
            return batch

        effect = await super().end_effect(
            effect_id,
            session_id=session_id,
            name=name,
            outcome=outcome,
            message=message,
            record=noted,
        )
        point = "model" if effect_id.index < 0 else name
        self._outside.note("stored", session_id, seq=effect_id.seq, index=effect_id.index)
        await self._outside.pause(session_id, f"stored:{point}")
        if effect.head is not None:
            await self._written(session_id, written)
        return effect

    async def decide(
        self, approval_id: str, decision: dict[str, Any]
    ) -> tuple[bool, ApprovalRow | None]:
        mine, row = await super().decide(approval_id, decision)
        if row is not None:
            await self._outside.pause(row.session_id, "decided")
        return mine, row


class WatchedModel(ScriptedModel):
    """A script that notes each request, because the object itself dies with the worker."""

    def __init__(self, turns: Sequence[Any], outside: Outside) -> None:
        super().__init__(turns)
        self._outside = outside

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self._outside.note("model", request.session_id, step=request.step)
        await self._outside.pause(request.session_id, f"model:{request.step}")
        return await super().generate(request)


def agents(outside: Outside) -> list[Agent]:
    """The agents of all tests here."""

    def begun(name: str, number: int, ctx: ToolContext) -> None:
        outside.note(
            "tool-start",
            ctx.session_id,
            tool=name,
            args=number,
            key=ctx.idempotency_key,
            tool_call_id=ctx.tool_call_id,
            attempt=ctx.attempt,
        )

    def act(name: str, number: int, ctx: ToolContext) -> dict[str, Any]:
        new = outside.effect(ctx.idempotency_key)
        key = ctx.idempotency_key
        outside.note("tool-effect", ctx.session_id, tool=name, args=number, key=key, new=new)
        return {"tool": name, "number": number}

    async def work(name: str, number: int, ctx: ToolContext) -> dict[str, Any]:
        begun(name, number, ctx)
        await outside.pause(ctx.session_id, f"before:{name}")
        await asyncio.sleep(0.01 * number)
        result = act(name, number, ctx)
        await outside.pause(ctx.session_id, f"after:{name}")
        return result

    def work_in_thread(name: str, number: int, ctx: ToolContext) -> dict[str, Any]:
        begun(name, number, ctx)
        outside.pause_thread(ctx.session_id, f"before:{name}")
        time.sleep(0.01 * number)
        result = act(name, number, ctx)
        outside.pause_thread(ctx.session_id, f"after:{name}")
        return result

    @tool
    async def alpha(number: int, ctx: ToolContext) -> dict[str, Any]:
        """An async tool."""
        return await work("alpha", number, ctx)

    @tool
    def beta(number: int, ctx: ToolContext) -> dict[str, Any]:
        """A plain function: it runs in a thread."""
        return work_in_thread("beta", number, ctx)

    @tool
    async def gamma(number: int, ctx: ToolContext) -> dict[str, Any]:
        """Another async tool."""
        return await work("gamma", number, ctx)

    @tool(local=True)
    async def delta(number: int, ctx: ToolContext) -> dict[str, Any]:
        """A tool that runs where the answer arrived, unless other calls come first."""
        return await work("delta", number, ctx)

    @tool(needs_approval=True)
    async def pay(number: int, ctx: ToolContext) -> dict[str, Any]:
        """A tool that a person has to approve."""
        return await work("pay", number, ctx)

    @tool(recovery="ambiguous")
    async def wire(number: int, ctx: ToolContext) -> dict[str, Any]:
        """A tool that must never run twice."""
        return await work("wire", number, ctx)

    @tool
    async def nap(seconds: float, ctx: ToolContext) -> dict[str, Any]:
        """A tool that takes its time."""
        begun("nap", 0, ctx)
        await asyncio.sleep(seconds)
        return act("nap", 0, ctx)

    # The ids repeat in each turn on purpose: some models number their calls so (R15).
    first = [
        call("alpha", {"number": 1}, id="a"),
        call("beta", {"number": 2}, id="b"),
        call("gamma", {"number": 3}, id="c"),
    ]
    second = [
        call("alpha", {"number": 4}, id="a"),
        call("pay", {"number": 5}, id="b"),
        call("delta", {"number": 6}, id="c"),
    ]
    third = call("scout", {"input": "Look around"}, id="d")
    local = [call("delta", {"number": number}, id=f"l{number}") for number in (9, 10, 11)]
    short = [[call("gamma", {"number": 8})], "Noted."]
    model = partial(WatchedModel, outside=outside)
    scout = Agent("scout", provider=model(short), tools=[gamma])
    return [
        Agent(
            "trip",
            provider=model([first, second, "Done."]),
            instructions="You plan trips.",
            tools=[alpha, beta, gamma, delta, pay],
        ),
        Agent(
            "tour",
            provider=model([local[:1], [*local[1:], *first, third], second, "Done."]),
            instructions="You guide tours.",
            tools=[alpha, beta, gamma, delta, pay, scout.as_tool()],
        ),
        Agent("careful", provider=model([[call("wire", {"number": 7})], "Done."]), tools=[wire]),
        Agent("brain", provider=model(short), profile="brain", tools=[gamma]),
        Agent("dsh", provider=model(short), profile="dsh", tools=[gamma]),
        Agent("once", provider=model(short), model_recovery="once", tools=[gamma]),
        Agent("sleepy", provider=model([[call("nap", {"seconds": 2})], "Done."]), tools=[nap]),
    ]


async def _serve(arguments: argparse.Namespace) -> None:
    outside = Outside(arguments.folder)
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    store = WatchedStore(arguments.store, outside)
    outside.note("worker")
    with contextlib.suppress(asyncio.CancelledError):
        await worker.run_worker(
            agents(outside),
            store=store,
            temporal=arguments.temporal,
            task_queue=arguments.task_queue,
        )
    await store.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--temporal", required=True)
    parser.add_argument("--task-queue", required=True)
    parser.add_argument("--busy-seconds", type=float, help="how long SQLite waits for a lock")
    parser.add_argument("--grace-seconds", type=float, help="how long calls may go on at a stop")
    parser.add_argument("--events", type=int, help="after how many an execution rolls over")
    arguments = parser.parse_args()
    if arguments.events is not None:
        options.EVENTS_PER_EXECUTION = arguments.events
    if arguments.grace_seconds is not None:
        worker.GRACEFUL_SHUTDOWN = timedelta(seconds=arguments.grace_seconds)
    if arguments.busy_seconds is not None:
        backends._BUSY_SECONDS = arguments.busy_seconds
    asyncio.run(_serve(arguments))
    return 0


if __name__ == "__main__":
    run_program(main)
