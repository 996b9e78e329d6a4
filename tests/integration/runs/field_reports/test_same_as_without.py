"""Field reports about what durability must not change: requests, and the run's course."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from perdure import Agent, tool
from perdure.activities.content import to_json_value
from perdure.activities.planning import plan_call
from perdure.activities.providers.anthropic import AnthropicProvider
from perdure.activities.providers.base import ToolSpec
from perdure.activities.providers.openai import OpenAIProvider
from perdure.checkpoint_bridge.format.tool_results import result
from perdure.checkpoint_bridge.format.trajectory import compare_trajectories
from perdure.testing import ModelRequest, ScriptedModel, call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


class Trip(BaseModel):
    """Where to."""

    city: str = Field(description="The city's name")
    nights: int = Field(1, ge=1)


@tool(read_only=True)
def weather(city: str, days: int = 1) -> dict[str, Any]:
    """Tell the weather.

    For some days.
    """
    return {"city": city, "days": days, "é": None}


@tool(name="book-room", description="Book a room.", idempotent=True)
async def book(trip: Trip) -> list[Any]:
    return [trip.city, trip.nights, 0.5]


SCRIPT: list[Any] = [
    [call("weather", {"city": "Rome"}), call("book-room", {"city": "Rome"}), call("nothing")],
    [call("book-room", {"city": "Rome", "nights": 0}), call("weather", '{"city": "Zürich"}')],
    "Done.",
]


async def plainly(agent: Agent, model: ScriptedModel, text: str) -> list[dict[str, Any]]:
    """The loop as anyone would write it who needs no durability."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": agent.instructions},
        {"role": "user", "content": text},
    ]
    offered = [
        ToolSpec(each.name, each.description, each.input_schema) for each in agent.tools.values()
    ]
    for step in range(1, agent.max_steps + 1):
        request = ModelRequest(
            model=agent.request_model,
            messages=list(messages),
            tools=offered,
            settings=dict(agent.settings),
            step=step,
        )
        answer = await model.generate(request)
        messages.append(answer.message())
        for index, made in enumerate(answer.tool_calls):
            plan = plan_call(agent, index, made)
            if plan.result is not None:
                messages.append(plan.result.message or {})
                continue
            each = agent.tools[plan.tool]
            arguments = each.arguments.model_validate_json(made["function"]["arguments"])
            value = each.bind(arguments, None)()  # type: ignore[arg-type]
            value = await value if each.is_async else value
            messages.append(result(made["id"], plan.tool, to_json_value(value)))
        if not answer.tool_calls:
            return messages
    raise AssertionError


async def test_r38_the_requests_are_those_of_a_loop_without_temporal(
    bench: Bench, session: str
) -> None:
    model, plain = bench.model(*SCRIPT), bench.model(*SCRIPT)

    def agent(provider: ScriptedModel) -> Agent:
        return Agent(
            "agent",
            provider=provider,
            instructions="Be brief.",
            tools=[weather, book],
            settings={"temperature": 0, "seed": 7},
        )

    messages = await plainly(agent(plain), plain, "Go")
    async with bench.serving(agent(model)):
        durable = await bench.client.execute("agent", "Go", session_id=session)
    assert len(model.requests) == len(plain.requests) == 3
    for ours, theirs in zip(model.requests, plain.requests, strict=True):
        assert replace(ours, session_id="", run_id="") == theirs
        for provider in (OpenAIProvider(api_key="k"), AnthropicProvider(api_key="k")):
            sent, expected = (provider._body(each, "m") for each in (ours, theirs))
            assert json.dumps(sent) == json.dumps(expected)
    record = await bench.record()
    assert record["messages"] == messages
    compared = compare_trajectories([m.to_json() for m in durable.messages], messages)
    assert compared.diverged_at is None


async def test_r20_reads_and_deploys_never_change_a_run(bench: Bench, session: str) -> None:
    """Queried and exported at each step, by workers that have other tools, models and prompts."""
    gate = bench.gate()

    @tool(name="look", read_only=True)
    async def held() -> str:
        await gate.hold()
        return "seen"

    @tool(name="look", description="Otherwise described.", read_only=True)
    async def look(place: str = "here") -> str:
        return place

    @tool(read_only=True)
    def new() -> None: ...

    @tool(name="gated", needs_approval=True, read_only=True)
    async def gated() -> str:
        return "gated"

    first = bench.model([call("look")], [call("gated")], "Done.")
    async with bench.serving(Agent("agent", provider=first, tools=[held, gated], model="one")):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        for _ in range(3):
            assert (await bench.state())["status"] == "running"
            await bench.record()
        gate.open()
        paused = await handle.result()
        assert (await bench.state())["status"] == "awaiting-approval"
    before = (await bench.record())["messages"]
    second = bench.model(None, None, [call("look"), call("new")], "Done.")
    changed = Agent(
        "agent",
        provider=second,
        model="two",
        instructions="Otherwise prompted.",
        tools=[gated, look, new],
        on_agent_drift="ignore",
    )
    async with bench.serving(changed):
        result = await bench.client.approvals.resolve(str(paused.approval_id), approved=True)
        await bench.state()
        await bench.replay(session)
    assert result.text == "Done."
    assert (await bench.record())["messages"][: len(before)] == before
