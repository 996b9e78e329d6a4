"""Sub-agents whose parent is cancelled or terminated, and what may have happened in them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.checkpoint_bridge.log.lineage import depth_of
from perdure.checkpoint_bridge.tables.ledger import EffectId
from perdure.testing import call
from tests.integration.runs.sub_agents import PAID, ask, children, contents, look_up, pay, waiting

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()


async def test_r16_cancel_of_the_parent_settles_its_children(bench: Bench, session: str) -> None:
    gate = bench.gate()

    @tool
    async def slow(ctx: ToolContext) -> str:
        await gate.hold()
        return "slow"

    paying = Agent("paying", provider=bench.model([call("pay", {"amount": 1})], "x"), tools=[pay])
    working = Agent("working", provider=bench.model([call("slow")], "x"), tools=[slow])
    quick = Agent("quick", provider=bench.model("Quick."))
    turn = [ask("a", "paying"), ask("b", "working"), ask("c", "quick")]
    model = bench.model(turn, "Went on.")
    tools = [paying.as_tool(), working.as_tool(), quick.as_tool()]
    async with bench.serving(Agent("lead", provider=model, tools=tools)):
        handle = await bench.client.start("lead", "Go", session_id=session)
        await waiting(bench, 1)
        await gate.reached()

        async def quick_is_done() -> bool:
            rows = {row.agent: row for row in await children(bench)}
            return "quick" in rows and rows["quick"].status == "finished"

        await bench.until(quick_is_done)
        async with asyncio.timeout(15):
            await handle.cancel()
            await handle.cancel()
            result = await handle.result()
        assert result.finish_reason == "aborted"
        for child in await children(bench):
            described = await bench.workflow(child.session_id).describe()
            assert described.status is not None
            expected = "COMPLETED" if child.agent == "quick" else "CANCELED"
            assert described.status.name == expected
            await contents(bench, child.session_id)
        assert await bench.client.approvals.list() == []
        kinds = [each if isinstance(each, str) else each["kind"] for each in await contents(bench)]
        assert kinds == ["cancelled", "cancelled", "Quick."]
        assert PAID == []
        again = await bench.client.execute("lead", "Go on", session_id=session)
    assert again.text == "Went on."


async def test_f69_what_a_sub_agent_may_have_done(bench: Bench, session: str) -> None:
    """Its own calls are listed, by the keys that they had; the call of it has no key."""
    gate, keys = bench.gate(), []

    @tool
    async def charge(amount: int, ctx: ToolContext) -> None:
        keys.append((ctx.session_id, ctx.idempotency_key))
        await gate.hold()

    charging = [call("look_up", {"what": "x"}), call("charge", {"amount": 7})]
    deep = Agent("deep", provider=bench.model([charging[1]], "x"), tools=[charge])
    middle_model = bench.model([*charging, ask("Charge.", "deep")], "x")
    middle = Agent("middle", provider=middle_model, tools=[look_up, charge, deep.as_tool()])
    thinking = bench.model("x")
    thought = thinking.gate(1)
    idle = Agent("idle", provider=thinking)
    model = bench.model([ask("a", "middle"), ask("b", "idle")])
    lead = Agent("lead", provider=model, tools=[middle.as_tool(), idle.as_tool()])
    talk = bench.client.sessions.get(session)
    async with bench.serving(lead):
        await talk.submit("Go", agent="lead")
        await thought.reached()

        async def both_charge() -> bool:
            return len(keys) == 2

        await bench.until(both_charge)
        assert await talk.ambiguous() == []
        await talk.interrupt()
    found = await talk.ambiguous()
    assert sorted((each.session_id, each.idempotency_key) for each in found) == sorted(keys)
    assert [(each.tool, each.arguments) for each in found] == [("charge", {"amount": 7})] * 2
    assert [depth_of(each.session_id) for each in found] == [1, 2]
    for each in found:
        events = await bench.store.events(each.session_id, after=each.sequence - 1, limit=1)
        assert (events[0].type, events[0].data["name"]) == ("tool/call", "charge")
        assert each.to_json()["sessionId"] == each.session_id


async def has_outcome(bench: Bench, session_id: str) -> bool:
    """Whether the ledger has the outcome of a session's first call."""
    row = await bench.store.session(session_id)
    assert row is not None
    (answer,) = await bench.events("assistant/message", session_id=session_id)
    effect = await bench.store.effect(EffectId(row.log_id, answer.seq, 0))
    return effect is not None and effect.done


async def test_f69_a_sub_agent_that_was_terminated(bench: Bench, session: str) -> None:
    """It could close nothing: its calls that had begun have no result."""
    gate, keys = bench.gate(), []

    @tool
    async def charge(ctx: ToolContext) -> None:
        keys.append(ctx.idempotency_key)
        await gate.hold()

    helper_model = bench.model([call("look_up", {"what": "x"}), call("charge")], "x")
    helper = Agent("helper", provider=helper_model, tools=[look_up, charge])
    lead = Agent("lead", provider=bench.model([ask("a")], "Done."), tools=[helper.as_tool()])
    talk = bench.client.sessions.get(session)
    async with bench.serving(lead):
        sending = asyncio.create_task(talk.send("Go", agent="lead"))
        await gate.reached()
        (child,) = await children(bench)
        # Its result is not in the log, which the run would have written; the ledger has it.
        await bench.until(lambda: has_outcome(bench, child.session_id))
        await bench.workflow(child.session_id).terminate()
        await sending
    (found,) = await talk.ambiguous()
    assert (found.session_id, found.idempotency_key) == (child.session_id, keys[0])
    assert await bench.client.sessions.get(child.session_id).ambiguous() == []


async def test_r12_cancel_at_the_instant_of_completion(bench: Bench, session: str) -> None:
    helper_model = bench.model("Answer.")
    gate = helper_model.gate(1)
    helper = Agent("helper", provider=helper_model)
    model = bench.model([ask("a")], "Done.")
    async with bench.serving(Agent("lead", provider=model, tools=[helper.as_tool()])):
        handle = await bench.client.start("lead", "Go", session_id=session)
        await gate.reached()
        gate.open()
        async with asyncio.timeout(15):
            await handle.cancel()
            result = await handle.result()
        assert result.finish_reason in ("aborted", "stop")
        await contents(bench)
        (child,) = await children(bench)
        record = await bench.record(child.session_id)
        assert_valid(record["messages"])
        again = await bench.client.execute("lead", "Go on", session_id=session)
    assert again.text == "Done."
