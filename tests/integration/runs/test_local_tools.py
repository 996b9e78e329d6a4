"""Quick tools that run where the answer arrived: half the dispatches, and as safe as the others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from temporalio import activity

import perdure.worker
from perdure import Agent, ToolContext, tool
from perdure.activities import model_call
from perdure.activities.local_calls import LOCAL_CALLS, run_local_calls
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    PropagatingToolError,
    RateLimitedError,
    StorageError,
)
from perdure.checkpoint_bridge.tables.ledger import EffectId
from perdure.testing import attempts, call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


@tool(local=True, read_only=True)
def add(a: int, b: int) -> int:
    return a + b


async def activities(bench: Bench) -> Counter[str]:
    """The ordinary activities of a run, by type."""
    (history,) = await bench.histories()
    return Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    )


async def contents(bench: Bench) -> list[Any]:
    return [json.loads(message["content"]) for message in await bench.results()]


async def test_a_local_call_needs_no_activity_of_its_own(bench: Bench, session: str) -> None:
    model = bench.model([call("add", {"a": 1, "b": 2})], "Three.")
    async with bench.serving(Agent("agent", provider=model, tools=[add])):
        result = await bench.client.execute("agent", "Add", session_id=session)
    assert result.text == "Three."
    assert await contents(bench) == [3]
    assert await activities(bench) == {"call_model": 2}
    (announced,), (told,) = await bench.events("tool/call"), await bench.events("tool/result")
    assert announced.seq < told.seq


async def test_an_activity_holds_a_few_of_them(bench: Bench, session: str) -> None:
    """The others of a large batch are ordinary; and all results are in call order."""
    many = 3 * LOCAL_CALLS
    calls = [call("add", {"a": number, "b": 0}) for number in range(many)]
    model = bench.model(calls, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[add])):
        await bench.client.execute("agent", "Add", session_id=session)
    assert await contents(bench) == list(range(many))
    assert await activities(bench) == {"call_model": 2, "run_tool": many - LOCAL_CALLS}


async def test_its_time_is_short(bench: Bench, session: str) -> None:
    @tool(local=True, timeout=0.05)
    async def slow(ctx: ToolContext) -> None:
        await asyncio.Event().wait()

    model = bench.model([call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert [each["kind"] for each in await contents(bench)] == ["timeout"]


def test_its_time_has_a_limit() -> None:
    with pytest.raises(ConfigurationError, match="at most 1 s") as raised:
        tool(local=True, timeout=2)(lambda: None)
    assert raised.value.field == "timeout"


async def test_one_that_a_person_approves(bench: Bench, session: str) -> None:
    @tool(local=True, needs_approval=True)
    def pay(ctx: ToolContext) -> str:
        ctx.heartbeat("paying")
        return "paid"

    model = bench.model([call("pay")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[pay])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        assert paused.approval_id is not None
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True)
    assert result.text == "Done."
    assert await contents(bench) == ["paid"]


async def test_the_ledger_remembers_that_it_had_begun(bench: Bench, session: str) -> None:
    """By a worker that is no more: its mark is made here."""
    ran: list[str] = []

    @tool(local=True, recovery="ambiguous")
    def pay(ctx: ToolContext) -> str:
        ran.append(ctx.idempotency_key)
        return "paid"

    asked: list[EffectId] = []

    async def mark(_request: Any) -> Any:
        row = await bench.store.session(session)
        assert row is not None
        # Behind the request's header and the step's beginning.
        asked.append(EffectId(row.log_id, row.head + 2, 0))
        await bench.store.begin_effect(
            asked[0], session_id=session, run_id=row.writer or "", name="pay"
        )

    model = bench.model([call("pay")], "Done.")
    answer = model.generate

    async def generate(request: Any) -> Any:
        if not asked:
            await mark(request)
        return await answer(request)

    model.generate = generate  # type: ignore[method-assign]
    async with bench.serving(Agent("agent", provider=model, tools=[pay])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert ran == []
    assert [each["kind"] for each in await contents(bench)] == ["unknown-outcome"]


async def test_a_cancel_comes_through(bench: Bench, session: str) -> None:
    gate = bench.gate()

    @tool(local=True)
    async def hold(ctx: ToolContext) -> str:
        await gate.hold()
        return "held"

    model = bench.model([call("hold")], "Unheard.")
    unheard = model.gate(2)
    async with bench.serving(Agent("agent", provider=model, tools=[hold])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await handle.cancel()
        gate.open()
        result = await handle.result()
        unheard.open()
    assert result.finish_reason == "aborted"
    assert await contents(bench) == ["held"]


async def test_what_an_answer_asks_for_runs_in_its_order(bench: Bench, session: str) -> None:
    """Local calls at its beginning run at once; behind another one they are ordinary, too."""

    @tool(read_only=True)
    def look(place: str) -> str:
        return place

    calls = [
        call("add", {"a": 1, "b": 0}),
        call("add", {"a": 2, "b": 0}),
        call("look", {"place": "Rome"}),
        call("add", {"a": 3, "b": 0}),
    ]
    model = bench.model(calls, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[add, look])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert await contents(bench) == [1, 2, "Rome", 3]
    assert await activities(bench) == {"call_model": 2, "run_tool": 2}
    order = [event.type for event in await bench.events("tool/result", "step/end")]
    assert order == [*4 * ["tool/result"], "step/end", "step/end"]


async def test_several_run_side_by_side(bench: Bench, session: str) -> None:
    together = asyncio.Barrier(3)

    @tool(local=True, read_only=True)
    async def meet(number: int) -> int:
        await together.wait()
        return number

    model = bench.model([call("meet", {"number": number}) for number in range(3)], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[meet])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert await contents(bench) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 3])
async def test_calls_that_their_attempt_left_are_ordinary(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The worker dies when the answer is stored, and nothing of it has run."""
    monkeypatch.setattr(model_call, "run_local_calls", _die_before(monkeypatch))
    model = bench.model([call("add", {"a": each, "b": 0}) for each in range(count)], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[add])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert len(model.requests) == 2
    assert await contents(bench) == list(range(count))
    assert await activities(bench) == {"call_model": 2, "run_tool": count}


@pytest.mark.parametrize("count", [1, 3])
async def test_calls_whose_attempt_could_not_report_are_done(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The worker dies when their results are stored: they are taken from the log."""
    ran = []

    @tool(local=True, recovery="ambiguous")
    def pay(amount: int, ctx: ToolContext) -> int:
        ran.append(ctx.attempt)
        return amount

    monkeypatch.setattr(model_call, "run_local_calls", _die_after(monkeypatch))
    model = bench.model([call("pay", {"amount": each}) for each in range(count)], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[pay])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert ran == count * [1]
    assert await contents(bench) == list(range(count))
    assert await activities(bench) == {"call_model": 2}


def _die_before(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def run(*given: Any) -> None:
        monkeypatch.undo()
        raise StorageError("The worker died.")

    return run


def _die_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def run(*given: Any) -> None:
        monkeypatch.undo()
        await run_local_calls(*given)
        raise StorageError("The worker died.")

    return run


async def test_one_that_fails_the_run(bench: Bench, session: str) -> None:
    """What the calls beside it came to is known."""

    @tool(local=True, read_only=True)
    def refuse() -> None:
        raise PropagatingToolError("Not today.", code="CLOSED")

    calls = [call("add", {"a": 1, "b": 2}), call("refuse"), call("add", {"a": 3, "b": 4})]
    agent = Agent("agent", provider=bench.model(calls, "Unheard."), tools=[add, refuse])
    async with bench.serving(agent):
        with pytest.raises(PropagatingToolError, match="Not today") as raised:
            await bench.client.execute("agent", "Go", session_id=session)
    assert raised.value.code == "CLOSED"
    assert (await contents(bench))[0] == 3


async def test_one_whose_outcome_nobody_knows(bench: Bench, session: str) -> None:
    """A person is asked, as about any other call."""

    @tool(local=True, recovery="ask")
    def pay() -> None:
        raise ConnectionResetError

    model = bench.model([call("pay")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[pay])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        assert paused.approval_id is not None
        await bench.client.approvals.resolve(paused.approval_id, approved=False, result="paid")
    assert await contents(bench) == ["paid"]


async def test_a_cancel_keeps_the_rest_from_beginning(bench: Bench, session: str) -> None:
    gate = bench.gate()
    begun = []

    @tool(local=True)
    async def hold(number: int, ctx: ToolContext) -> int:
        begun.append(number)
        gate.open()
        await activity.wait_for_cancelled()
        return number

    hold.timeout = 60.0  # one heartbeat passes until the activity hears of the cancel
    calls = [call("hold", {"number": number}) for number in range(3)]
    agent = Agent("agent", provider=bench.model(calls), tools=[hold], tool_concurrency=1)
    async with bench.serving(agent):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.hold()
        await handle.cancel()
        result = await handle.result()
    assert result.finish_reason == "aborted"
    assert begun == [0]
    first, *rest = await contents(bench)
    assert (first, [each["kind"] for each in rest]) == (0, ["not-run", "not-run"])


async def test_a_later_attempt_runs_none(bench: Bench, session: str) -> None:
    """It may follow a cancel that it does not know of yet."""
    limited = RateLimitedError("Later.", retryable=True, retry_after=0.01)
    model = bench.model(attempts(limited, [call("add", {"a": 1, "b": 2})]), "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[add])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert await contents(bench) == [3]
    assert await activities(bench) == {"call_model": 2, "run_tool": 1}


async def test_a_plain_one_has_its_whole_second(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time begins when a thread takes it up; without one it provably has not begun."""
    free = threading.Event()
    one = ThreadPoolExecutor(1)
    monkeypatch.setattr(perdure.worker, "tool_threads", lambda: one)

    @tool(local=True, timeout=0.1)
    def hang(ctx: ToolContext) -> None:
        free.wait()

    @tool(local=True, timeout=0.1, read_only=True)
    def quick() -> str:
        return "never"

    model = bench.model([call("hang")], [call("quick")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[hang, quick])):
        await bench.client.execute("agent", "Go", session_id=session)
    free.set()
    assert [each["kind"] for each in await contents(bench)] == ["timeout", "not-started"]
