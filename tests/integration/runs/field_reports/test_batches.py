"""Field reports about several calls of one model turn."""

from __future__ import annotations

import asyncio
import json
from itertools import permutations
from typing import TYPE_CHECKING, Any

from perdure import Agent, ToolContext, tool
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


def results(messages: list[dict[str, Any]]) -> list[Any]:
    """A short word for each result: its error's kind, or its value."""
    contents = [json.loads(message["content"]) for message in messages]
    return [each["kind"] if isinstance(each, dict) else each for each in contents]


async def test_r2_two_calls_with_equal_arguments_are_two_effects(
    bench: Bench, session: str
) -> None:
    """And a call whose deadline passes after its effect is not made again by itself."""
    ledger: list[tuple[str, int]] = []

    @tool
    async def pay(amount: int, ctx: ToolContext) -> int:
        ledger.append((ctx.idempotency_key, amount))
        return amount

    @tool(timeout=0.05)
    async def slow_pay(amount: int, ctx: ToolContext) -> int:
        ledger.append((ctx.idempotency_key, amount))
        await asyncio.Event().wait()
        return amount

    calls = [
        call("pay", {"amount": 10}),
        call("pay", {"amount": 10}),
        call("slow_pay", {"amount": 9}),
    ]
    model = bench.model(calls, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[pay, slow_pay])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert results(await bench.results()) == [10, 10, "timeout"]
    assert sorted(amount for _, amount in ledger) == [9, 10, 10]
    assert len({key for key, _ in ledger}) == 3


async def test_r3_gated_calls_among_others_in_every_order(bench: Bench, session: str) -> None:
    """One approval waits at a time (decision 6), so the order of decisions is that of the calls."""
    ran: list[tuple[str, str]] = []

    @tool
    async def free(ctx: ToolContext) -> str:
        ran.append((ctx.session_id, "free"))
        return "free"

    @tool(needs_approval=True)
    async def pay(to: str, ctx: ToolContext) -> str:
        ran.append((ctx.session_id, to))
        return to

    made = {
        "free": call("free", id="f"),
        "ann": call("pay", {"to": "ann"}, id="a"),
        "bob": call("pay", {"to": "bob"}, id="b"),
        "unknown": call("nothing", id="n"),
    }
    expected = {"free": "free", "ann": "rejected", "bob": "bob", "unknown": "not-found"}

    async def one(number: int, order: tuple[str, ...]) -> None:
        name, place = f"agent-{number}", f"{session}-{number}"
        paused = await bench.client.execute(name, "Go", session_id=place)
        for _ in range(2):
            (pending,) = await bench.client.approvals.list(place)
            assert pending.id == paused.approval_id
            to = pending.args["to"]
            assert pending.tool_call_id == made[to]["id"]
            paused = await bench.client.approvals.resolve(pending.id, approved=to == "bob")
        assert paused.text == "Done."
        found = await bench.results(place)
        assert [message["toolCallId"] for message in found] == [made[each]["id"] for each in order]
        assert results(found) == [expected[each] for each in order]
        assert sorted(what for where, what in ran if where == place) == ["bob", "free"]

    orders = list(permutations(made))
    models = [bench.model([made[each] for each in order], "Done.") for order in orders]
    agents = [
        Agent(f"agent-{number}", provider=model, tools=[free, pay])
        for number, model in enumerate(models)
    ]
    async with bench.serving(*agents):
        await asyncio.gather(*(one(number, order) for number, order in enumerate(orders)))
    # Not asked again before every call had its result.
    assert {len(model.requests) for model in models} == {2}


async def test_r25_a_tool_that_is_not_there_again_and_again(bench: Bench, session: str) -> None:
    """Each is an error result that names what there is; ``max_steps`` bounds the corrections."""

    @tool(read_only=True)
    def known() -> str:
        return "fine"

    model = bench.model([call("kown"), call("known")], *[[call("kown")]] * 9)
    agent = Agent("agent", provider=model, tools=[known], max_steps=6)
    async with bench.serving(agent):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert (result.finish_reason, result.steps) == ("max-steps", 6)
    assert results(await bench.results()) == ["not-found", "fine", *["not-found"] * 5]
    assert "known" in json.loads((await bench.results())[0]["content"])["message"]
    (history,) = await bench.histories()
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_id for event in history.events
    ]
    assert [each for each in scheduled if each.startswith("tool-")] == ["tool-1-call_1_2"]


async def test_r26_a_result_is_safe_when_a_sibling_raises_or_stalls(
    bench: Bench, session: str
) -> None:
    gate = bench.gate()
    ran: list[str] = []

    @tool(read_only=True)
    async def quick() -> str:
        ran.append("quick")
        return "quick"

    @tool(read_only=True)
    async def broken() -> None:
        raise ValueError("broken")

    @tool(read_only=True)
    async def stalled() -> str:
        await gate.hold()
        return "late"

    model = bench.model([call("quick"), call("broken"), call("stalled")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick, broken, stalled])):
        await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()

        async def two_are_recorded() -> bool:
            return len(await bench.results()) == 2

        await bench.until(two_are_recorded)
        await bench.workflow().terminate()
        assert results(await bench.results()) == ["quick", "execution"]
        gate.open()
        await bench.client.resume(session)
    assert results(await bench.results()) == ["quick", "execution", "late"]
    assert ran == ["quick"]
