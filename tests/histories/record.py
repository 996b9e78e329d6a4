"""Record the histories of every kind of run that ``test_replay.py`` replays.

    python tests/histories/record.py [NAME ...]

A history says how workflow code of its day behaved; the code of today must still replay it. So
record new kinds of runs, and record old ones again only when no run of the old code can be open
anywhere any more. What ends up in the files is chosen here: ids, identities and times tell
nothing of the machine they were recorded on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.client import Client as TemporalClient

import perdure.worker
import perdure.workflows.options
from perdure import Agent, PropagatingToolError, ToolContext, tool
from perdure.checkpoint_bridge.errors import PerdureError, ProviderError, RateLimitedError
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.client import Client, connect
from perdure.dev_server import DevServer
from perdure.process import end_now
from perdure.search_attributes import register
from perdure.testing import ScriptedModel, attempts, call
from perdure.worker import serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HERE = Path(__file__).parent
IDENTITY = "recorder"
QUEUE = "histories"
ROLL_OVER_AFTER = 60
"""Events, for the runs that continue as new."""


@tool(read_only=True)
def weather(city: str) -> dict[str, str]:
    """Tell the weather."""
    return {"forecast": "sunny", "city": city}


@tool
async def hotels(city: str, ctx: ToolContext) -> list[str]:
    """Find hotels."""
    return ["Alba", "Bella"]


@tool(needs_approval=True)
async def book(hotel: str, ctx: ToolContext) -> dict[str, str]:
    """Book a room."""
    return {"booked": hotel}


@tool(read_only=True)
def fail(how: str) -> None:
    """Fail."""
    if how == "propagating":
        raise PropagatingToolError("the house is closed")
    raise ValueError("no such house")


@tool(read_only=True)
async def wait() -> None:
    """Never end."""
    await asyncio.Event().wait()


@tool(read_only=True)
def large() -> str:
    """Give what is not kept in a history."""
    return "x" * 10_000


@tool(read_only=True, local=True)
def glance(place: str) -> str:
    """Look at something near."""
    return f"{place}: fine"


TOOLS = [weather, hotels, book, fail, wait, large, glance]


def clerk() -> Agent:
    """An agent that others call."""
    model = ScriptedModel([[call("book", {"hotel": "Alba"})], "Booked."])
    return Agent("clerk", provider=model, tools=[book])


class Recorder:
    """Runs one scenario."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.session = name

    async def execute(self, text: Any = "Plan my trip", **options: Any) -> Any:
        return await self.client.execute(self.name, text, session_id=self.session, **options)

    async def start(self) -> Any:
        return await self.client.start(self.name, "Plan my trip", session_id=self.session)

    async def activity(self, activity_id: str) -> None:
        """Wait until an activity runs."""
        handle = self.client.temporal.get_workflow_handle(self.session)
        while True:
            pending = (await handle.describe()).raw_description.pending_activities
            if any(each.activity_id == activity_id and each.attempt for each in pending):
                return
            await asyncio.sleep(0.01)

    def signal(self, value: Any) -> Awaitable[None]:
        handle = self.client.temporal.get_workflow_handle(self.session)
        return handle.signal("resolve_approval", value)


two = [call("weather", {"city": "Rome"}), call("hotels", {"city": "Rome"})]
gated = [
    call("weather", {"city": "Rome"}),
    call("book", {"hotel": "Alba"}),
    call("hotels", {"city": "Rome"}),
]

delegated = [call("clerk", {"input": "Book the Alba"}), call("weather", {"city": "Rome"})]


async def plain(run: Recorder) -> None:
    await run.execute()


async def approve(run: Recorder) -> None:
    paused = await run.execute()
    await run.client.approvals.resolve(paused.approval_id, approved=True, note="ok", by="ann")


async def reject_by_signal(run: Recorder) -> None:
    paused = await run.execute()
    await run.signal("free text")
    await run.signal({"id": paused.approval_id, "approved": False, "note": "too dear"})
    await run.client.temporal.get_workflow_handle(run.session).result()


async def chained(run: Recorder) -> None:
    paused = await run.execute()
    again = await run.client.approvals.resolve(paused.approval_id, approved=True)
    assert again.approval_id is not None
    await run.client.approvals.resolve(again.approval_id, approved=False)


async def failing(run: Recorder) -> None:
    try:
        await run.execute()
    except PerdureError:
        return
    raise AssertionError


async def resumed(run: Recorder) -> None:
    await failing(run)
    await run.client.resume(run.session)


async def max_steps(run: Recorder) -> None:
    await run.execute(max_steps=1)


async def queued(run: Recorder) -> None:
    await run.start()
    await run.activity("tool-1-call_1_1")
    handle = await run.client.start(run.name, "Also this", session_id=run.session)
    await handle.cancel()
    await handle.result()


async def cancelled(run: Recorder) -> None:
    handle = await run.start()
    await run.activity("tool-1-call_1_2")
    await handle.cancel()
    await handle.result()


async def cancelled_pause(run: Recorder) -> None:
    await run.execute()
    handle = await run.client.running(run.session)
    assert handle is not None
    await handle.cancel()
    await handle.result()


async def terminated(run: Recorder) -> None:
    await run.execute()
    await run.client.temporal.get_workflow_handle(run.session).terminate()


async def reopened(run: Recorder) -> None:
    await terminated(run)
    (pending,) = await run.client.approvals.list(run.session)
    await run.client.approvals.resolve(pending.id, approved=True)


async def bad_request(run: Recorder) -> None:
    handle = await run.client.temporal.start_workflow(
        "AgentWorkflow", {"agnet": run.name}, id=run.session, task_queue=QUEUE
    )
    await asyncio.wait([asyncio.ensure_future(handle.result())])


async def second_run(run: Recorder) -> None:
    await run.execute()
    await run.execute("And now?")


async def ending(run: Recorder) -> None:
    """Input that is there when the run ends starts the next one."""
    first = await run.client.start(run.name, "One", session_id=run.session)
    await run.activity("model-1")
    await run.execute("Two")
    await first.result()


async def below(run: Recorder) -> None:
    """Approve what a sub-agent asks, and look at the sub-agent's own run."""
    paused = await run.execute()
    (row,) = await run.client.store.approvals(run.session)
    await run.client.approvals.resolve(paused.approval_id, approved=True)
    run.session = row.session_id


def limited() -> RateLimitedError:
    return RateLimitedError("slow down", status=429, retryable=True, retry_after=0.01)


SCENARIOS: dict[str, tuple[Callable[[Recorder], Awaitable[None]], list[Any]]] = {
    "answer": (plain, ["Hello."]),
    "tools": (plain, [two, "Done."]),
    "local-calls": (
        plain,
        [
            [call("glance", {"place": "a"})],
            [call("glance", {"place": "b"}), call("glance", {"place": "c"}), *two],
            "Done.",
        ],
    ),
    "large-values": (plain, [[call("large"), call("hotels", {"city": "y" * 5_000})], "z" * 9_000]),
    "refused-calls": (
        plain,
        [[call("no_such_tool"), call("weather", "{"), call("fail", {"how": ""})], "Done."],
    ),
    "retried-model": (plain, [attempts(limited(), "Done.")]),
    "approved": (approve, [gated, "Done."]),
    "rejected-by-signal": (reject_by_signal, [gated, "Done."]),
    "chained-approvals": (chained, [[call("book", {"hotel": "a"})] * 2, "Done."]),
    "max-steps": (max_steps, [two, two]),
    "failed-model": (failing, [two, ProviderError("no credit")]),
    "failed-tool": (failing, [[call("fail", {"how": "propagating"}), call("wait")]]),
    "resumed": (resumed, [two, attempts(ProviderError("no credit"), "Done.")]),
    "second-run": (second_run, ["One.", "Two."]),
    "input-at-the-end": (ending, ["One.", "Two."]),
    "cancelled-with-queued-input": (queued, [[call("wait")], "Unheard."]),
    "cancelled-tools": (cancelled, [[call("hotels", {"city": "a"}), call("wait")], "Unheard."]),
    "cancelled-pause": (cancelled_pause, [gated, "Unheard."]),
    "terminated-pause": (terminated, [gated, "Unheard."]),
    "reopened-approval": (reopened, [gated, "Done."]),
    "bad-request": (bad_request, []),
    "sub-agent-approval": (approve, [delegated, "Done."]),
    "sub-agent-itself": (below, [delegated, "Done."]),
    "listed-approval": (approve, [gated, "Done."]),
    "rolled-over": (plain, [*[two] * 8, "Done."]),
    "rolled-over-pause": (approve, [*[two] * 5, gated, *[two] * 4, "Done."]),
}


class SlowModel(ScriptedModel):
    """Answers slowly enough that a message can come in between."""

    async def generate(self, request: Any) -> Any:
        await asyncio.sleep(0.5)
        return await super().generate(request)


async def record(name: str, temporal: TemporalClient, folder: Path) -> None:
    scenario, turns = SCENARIOS[name]
    model = (SlowModel if scenario is ending else ScriptedModel)(turns)
    tools = [*TOOLS, clerk().as_tool()]
    agent = Agent(name, provider=model, instructions="You plan trips.", tools=tools)
    url = f"sqlite:///{folder / name}.db"
    async with (
        connect(url, temporal=temporal, task_queue=QUEUE) as client,
        SqlStore(url) as store,
        serving(temporal, [agent], store, task_queue=QUEUE),
    ):
        run = Recorder(client, name)
        await scenario(run)
    run_id: str | None = None
    texts: list[Any] = []
    while True:
        handle = temporal.get_workflow_handle(run.session, run_id=run_id)
        history = await handle.fetch_history()
        texts.insert(0, scrubbed(json.loads(history.to_json())))
        started = history.events[0].workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id or None
        if run_id is None:
            break
    file = HERE / f"{name}.json"
    file.write_text(as_lines(texts), encoding="utf-8")
    print(f"{file.name}: {[len(text['events']) for text in texts]} events")


def as_lines(histories: list[Any]) -> str:
    """JSON with one event on each line."""
    texts = []
    for history in histories:
        lines = [json.dumps(each, separators=(",", ":")) for each in history["events"]]
        texts.append('{"events":[\n' + ",\n".join(lines) + "\n]}")
    return "[" + ",".join(texts) + "]\n"


def scrubbed(value: Any) -> Any:
    """Without what a replay does not look at and what would tell where it was recorded."""
    if isinstance(value, dict):
        return {key: scrubbed(each) for key, each in value.items() if key != "stackTrace"}
    if isinstance(value, list):
        return [scrubbed(each) for each in value]
    return value


def shorten() -> None:
    """Let executions roll over after a few events; see ``test_long_runs.py``."""
    vars(perdure.workflows.options)["EVENTS_PER_EXECUTION"] = ROLL_OVER_AFTER


async def main(names: list[str]) -> None:
    listed = [name for name in names if name.startswith("listed")]
    short = [name for name in names if name.startswith("rolled-over")]
    with tempfile.TemporaryDirectory() as folder:
        async with DevServer(headless=True) as server:
            temporal = await TemporalClient.connect(server.address, identity=IDENTITY)
            for name in names:
                if name not in (*listed, *short):
                    await record(name, temporal, Path(folder))
            shorten()
            for name in short:
                await record(name, temporal, Path(folder))
            await register(temporal)
            for name in listed:
                await record(name, temporal, Path(folder))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(SCENARIOS)))
    end_now(0)
