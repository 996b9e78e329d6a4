"""Agents that call agents: each call is a run of its own, and the parent's waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent
from perdure.checkpoint_bridge.errors import (
    ApprovalDecidedError,
    ConfigurationError,
    ProviderError,
    SessionAwaitingApprovalError,
    SessionConflictError,
)
from perdure.checkpoint_bridge.log.lineage import ancestors, depth_of
from perdure.testing import call
from tests.integration.runs.conftest import held
from tests.integration.runs.sub_agents import PAID, ask, children, contents, look_up, pay, waiting

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()


async def test_an_agent_calls_another(bench: Bench, session: str) -> None:
    helper_model = bench.model([call("look_up", {"what": "Rome"})], "Rome is old.")
    helper = Agent("helper", provider=helper_model, tools=[look_up], instructions="You help.")
    model = bench.model([call("look_up", {"what": "x"}), ask("Rome?"), call("nope")], "Done.")
    lead = Agent("lead", provider=model, tools=[look_up, helper.as_tool(description="Knows all.")])
    async with bench.serving(lead):
        result = await bench.client.execute("lead", "Go", session_id=session)
    assert result.text == "Done."
    first, second, third = await contents(bench)
    assert (first, second, third["kind"]) == ("about x", "Rome is old.", "not-found")
    spec = {each.name: each for each in model.requests[0].tools}["helper"]
    assert spec.description == "Knows all."
    assert spec.input_schema["required"] == ["input"]
    (child,) = await children(bench)
    assert (child.agent, child.status) == ("helper", "finished")
    assert ancestors(child.session_id) == [session]
    roles = [m["role"] for m in (await bench.record(child.session_id))["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    # What it used is its own session's.
    assert (result.usage.model_calls, child.step) == (2, 2)
    header = (await bench.client.sessions.get(child.session_id).info()).header
    assert (header.parent_session, header.delegation_depth) == (session, 1)
    (start,) = await bench.events("turn/start", session_id=child.session_id)
    assert (start.data["parentSession"], start.data["delegationDepth"]) == (session, 1)


async def test_a_session_is_deleted_with_its_sub_agents(bench: Bench, session: str) -> None:
    deep = Agent("deep", provider=bench.model("Deep."))
    helper_model = bench.model([ask("b", "deep")], [call("pay", {"amount": 1})], "Paid.")
    helper = Agent("helper", provider=helper_model, tools=[deep.as_tool(), pay])
    lead = Agent("lead", provider=bench.model([ask("a")], "Done."), tools=[helper.as_tool()])
    client = bench.client
    async with bench.serving(lead):
        await client.execute("lead", "Go", session_id=session)
        (middle, lowest) = [row.session_id for row in await children(bench)]
        assert await bench.store.sub_agents(session) == [lowest, middle]
        # What goes on is found before anything is gone.
        with pytest.raises(SessionConflictError, match="has a run that goes on"):
            await client.delete(session, sub_agents=True)
        assert len(await children(bench)) == 2
        await client.sessions.get(session).end()
    fork = await client.sessions.get(lowest).fork()
    # Not asked for, they stay; and a fork of one is a session of its own.
    await client.delete(session)
    assert len(await children(bench)) == 2
    await client.sessions.create("lead", session_id=session)
    await client.sessions.delete(session, force=True, sub_agents=True)
    assert [row.session_id for row in await bench.store.sessions()] == [fork.session_id]


async def test_parallel_calls_of_one_agent_have_sessions_of_their_own(
    bench: Bench, session: str
) -> None:
    helper = Agent("helper", provider=bench.model(lambda r: r.messages[-1]["content"].upper()))
    model = bench.model([ask("a"), ask("b"), ask("c")], "Done.")
    async with bench.serving(Agent("lead", provider=model, tools=[helper.as_tool()])):
        await bench.client.execute("lead", "Go", session_id=session)
    assert await contents(bench) == ["A", "B", "C"]
    assert len(await children(bench)) == 3


async def test_an_answer_that_is_no_answer(bench: Bench, session: str) -> None:
    """A failed agent and one that runs out of steps give error results; the lead goes on."""
    failing = Agent("failing", provider=bench.model(ProviderError("no such model")))
    endless = Agent(
        "endless",
        provider=bench.model([call("look_up", {"what": "it"})]),
        tools=[look_up],
        max_steps=1,
    )
    silent = Agent("silent", provider=bench.model(""))
    model = bench.model([ask("a", "failing"), ask("b", "endless"), ask("c", "silent")], "Done.")
    tools = [failing.as_tool(), endless.as_tool(), silent.as_tool()]
    async with bench.serving(Agent("lead", provider=model, tools=tools)):
        result = await bench.client.execute("lead", "Go", session_id=session)
    assert result.text == "Done."
    failed, ran_out, empty = await contents(bench)
    assert (failed["kind"], failed["error"]) == ("execution", "ProviderError")
    assert failed["message"] == "The agent failing failed: no such model"
    assert ran_out["message"] == "The agent endless used up its steps without an answer."
    assert empty == ""


async def test_large_input_and_answer_go_by_reference(bench: Bench, session: str) -> None:
    text = "word " * 4000
    helper = Agent("helper", provider=bench.model(lambda r: r.messages[-1]["content"]))
    model = bench.model([ask(text)], "Done.")
    async with bench.serving(Agent("lead", provider=model, tools=[helper.as_tool()])):
        await bench.client.execute("lead", "Go", session_id=session)
    assert await contents(bench) == [text]
    (child,) = await children(bench)
    for session_id in (session, child.session_id):
        for history in await bench.histories(session_id):
            assert len(history.to_json()) < 40_000


async def test_f88_sub_agent_approvals_pause_the_parent(bench: Bench, session: str) -> None:
    """F88: the parent is awaiting-approval; deciding by the id that it gives lets both finish."""
    helper_model = bench.model(
        [call("pay", {"amount": 1})], [call("pay", {"amount": 2})], "Paid both."
    )
    helper = Agent("helper", provider=helper_model, tools=[pay])
    model = bench.model([ask("Pay")], "Done.")
    async with bench.serving(Agent("lead", provider=model, tools=[helper.as_tool()])):
        first = await bench.client.execute("lead", "Go", session_id=session)
        assert first.finish_reason == "awaiting-approval"
        assert first.approval_id is not None
        record = await bench.record()
        assert (record["status"], record["approvalId"]) == ("awaiting-approval", first.approval_id)
        (pending,) = await bench.client.approvals.list(session_id=session)
        assert (pending.id, pending.tool_name, pending.args) == (
            first.approval_id,
            "pay",
            {"amount": 1},
        )
        assert (pending.agent_id, pending.subagent_path) == ("helper", ["lead", "helper"])
        (shown,) = (await bench.state())["pending_approvals"]
        assert (shown["id"], shown["path"]) == (first.approval_id, ["lead", "helper"])
        with pytest.raises(SessionAwaitingApprovalError) as refused:
            await bench.client.execute("lead", "More", session_id=session)
        assert refused.value.approval_id == first.approval_id
        # Again when the sub-agent pauses again.
        second = await bench.client.approvals.resolve(first.approval_id, approved=True, by="ana")
        assert (second.session_id, second.finish_reason) == (session, "awaiting-approval")
        assert second.approval_id not in (None, first.approval_id)
        with pytest.raises(ApprovalDecidedError):
            await bench.client.approvals.resolve(first.approval_id, approved=False)
        last = await bench.client.approvals.resolve(
            second.approval_id or "", approved=False, note="too much"
        )
    assert (last.session_id, last.text) == (session, "Done.")
    (child,) = await children(bench)
    paid, rejected = await contents(bench, child.session_id)
    assert (paid, rejected["note"]) == ("paid 1", "too much")
    assert await contents(bench) == ["Paid both."]
    assert [(child.session_id, 1)] == PAID
    statuses = [status for _, status, _, _ in await bench.saves()]
    assert statuses == [
        "in-progress",
        "awaiting-approval",
        "awaiting-approval",
        "in-progress",
        "finished",
    ]


async def test_r16_approvals_of_two_sub_agents_of_one_name(bench: Bench, session: str) -> None:
    """Both gated, in parallel; restart; the second is approved, then the first rejected."""

    def turns(request: Any) -> Any:
        done = [m for m in request.messages if m["role"] == "tool"]
        if done:
            return f"{request.messages[0]['content']}: {done[0]['content']}"
        return [call("pay", {"amount": int(request.messages[0]["content"])})]

    def lead() -> Agent:
        helper = Agent("helper", provider=bench.model(turns, turns), tools=[pay])
        model = bench.model([ask("10"), ask("20")], "Done.")
        return Agent("lead", provider=model, tools=[helper.as_tool()])

    async with bench.serving(lead()):
        paused = await bench.client.execute("lead", "Go", session_id=session)
        assert paused.finish_reason == "awaiting-approval"
        await waiting(bench, 2)
    # Another worker, as after a restart.
    async with bench.serving(lead()):
        listed = await bench.client.approvals.list(session_id=session)
        assert [each.subagent_path for each in listed] == [["lead", "helper"]] * 2
        by_amount = {each.args["amount"]: each.id for each in listed}
        between = await bench.client.approvals.resolve(by_amount[20], approved=True)
        assert (between.session_id, between.approval_id) == (session, by_amount[10])
        last = await bench.client.approvals.resolve(by_amount[10], approved=False, note="no")
    assert (last.session_id, last.text) == (session, "Done.")
    first, second = await children(bench)
    assert [(second.session_id, 20)] == PAID
    answers = await contents(bench)
    assert answers[0].startswith("10: ")
    assert "no" in answers[0]
    assert answers[1] == '20: "paid 20"'
    for child in (first, second):
        await contents(bench, child.session_id)


async def test_a_decision_sent_to_the_parent_reaches_the_child(bench: Bench, session: str) -> None:
    helper = Agent(
        "helper", provider=bench.model([call("pay", {"amount": 5})], "Paid."), tools=[pay]
    )
    middle = Agent("middle", provider=bench.model([ask("Pay")], "Told."), tools=[helper.as_tool()])
    model = bench.model([ask("Do", "middle")], "Done.")
    async with bench.serving(Agent("lead", provider=model, tools=[middle.as_tool()])):
        await bench.start_plain({"agent": "lead", "input": "Go"})
        (approval_id,) = await waiting(bench, 1)
        (shown,) = (await bench.state())["pending_approvals"]
        assert shown["path"] == ["lead", "middle", "helper"]
        (listed,) = await bench.client.approvals.list(session_id=session)
        assert listed.subagent_path == ["lead", "middle", "helper"]
        await bench.workflow().signal("resolve_approval", {"id": approval_id, "approved": True})
        outcome = await bench.workflow().result()
    assert outcome["text"] == "Done."
    assert [depth_of(session_id) for session_id, _ in PAID] == [2]


@pytest.mark.parametrize("to_parent", [False, True])
async def test_a_signal_counts_at_once_for_the_run_above(
    bench: Bench, session: str, to_parent: bool
) -> None:
    helper = Agent(
        "helper", provider=bench.model([call("pay", {"amount": 5})], "Paid."), tools=[pay]
    )
    model = bench.model([ask("Pay", "helper")], "Done.")
    async with bench.serving(Agent("lead", provider=model, tools=[helper.as_tool()])):
        paused = await bench.client.execute("lead", "Go", session_id=session)
        (below,) = await children(bench)
        decision = {"id": paused.approval_id, "approved": True}
        async with held(bench.store_url):
            told = session if to_parent else below.session_id
            await bench.workflow(told).signal("resolve_approval", decision)
            waiting = asyncio.create_task(bench.client.handle(session, paused.run_id).result())
            _, still = await asyncio.wait({waiting}, timeout=0.3)
            assert still
        assert (await waiting).text == "Done."


async def test_a_parent_opened_again_after_termination_uses_its_childrens_answers(
    bench: Bench, session: str
) -> None:
    """One child had answered, one waits: its approval is decided while nothing runs."""
    quick_model = bench.model("Quick.")
    quick = Agent("quick", provider=quick_model)
    paying_model = bench.model([call("pay", {"amount": 7})], "Paid.")
    paying = Agent("paying", provider=paying_model, tools=[pay])
    model = bench.model([ask("a", "paying"), ask("b", "quick")], "Done.")
    lead = Agent("lead", provider=model, tools=[paying.as_tool(), quick.as_tool()])
    async with bench.serving(lead):
        paused = await bench.client.execute("lead", "Go", session_id=session)
        approval_id = paused.approval_id or ""

        async def quick_is_done() -> bool:
            return any(row.status == "finished" for row in await children(bench))

        await bench.until(quick_is_done)
        await bench.workflow().terminate()
        first, _ = await children(bench)

        async def child_ended() -> bool:
            return await bench.client.running(first.session_id) is None

        await bench.until(child_ended)
        with pytest.raises(SessionAwaitingApprovalError):
            await bench.client.execute("lead", "More", session_id=session)
        result = await bench.client.approvals.resolve(approval_id, approved=True)
    assert (result.session_id, result.text) == (session, "Done.")
    assert await contents(bench) == ["Paid.", "Quick."]
    assert [(first.session_id, 7)] == PAID
    # Nothing was asked of a model twice.
    assert [len(m.requests) for m in (model, paying_model, quick_model)] == [2, 2, 1]


async def test_f8_delegation_depth(bench: Bench, session: str) -> None:
    """F8: at the limit the call is an error, and no deeper session exists; also when reopened."""
    bottom = Agent("bottom", provider=bench.model("Never."))
    middle_model = bench.model([ask("c", "bottom")], [ask("d", "bottom")], "Alone.")
    gate = middle_model.gate(2)
    middle = Agent("middle", provider=middle_model, tools=[bottom.as_tool()])
    upper = Agent(
        "upper", provider=bench.model([ask("b", "middle")], "Up."), tools=[middle.as_tool()]
    )
    model = bench.model([ask("a", "upper")], "Done.")
    lead = Agent("lead", provider=model, tools=[upper.as_tool()], max_delegation_depth=2)
    async with bench.serving(lead):
        await bench.client.start("lead", "Go", session_id=session)
        await gate.reached()
    gate.open()
    async with bench.serving(lead):
        result = await bench.client.resume(session)
    assert result is not None
    assert result.text == "Done."
    below = await children(bench)
    assert [row.agent for row in below] == ["upper", "middle"]
    refused = await contents(bench, below[1].session_id)
    assert [each["error"] for each in refused] == ["DelegationDepthExceeded"] * 2


async def test_a_gated_call_of_an_agent_is_asked_about_first(bench: Bench, session: str) -> None:
    helper_model = bench.model("Answer.")
    helper = Agent("helper", provider=helper_model)
    model = bench.model([ask("a"), ask("b")], "Done.")
    tools = [helper.as_tool(needs_approval=lambda args: args.input == "b")]
    async with bench.serving(Agent("lead", provider=model, tools=tools)):
        paused = await bench.client.execute("lead", "Go", session_id=session)
        (pending,) = await bench.client.approvals.list(session_id=session)
        assert (pending.tool_name, pending.args) == ("helper", {"input": "b"})
        assert len(helper_model.requests) == 1
        result = await bench.client.approvals.resolve(paused.approval_id or "", approved=True)
    assert result.text == "Done."
    assert await contents(bench) == ["Answer.", "Answer."]


async def test_another_agent_of_a_sub_agents_name_is_refused(bench: Bench) -> None:
    helper = Agent("helper", provider=bench.model("x"))
    lead = Agent("lead", provider=bench.model("x"), tools=[helper.as_tool()])
    with pytest.raises(ConfigurationError, match="Two agents are named 'helper'"):
        async with bench.serving(lead, Agent("helper", provider=bench.model("y"))):
            pass


@pytest.mark.parametrize("option", ["sub_agents", "keep_history"])
async def test_what_is_deleted_is_said_by_true_or_false(bench: Bench, option: str) -> None:
    options: Any = {option: "no"}
    with pytest.raises(ConfigurationError, match="true or false") as raised:
        await bench.client.delete(bench.session, **options)
    assert raised.value.field == option
