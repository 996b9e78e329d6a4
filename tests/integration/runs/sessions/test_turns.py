"""Turns through a session object: rows F9, F42 to F51 and F67 to F70 of the features."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    NotATurnError,
    ProviderError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionNotFoundError,
)
from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.testing import call

if TYPE_CHECKING:
    from perdure.sessions.session import Session
    from tests.integration.runs.conftest import Bench


@tool(read_only=True)
def look() -> str:
    return "seen"


@tool(read_only=True)
def broken() -> str:
    raise ValueError("no")


@tool(needs_approval=True)
async def gated(ctx: ToolContext) -> str:
    return "done"


def slow_tool(bench: Bench) -> tuple[Any, Any]:
    gate = bench.gate()

    @tool
    async def slow(ctx: ToolContext) -> str:
        await gate.hold()
        return "slow"

    return slow, gate


async def types_after(bench: Bench, sequence: int) -> list[str]:
    events = await bench.store.events(bench.session, after=sequence - 1)
    return [event.type for event in events]


# -- sending ---------------------------------------------------------------------------------


async def test_f42_a_turn_goes_on_without_its_client(bench: Bench, talk: Session) -> None:
    model = bench.model("One.", "Two.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        sending = asyncio.create_task(talk.send("Go", agent="agent"))
        await gate.reached()
        sending.cancel()
        await asyncio.wait([sending])
        gate.open()
        running = await bench.client.running(bench.session)
        if running is not None:
            await running.result()
        (start,) = await bench.events("turn/start")
        outcome = await talk.outcome(start.sequence)
        assert (outcome.state, outcome.answer) == ("ended", "One.")
        result = await talk.send("Again")
    assert (result.text, result.finish_reason) == ("Two.", "stop")
    with pytest.raises(ConfigurationError, match="input is empty"):
        await talk.send([])
    with pytest.raises(ConfigurationError, match="reject, queue, wait"):
        await talk.send("x", turn_policy="never")  # type: ignore[arg-type]
    nobody = bench.client.sessions.get("nobody")
    for asked in (nobody.pending(), nobody.interrupt(), nobody.discard_pending()):
        with pytest.raises(SessionNotFoundError):
            await asked
    with pytest.raises(SessionNotFoundError):
        await nobody.send("x")


async def test_f43_submit_gives_the_sequence_of_the_turns_start(
    bench: Bench, talk: Session
) -> None:
    model = bench.model("One.", "Two.")
    async with bench.serving(Agent("agent", provider=model)):
        await talk.send("First", agent="agent")
        gate = model.gate(2)
        sequence = await talk.submit("Second")
        first, *rest = await bench.store.events(bench.session, after=sequence - 1)
        assert (first.sequence, first.type) == (sequence, "turn/start")
        assert rest[0].data["message"] == {"role": "user", "content": "Second"}
        assert (await talk.outcome(sequence)).state == "pending"
        gate.open()
        running = await bench.client.running(bench.session)
        assert running is not None
        await running.result()
        assert (await talk.outcome(sequence)).answer == "Two."


async def test_f43_a_turn_that_cannot_begin_says_why(bench: Bench, talk: Session) -> None:
    async with bench.serving(Agent("agent", provider=bench.model("One."))):
        with pytest.raises(ConfigurationError, match="no agent 'other'"):
            await talk.submit("Go", agent="other", idempotency_key="k")
        # Nothing was done, so the key is as good as new.
        assert await talk.submit("Go", agent="agent", idempotency_key="k") == 1
        running = await bench.client.running(bench.session)
        if running is not None:
            await running.result()


async def test_f44_the_outcome_of_each_turn(bench: Bench, talk: Session) -> None:
    model = bench.model([call("broken")], "One.", ProviderError("the model is away"), "Three.")
    async with bench.serving(Agent("agent", provider=model, tools=[broken])):
        first = await talk.submit("First", agent="agent")
        await bench.until(lambda: ended(talk, first))
        with pytest.raises(ProviderError):
            await talk.send("Second")
        model.turns[2] = "Three."
        gate = model.gate(3)
        third = await talk.submit("Third")
        await gate.reached()
        starts = [event.sequence for event in await bench.events("turn/start")]
        assert (starts[0], starts[2]) == (first, third)
        outcomes = [await talk.outcome(sequence) for sequence in starts]
        assert [outcome.state for outcome in outcomes] == ["ended", "failed", "pending"]
        assert (outcomes[0].answer, outcomes[0].tool_errors) == ("One.", 1)
        assert outcomes[1].event is not None
        assert outcomes[1].event.type == "turn/end"
        assert outcomes[1].error is not None
        assert outcomes[1].error["code"] == "LOUSHO_PROVIDER_REQUEST_FAILED"
        assert (outcomes[1].answer, outcomes[2].event) == (None, None)
        gate.open()
        await bench.until(lambda: ended(talk, third))
        for nowhere in (0, first + 1, 1000):
            with pytest.raises(NotATurnError, match=f"sequence {nowhere}"):
                await talk.outcome(nowhere)
        nonsense: Any
        for nonsense in (-1, 1 << 63, "1"):
            with pytest.raises(ConfigurationError, match="sequence is a sequence"):
                await talk.outcome(nonsense)
    shown = outcomes[1].to_json()
    assert (shown["state"], shown["event"]["data"]["reason"]["kind"]) == ("failed", "error")


async def ended(talk: Session, sequence: int) -> bool:
    return (await talk.outcome(sequence)).state != "pending"


# -- while a turn goes on --------------------------------------------------------------------


async def test_f45_a_busy_session_rejects_without_using_the_key(
    bench: Bench, talk: Session
) -> None:
    slow, gate = slow_tool(bench)
    model = bench.model([call("slow")], "One.", "Two.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow])):
        first = await talk.submit("Go", agent="agent")
        await gate.reached()
        before = len(await bench.events())
        for send in (talk.submit, talk.send):
            with pytest.raises(SessionBusyError) as caught:
                await send("More", idempotency_key="K")
            assert caught.value.to_wire()["facts"]["admission"] == "rejected"
        assert len(await bench.events()) == before
        gate.open()
        await bench.until(lambda: ended(talk, first))
        sequence = await talk.submit("More", idempotency_key="K", turn_policy="wait")
        await bench.until(lambda: ended(talk, sequence))
        assert await talk.submit("More", idempotency_key="K") == sequence
    assert [message["content"] for message in (await bench.record())["messages"]][-2:] == [
        "More",
        "Two.",
    ]


async def test_f45_waiting_and_queueing_are_chosen(bench: Bench, talk: Session) -> None:
    slow, gate = slow_tool(bench)
    model = bench.model([call("slow")], "One.", "Two.")
    agent = Agent("agent", provider=model, tools=[slow], turn_policy="queue")
    async with bench.serving(agent):
        first = await talk.submit("Go", agent="agent")
        await gate.reached()
        # The agent's own policy, as it was when the turn began.
        assert await talk.submit("Also this") == first
        waiting = asyncio.create_task(talk.send("Then that", turn_policy="wait"))
        await bench.until(lambda: queued(bench))
        gate.open()
        result = await waiting
    assert result.text == "Two."
    said = [message.text for message in result.messages if message.role == "user"]
    assert said == ["Go", "Also this", "Then that"]


async def queued(bench: Bench) -> bool:
    return bool((await bench.state())["queued"])


async def test_c15_a_pending_decision_lets_nothing_pass(bench: Bench, talk: Session) -> None:
    model = bench.model([call("gated")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[gated])):
        paused = await talk.send("Go", agent="agent", idempotency_key="K")
        assert paused.finish_reason == "awaiting-approval"
        for policy in ("reject", "queue", "wait"):
            with pytest.raises(SessionAwaitingApprovalError):
                await talk.send("More", turn_policy=policy)
        assert paused.approval_id is not None
        await bench.client.approvals.resolve(paused.approval_id, approved=True)
        # The response is what it was.
        again = await talk.send("Go", agent="agent", idempotency_key="K")
        assert (again.finish_reason, again.approval_id) == (
            "awaiting-approval",
            paused.approval_id,
        )
        assert len(again.messages) == len(paused.messages)


# -- interrupted, discarded, lost ------------------------------------------------------------


async def test_f9_interrupt_ends_the_turn_and_keeps_the_session(
    bench: Bench, talk: Session
) -> None:
    slow, gate = slow_tool(bench)
    model = bench.model([call("look"), call("slow"), call("gated")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[look, slow, gated])):
        sequence = await talk.submit("Go", agent="agent")
        await gate.reached()
        assert await talk.interrupt()
        assert not await talk.interrupt()
        outcome = await talk.outcome(sequence)
        assert (outcome.state, outcome.reason) == ("failed", {"kind": "aborted"})
        assert (outcome.tool_errors, outcome.open_tools) == (2, [])
        results = [json.loads(each["content"]) for each in await bench.results()]
        assert [each["kind"] for each in results[1:]] == ["cancelled", "not-run"]
        # Unfinished, so it could be resumed; new input redirects it.
        assert await talk.pending() == {"status": "in-progress", "approval_id": None}
        result = await talk.send("Never mind")
    assert result.text == "Done."
    assert await talk.pending() is None


async def test_f70_a_paused_turn_is_discarded(bench: Bench, talk: Session) -> None:
    model = bench.model([call("look"), call("gated")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[look, gated])):
        assert await talk.resume() is None
        paused = await talk.send("Go", agent="agent")
        waiting = {"status": "awaiting-approval", "approval_id": paused.approval_id}
        assert await talk.pending() == waiting
        with pytest.raises(SessionAwaitingApprovalError):
            await talk.resume()
        assert await talk.discard_pending()
        assert await talk.pending() is None
        assert await talk.resume() is None
        assert not await talk.discard_pending()
        assert await bench.client.approvals.list() == []
        result = await talk.send("Something else")
    assert (result.text, result.steps) == ("Done.", 1)
    assert_valid((await bench.record())["messages"])


async def test_f70_what_is_unfinished_and_runs_nowhere_is_discarded(
    bench: Bench, talk: Session
) -> None:
    slow, gate = slow_tool(bench)
    model = bench.model([call("slow")], "Done.")
    agent = Agent("agent", provider=model, tools=[slow])
    async with bench.serving(agent):
        sequence = await talk.submit("Go", agent="agent")
        await gate.reached()
        await bench.workflow().terminate()
        assert await talk.discard_pending()
        gate.open()
        outcome = await talk.outcome(sequence)
        assert (outcome.state, outcome.reason, outcome.tool_errors) == (
            "failed",
            {"kind": "aborted"},
            1,
        )
        # The same words are a new turn: nothing is left that they could resume.
        result = await talk.send("Go")
    assert (result.text, result.steps) == ("Done.", 1)
    assert [message.role for message in result.messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]


@pytest.mark.parametrize("how", ["outcome", "next input"])
@pytest.mark.parametrize("on_crash", ["interrupt", "fail"])
async def test_f67_a_turn_whose_run_is_gone_is_closed(
    bench: Bench, talk: Session, on_crash: Any, how: str
) -> None:
    slow, gate = slow_tool(bench)
    model = bench.model([call("slow"), call("gated")], "Noted.")
    agent = Agent("agent", provider=model, tools=[slow, gated], on_crash=on_crash)
    async with bench.serving(agent):
        sequence = await talk.submit("Go", agent="agent")
        await gate.reached()
        await bench.workflow().terminate()
        if how == "outcome":
            outcome = await talk.outcome(sequence)
            assert (outcome.state, outcome.tool_errors) == ("failed", 2)
            assert (await types_after(bench, sequence))[-4:] == [
                "tool/result",
                "tool/result",
                "step/end",
                "turn/end",
            ]
        result = await talk.send("What now?")
        gate.open()
        assert result.text == "Noted."
        outcome = await talk.outcome(sequence)
        errors = [json.loads(message["content"]) for message in await bench.results()]
        assert [e["code"] for e in errors] == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]
        assert outcome.reason is not None
        assert outcome.reason["kind"] == ("interrupted" if on_crash == "interrupt" else "error")
        assert (outcome.error or {}).get("code") == (
            None if on_crash == "interrupt" else "interrupted"
        )


async def test_f67_by_default_the_missing_calls_are_made(bench: Bench, talk: Session) -> None:
    slow, gate = slow_tool(bench)
    model = bench.model([call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow])):
        sequence = await talk.submit("Go", agent="agent")
        await gate.reached()
        await bench.workflow().terminate()
        outcome = await talk.outcome(sequence)
        assert (outcome.state, outcome.reason) == ("failed", {"kind": "interrupted"})
        assert outcome.open_tools == ["call_1_1"]
        assert not await talk.reconcile()
        gate.open()
        result = await talk.resume()
    assert result is not None
    assert result.text == "Done."
    assert [message["content"] for message in await bench.results()] == ['"slow"']


async def test_f67_a_paused_turn_lost_nothing(bench: Bench, talk: Session) -> None:
    model = bench.model([call("gated")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[gated], on_crash="fail")):
        paused = await talk.send("Go", agent="agent")
        await bench.workflow().terminate()
        assert not await talk.reconcile()
        assert paused.approval_id is not None
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True)
    assert result.text == "Done."


async def test_f69_ambiguous_lists_what_may_have_happened(bench: Bench, talk: Session) -> None:
    gate, keys = bench.gate(), []

    @tool
    async def charge(amount: int, ctx: ToolContext) -> None:
        keys.append(ctx.idempotency_key)
        await gate.hold()

    model = bench.model([call("look"), call("charge", {"amount": 7})], "Done.")
    agent = Agent("agent", provider=model, tools=[look, charge])
    async with bench.serving(agent):
        await talk.submit("Go", agent="agent")
        await gate.reached()
        assert await talk.ambiguous() == []
        await talk.interrupt()
    (found,) = await talk.ambiguous()
    assert (found.tool, found.arguments, found.idempotency_key) == (
        "charge",
        {"amount": 7},
        keys[0],
    )
    (announced,) = await bench.store.events(bench.session, after=found.sequence - 1, limit=1)
    assert (announced.type, announced.data["toolCallId"]) == ("tool/call", found.tool_call_id)


async def test_f69_a_call_whose_time_was_over_may_have_happened(
    bench: Bench, talk: Session
) -> None:
    gate = bench.gate()

    @tool(timeout=0.05)
    async def charge(ctx: ToolContext) -> None:
        await gate.hold()

    model = bench.model([call("look"), call("charge")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[look, charge])):
        await talk.send("Go", agent="agent")
    assert [each.tool for each in await talk.ambiguous()] == ["charge"]


# -- conversations ---------------------------------------------------------------------------


async def test_f46_new_input_after_an_abort_comes_behind_the_results(
    bench: Bench, talk: Session
) -> None:
    slow, gate = slow_tool(bench)
    model = bench.model([call("look"), call("slow")], "Sunny.")
    async with bench.serving(Agent("agent", provider=model, tools=[look, slow])):
        await talk.submit("Go", agent="agent")
        await gate.reached()
        await talk.interrupt()
        asked = len(model.requests)
        result = await talk.send("also the weather")
    roles = [message.role for message in result.messages]
    assert roles == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert len(model.requests) == asked + 1


async def test_f47_a_finished_run_continues_as_a_conversation(bench: Bench, talk: Session) -> None:
    model = bench.model([call("look")], [call("look")], "One.", "Two.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        first = await talk.send("First", agent="agent")
        second = await talk.send("Second")
    assert (first.steps, second.steps) == (3, 1)
    assert second.usage.to_json()["inputTokens"] == 100
    assert (second.tool_calls, len(second.messages)) == ([], 8)


async def test_f48_max_steps_spans_resumes(bench: Bench, talk: Session) -> None:
    slow, gate = slow_tool(bench)
    model = bench.model([call("look")], [call("slow")], *[[call("look")]] * 5)
    agent = Agent("agent", provider=model, tools=[look, slow], max_steps=3)
    async with bench.serving(agent):
        await talk.submit("Go", agent="agent")
        await gate.reached()
        await bench.workflow().terminate()
        gate.open()
        result = await talk.resume()
    assert result is not None
    assert (result.finish_reason, result.steps, len(model.requests)) == ("max-steps", 3, 3)


async def test_f51_a_provider_error_fails_the_turn_and_keeps_its_state(
    bench: Bench, talk: Session
) -> None:
    model = bench.model([call("look")], ProviderError("out", status=500), "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        with pytest.raises(ProviderError, match="out"):
            await talk.send("Go", agent="agent")
        checkpoint = await bench.client.checkpoint(bench.session)
        assert checkpoint is not None
        assert (checkpoint.status, checkpoint.step_index) == ("in-progress", 1)
        assert [message["content"] for message in await bench.results()] == ['"seen"']
        outcome = await talk.outcome(1)
        assert outcome.state == "failed"
        assert outcome.error is not None
        assert set(outcome.error) == {"code", "message", "retryable"}
        model.turns[1] = "Done."
        result = await talk.resume()
    assert result is not None
    assert result.text == "Done."
