"""Field reports about people: what they approve, and what they type meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, field_validator

from perdure import Agent, ToolContext, tool
from perdure.activities.planning import arguments_digest, parse_arguments
from perdure.testing import call

if TYPE_CHECKING:
    from perdure.tools import Tool
    from tests.integration.runs.conftest import Bench


def capped_pay(most: int, paid: list[int]) -> Tool:
    """A tool whose own check changes its arguments, as deployed with a limit."""

    class Payment(BaseModel):
        amount: int
        to: str = "ann"

        @field_validator("amount")
        @classmethod
        def capped(cls, value: int) -> int:
            return min(value, most)

    @tool(name="pay", needs_approval=True)
    async def pay(args: Payment, ctx: ToolContext) -> int:
        paid.append(args.amount)
        return args.amount

    return pay


async def test_r28_the_arguments_that_are_shown_are_those_that_run(
    bench: Bench, session: str
) -> None:
    paid: list[int] = []
    model = bench.model([call("pay", {"amount": 100})], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[capped_pay(50, paid)])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        (pending,) = await bench.client.approvals.list()
        assert pending.args == {"amount": 50}
        (shown,) = (await bench.state())["pending_approvals"]
        assert json.loads(shown["arguments"]) == {"amount": 50}
        await bench.client.approvals.resolve(str(paused.approval_id), approved=True)
    assert paid == [50]
    # The model is not asked again, and what it wrote stays what it wrote.
    assert len(model.requests) == 2
    (made,) = (await bench.record())["toolCalls"]
    assert json.loads(made["function"]["arguments"]) == {"amount": 100}


@pytest.mark.parametrize("lost", [False, True])
async def test_r28_what_would_run_otherwise_than_approved_does_not_run(
    bench: Bench,
    session: str,
    lost: bool,
) -> None:
    """A deploy between the question and the answer has changed what the tool reads."""
    paid: list[int] = []
    model = bench.model([call("pay", {"amount": 100})], [call("pay", {"amount": 100})], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[capped_pay(50, paid)])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
    if lost:
        await bench.workflow().terminate()
    async with bench.serving(Agent("agent", provider=model, tools=[capped_pay(90, paid)])):
        again = await bench.client.approvals.resolve(str(paused.approval_id), approved=True)
        assert paid == []
        (refused,) = await bench.results()
        assert json.loads(refused["content"])["kind"] == "not-run"
        (pending,) = await bench.client.approvals.list()
        assert pending.args == {"amount": 90}
        await bench.client.approvals.resolve(str(again.approval_id), approved=True)
    assert paid == [90]


def test_r28_equal_arguments_have_one_digest_in_any_process() -> None:
    @tool(read_only=True)
    def label(numbers: set[int], by: str = "ann") -> None: ...

    def digest(raw: str) -> str | None:
        arguments = parse_arguments(label, raw)
        assert isinstance(arguments, BaseModel)
        return arguments_digest(label, arguments)

    # These two sets are equal, and iterate differently.
    assert digest('{"numbers": [8, 0]}') == digest('{"numbers": [0, 8]}')
    assert digest('{"numbers": [8, 0]}') != digest('{"numbers": [8, 1]}')


async def test_r29_a_rejection_is_one_result_with_its_reason(bench: Bench, session: str) -> None:
    """Also when the run is lost before the model hears of it, and without a reason."""

    @tool(needs_approval=True)
    async def pay(to: str, ctx: ToolContext) -> str:
        return to

    calls = [call("pay", {"to": "ann"}), call("pay", {"to": "bob"})]
    model = bench.model(calls, "Done.")
    client = bench.client
    async with bench.serving(Agent("agent", provider=model, tools=[pay])):
        paused = await client.execute("agent", "Go", session_id=session)
        paused = await client.approvals.resolve(
            str(paused.approval_id), approved=False, note="not today"
        )
        await bench.workflow().terminate()
        result = await client.approvals.resolve(str(paused.approval_id), approved=False)
    assert result.text == "Done."
    first, second = (json.loads(message["content"]) for message in await bench.results())
    assert (first["kind"], first["note"]) == ("rejected", "not today")
    assert first["message"] == "Tool execution was rejected by the reviewer"
    assert second["kind"] == "rejected"
    assert "note" not in second
    assert len(model.requests) == 2


async def test_r31_messages_during_a_model_call_are_in_order_and_once(
    bench: Bench, session: str
) -> None:
    @tool(read_only=True)
    def look() -> str:
        return "seen"

    model = bench.model([call("look")], "Done.")
    gate = model.gate(1)
    texts = [f"message {number}" for number in range(10)]
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        for text in texts:
            await bench.client.start("agent", text, session_id=session)
        await asyncio.gather(
            *(bench.client.start("agent", text, session_id=session) for text in texts)
        )
        gate.open()
        result = await handle.result()
    said = [message.text for message in result.messages if message.role == "user"]
    assert said == ["Go", *texts]
    assert [message.role for message in result.messages[:3]] == ["user", "assistant", "tool"]
    assert len(model.requests) == 2


async def test_r31_a_decision_sent_with_the_start(bench: Bench, session: str) -> None:
    """Before there can be anything to decide: it is answered as unknown, and nothing is lost."""
    model = bench.model("Done.")
    handle: Any = await bench.temporal.start_workflow(
        "AgentWorkflow",
        {"agent": "agent", "input": "Go"},
        id=session,
        task_queue=bench.queue,
        start_signal="resolve_approval",
        start_signal_args=[{"id": "none", "approved": True}],
    )
    async with bench.serving(Agent("agent", provider=model)):
        outcome = await handle.result()
    assert (outcome["text"], outcome["status"]) == ("Done.", "finished")
