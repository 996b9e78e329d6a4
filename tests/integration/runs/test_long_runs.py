"""Long runs go on in new executions, and nobody notices."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import SessionAwaitingApprovalError
from perdure.testing import call

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.runs.conftest import Bench


@pytest.fixture(autouse=True)
def only_what_is_asked_for_is_replayed(bench: Bench) -> None:
    """At the end of a test the limit is the usual one again."""
    bench.replay_all = False


@tool(read_only=True)
def count(number: int) -> int:
    return number


@tool(read_only=True, needs_approval=True)
def gated() -> str:
    return "gated"


async def executions(bench: Bench, *, most: int | None = None) -> int:
    """How many there were; with ``most`` events in each."""
    histories = await bench.histories()
    if most is not None:
        assert max(len(history.events) for history in histories) < most
    return len(histories)


async def test_thirty_steps(bench: Bench, session: str, shorten: Callable[..., None]) -> None:
    turns: list[Any] = [
        [call("count", {"number": n}), call("count", {"number": -n})] for n in range(29)
    ]
    undisturbed = f"{session}-undisturbed"
    model = bench.model(*turns, "Done.")
    agent = Agent("agent", provider=model, tools=[count], instructions="Count.")
    async with bench.serving(agent):
        await bench.client.execute("agent", "Go", session_id=undisturbed)
    assert len(await bench.histories(undisturbed)) == 1
    await bench.replay(undisturbed)

    shorten(110)
    async with bench.serving(agent):
        handle = await bench.client.start("agent", "Go", session_id=session)
        result = await handle.result()
    assert await executions(bench, most=180) > 3
    assert (result.finish_reason, result.steps) == ("stop", 30)
    assert result.run_id == handle.run_id
    one, other = await bench.record(undisturbed), await bench.record()
    assert {**one, "sessionId": session} == other
    assert await bench.saves() == await bench.saves(undisturbed)
    assert {event.data["runId"] for event in await bench.events("turn/start")} == {handle.run_id}
    await bench.replay(session)


async def test_steps_are_counted_across_executions(
    bench: Bench, session: str, shorten: Callable[..., None]
) -> None:
    shorten()
    model = bench.model(*[[call("count", {"number": n})] for n in range(13)])
    async with bench.serving(Agent("agent", provider=model, tools=[count], max_steps=12)):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert (result.finish_reason, result.steps) == ("max-steps", 12)
    assert await executions(bench, most=120) > 1
    await bench.replay(session)


async def noise(bench: Bench, times: int) -> None:
    """Signals that are no decision: they make a history long and change nothing."""
    await asyncio.gather(
        *(bench.workflow().signal("resolve_approval", "not a decision") for _ in range(times))
    )


async def rolled_over(bench: Bench, times: int) -> bool:
    return await executions(bench) > times


async def test_r30_while_an_approval_waits(
    bench: Bench, session: str, shorten: Callable[..., None]
) -> None:
    shorten()
    gate = bench.gate()

    @tool(read_only=True)
    async def slow() -> str:
        await gate.hold()
        return "slow"

    model = bench.model([call("slow"), call("gated"), call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow, gated])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.client.start("agent", "Also this", session_id=session)
        gate.open()
        paused = await handle.result()
        for rounds in range(1, 3):
            await noise(bench, 60)
            await bench.until(lambda rounds=rounds: rolled_over(bench, rounds))  # type: ignore[misc]
        assert [each.id for each in await bench.client.approvals.list()] == [paused.approval_id]
        state = await bench.state()
        assert (state["status"], state["queued"]) == ("awaiting-approval", 1)
        assert state["pending_approvals"][0]["id"] == paused.approval_id
        with pytest.raises(SessionAwaitingApprovalError):
            await bench.client.execute("agent", "Ready?", session_id=session)
        again = await handle.result()
        assert again.approval_id == paused.approval_id

        assert paused.approval_id is not None
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True, by="ann")
        assert (await handle.result()).text == "Done."
    assert result.run_id == handle.run_id
    assert [message.text for message in result.messages if message.role == "user"] == [
        "Go",
        "Also this",
    ]
    assert [json.loads(m["content"]) for m in await bench.results()] == ["slow", "gated", "slow"]
    assert len(await bench.events("approval/requested")) == 1
    assert len(await bench.events("turn/start")) == 1
    await bench.replay(session)


async def test_r30_a_decision_in_the_middle_of_it(
    bench: Bench, session: str, shorten: Callable[..., None]
) -> None:
    """Whichever execution the decision reaches, it counts once."""
    shorten()
    turns = [[call("gated")] for _ in range(4)]
    model = bench.model(*turns, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[gated])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        for number in range(4):
            approval_id = await bench.pending()
            decision = {"id": approval_id, "approved": True, "by": str(number)}
            await asyncio.gather(
                noise(bench, 10),
                bench.workflow().signal("resolve_approval", decision),
                noise(bench, 10),
                return_exceptions=True,
            )
            await bench.until(lambda approval_id=approval_id: decided(bench, approval_id))  # type: ignore[misc]
        await bench.until(lambda: over(bench))
        result = await handle.result()
    assert result.text == "Done."
    assert [event.data["by"] for event in await bench.events("approval/decided")] == list("0123")
    assert [m["content"] for m in await bench.results()] == ['"gated"'] * 4
    assert await executions(bench) > 1
    await bench.replay(session)


async def decided(bench: Bench, approval_id: str) -> bool:
    row = await bench.store.approval(approval_id)
    return row is not None and row.decided_at is not None


async def over(bench: Bench) -> bool:
    return await bench.client.running(bench.session) is None


async def test_r30_input_and_cancel_reach_a_later_execution(
    bench: Bench, session: str, shorten: Callable[..., None]
) -> None:
    shorten()
    turns: list[Any] = [[call("count", {"number": n})] for n in range(12)]
    model = bench.model(*turns, "Unheard.")
    gate = model.gate(12)
    async with bench.serving(Agent("agent", provider=model, tools=[count])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        assert await executions(bench) > 1
        # A retry is recognised by what the first execution was given.
        again = await bench.client.start("agent", "Go", session_id=session)
        other = await bench.client.start("agent", "Also this", session_id=session)
        assert {again.run_id, other.run_id} == {handle.run_id}
        assert (await bench.state())["queued"] == 1
        await handle.cancel()
        result = await handle.result()
        gate.open()
    assert result.finish_reason == "aborted"
    assert [message.text for message in result.messages if message.role == "user"] == [
        "Go",
        "Also this",
    ]
    await bench.replay(session)


async def test_a_tool_key_names_the_call_not_the_execution(
    bench: Bench, session: str, shorten: Callable[..., None]
) -> None:
    shorten()
    seen: list[tuple[str, str]] = []

    @tool
    async def act(ctx: ToolContext) -> None:
        seen.append((ctx.idempotency_key, ctx.run_id))

    model = bench.model(*[[call("act", id="call_0")] for _ in range(12)], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[act])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert await executions(bench) > 1
    assert len({key for key, _ in seen}) == 12
    assert {run_id for _, run_id in seen} == {result.run_id}
