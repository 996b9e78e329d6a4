"""Field reports about forks, and about what a session has cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import CheckpointNotFoundError, RateLimitedError
from perdure.checkpoint_bridge.format.fork import ForkPatch
from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.testing import attempts, call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


async def export(bench: Bench, *session_ids: str) -> dict[str, str]:
    """What a process that knows nothing yet reads."""
    async with SqlStore(bench.store_url) as store:
        found = {each: await store.load(each) for each in session_ids}
    return {each: json.dumps(found[each].to_json()) for each in session_ids}  # type: ignore[union-attr]


async def test_r7_branches_keep_apart_also_when_they_are_read_again(
    bench: Bench, session: str
) -> None:
    @tool(read_only=True)
    def step(number: int) -> int:
        return number

    model = bench.model(*[[call("step", {"number": n})] for n in range(5)], "Done.", "Done.")
    agent = Agent("agent", provider=model, tools=[step])
    client = bench.client
    async with bench.serving(agent):
        await client.execute("agent", "Go", session_id=session)
        before = await export(bench, session)
        branches = []
        for text in ("left", "right"):
            fork = await client.fork(session, from_step=3, patch=ForkPatch(append_input=text))
            branches.append(fork.session_id)
            await client.resume(fork.session_id)
        inner = await client.fork(branches[0], from_step=4)
        branches.append(inner.session_id)
        await client.resume(inner.session_id)
        after = await export(bench, session, *branches)
    assert after[session] == before[session]
    assert len(set(branches)) == 3
    texts = {each: json.loads(after[each])["messages"] for each in after}
    # Three steps with their results, and the first message before them.
    shared = texts[session][:6]
    for branch, said in zip(branches, ("left", "right", "left"), strict=True):
        assert texts[branch][:6] == shared
        assert [m["content"] for m in texts[branch] if m["role"] == "user"] == ["Go", said]
        assert_valid(texts[branch])
    parents = {row.session_id: row.parent_session for row in await bench.store.sessions()}
    assert [parents[branch] for branch in branches] == [session, session, branches[0]]
    assert await export(bench, session, *branches) == after


async def test_r17_usage_survives_what_happens_to_a_run(bench: Bench, session: str) -> None:
    """A run counts its answers once; a session's bill has the failed attempts too."""

    @tool(read_only=True)
    def step() -> str:
        return "done"

    cost = {"inputTokens": 7, "outputTokens": 0, "totalTokens": 7}
    cut = RateLimitedError("cut short", retryable=True, retry_after=0.01, usage=cost)
    model = bench.model([call("step")], attempts(cut, [call("step")]), "Done.", "Done.")
    gate = model.gate(2)
    async with bench.serving(Agent("agent", provider=model, tools=[step])):
        await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.workflow().terminate()
        gate.open()
        result = await bench.client.resume(session)
        assert result is not None
        fork = await bench.client.fork(session, from_step=2)
        await bench.client.resume(fork.session_id)
    usage = result.usage.to_json()
    assert (usage["inputTokens"], usage["outputTokens"], usage["modelCalls"]) == (300, 30, 3)
    assert [step.step for step in result.step_usage] == [1, 2, 3]
    bill = (await bench.client.usage(session)).to_json()
    assert bill["inputTokens"] == 307
    # What the fork shares with its parent was paid for there.
    assert (await bench.client.usage(fork.session_id)).to_json()["inputTokens"] == 100


async def test_r27_a_fork_from_before_an_approval_asks_again(bench: Bench, session: str) -> None:
    keys: list[str] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        return "seen"

    @tool(needs_approval=True)
    async def pay(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "paid"

    model = bench.model([call("look")], [call("pay")], "Done.")
    client = bench.client
    async with bench.serving(Agent("agent", provider=model, tools=[look, pay])):
        paused = await client.execute("agent", "Go", session_id=session)
        await client.approvals.resolve(str(paused.approval_id), approved=True)
        before = await client.fork(session, from_step=1)
        asked = await client.resume(before.session_id)
        assert asked is not None
        assert asked.finish_reason == "awaiting-approval"
        assert asked.approval_id != paused.approval_id
        assert len(keys) == 1
        await client.approvals.resolve(str(asked.approval_id), approved=True)
        assert len(set(keys)) == len(keys) == 2
        # From after it, nothing is asked and nothing runs.
        after = await client.fork(session, from_step=2)
        done = await client.resume(after.session_id)
    assert done is not None
    assert done.text == "Done."
    assert len(keys) == 2


async def test_r36_a_fork_inside_of_a_batch_makes_the_calls_that_are_left(
    bench: Bench, session: str
) -> None:
    """A step is the newest save of it; its calls without results are the fork's to make."""
    gate = bench.gate()
    ran: list[str] = []

    @tool
    async def quick(ctx: ToolContext) -> str:
        ran.append(ctx.session_id)
        return "quick"

    @tool
    async def slow(ctx: ToolContext) -> str:
        if ctx.session_id == session:
            await gate.hold()
        ran.append(ctx.session_id)
        return "slow"

    model = bench.model([call("quick"), call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick, slow])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()

        async def one_is_recorded() -> bool:
            return len(await bench.results()) == 1

        await bench.until(one_is_recorded)
        with pytest.raises(CheckpointNotFoundError, match=r"steps kept: 1\)"):
            await bench.client.fork(session, from_step=7)
        fork = await bench.client.fork(session, from_step=1)
        forked = await bench.client.resume(fork.session_id)
        gate.open()
        result = await handle.result()
    assert forked is not None
    assert forked.text == result.text == "Done."
    found: list[Any] = [await bench.results(each) for each in (session, fork.session_id)]
    assert found[0] == found[1]
    assert ran.count(fork.session_id) == 1
