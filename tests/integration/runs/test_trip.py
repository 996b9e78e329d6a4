"""The seed's own example: a fork of ``trip`` at step 1, where the weather is another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure import Agent, ForkPatch, ToolContext, compare_trajectories, tool
from perdure.testing import ModelRequest, call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


async def test_fork_at_step_1_with_another_weather(bench: Bench) -> None:
    asked: list[str] = []

    @tool
    async def weather(city: str, ctx: ToolContext) -> dict[str, str]:
        asked.append(city)
        return {"forecast": "sunny"}

    @tool(read_only=True)
    def beach() -> str:
        return "open"

    @tool(read_only=True)
    def museum() -> str:
        return "open"

    def plan(request: ModelRequest) -> list[dict[str, object]]:
        rain = "rain" in str(request.messages[-1]["content"])
        return [call("museum" if rain else "beach")]

    model = bench.model([call("weather", {"city": "Rome"}, id="call_weather")], plan, "Done.")
    agent = Agent("planner", provider=model, tools=[weather, beach, museum])
    client = bench.client
    async with bench.serving(agent):
        await client.execute("planner", "Plan my trip", session_id="trip")
        before = await bench.record("trip"), [e.to_json() for e in await client.history("trip")]

        patch = ForkPatch(tool_result=("call_weather", {"forecast": "rain"}))
        fork = await client.fork("trip", from_step=1, patch=patch)
        assert fork.session_id == "trip.fork-1"
        assert fork.step == 1
        assert fork.checkpoint.status == "in-progress"
        other = await client.resume(fork.session_id)
        assert other is not None
        assert other.finish_reason == "stop"
        assert await client.resume(fork.session_id) is None

    assert asked == ["Rome"]
    assert [m["role"] for m in model.requests[3].messages] == ["user", "assistant", "tool"]
    assert model.requests[3].messages[2]["content"] == '{"forecast":"rain"}'
    original, replayed = await asyncio.gather(
        client.checkpoint("trip"), client.checkpoint("trip.fork-1")
    )
    assert original is not None
    assert replayed is not None
    difference = compare_trajectories(original, replayed).to_json()
    assert difference["divergedAt"] == 1
    assert difference["drift"] == [
        {
            "field": "tools",
            "committed": "weather > beach",
            "current": "weather > museum",
        }
    ]
    after = await bench.record("trip"), [e.to_json() for e in await client.history("trip")]
    assert after == before
    assert other.steps == 3
    assert replayed.to_json()["usage"]["modelCalls"] == 3
    assert (await client.sessions.list())[0].parent_session == "trip"


async def test_resume_of_what_is_not_pending(bench: Bench) -> None:
    model = bench.model("Hello.")
    async with bench.serving(Agent("agent", provider=model)):
        assert await bench.client.resume("no-such-session") is None
        await bench.client.execute("agent", "Hi", session_id=bench.session)
        assert await bench.client.resume(bench.session) is None
    assert len(model.requests) == 1


async def test_a_fork_of_a_pause_asks_again(bench: Bench, session: str) -> None:
    """The old approval is not carried over: each of the two has its own, with its own decision."""
    keys: list[str] = []

    @tool(needs_approval=True)
    async def book(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "booked"

    client = bench.client
    agent = Agent("agent", provider=bench.model([call("book")], "Done."), tools=[book])
    async with bench.serving(agent):
        paused = await client.execute("agent", "Book", session_id=session)
        assert paused.approval_id is not None
        fork = await client.fork(session, from_step=1, new_session_id=f"{session}-b")
        assert "approvalId" not in fork.checkpoint.to_json()
        other = await client.resume(fork.session_id)
        assert other is not None
        assert other.finish_reason == "awaiting-approval"
        assert other.approval_id not in (None, paused.approval_id)

        await client.approvals.resolve(other.approval_id, approved=True)
        assert [each.id for each in await client.approvals.list()] == [paused.approval_id]
        await client.approvals.resolve(paused.approval_id, approved=True)

    assert len(set(keys)) == 2
    assert (await bench.record(fork.session_id))["status"] == "finished"
    assert (await bench.record())["status"] == "finished"
