"""Which saves a run makes, when, and what each of them says (format page, *History*)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, tool
from perdure.testing import ModelResponse, call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench

    Save = tuple[int, str, str, int]

OPEN = "in-progress"
WAIT = "awaiting-approval"
DONE = "finished"
CALLS = "tool_calls"


@tool(read_only=True)
def look(at: str) -> str:
    return f"saw {at}"


@tool(read_only=True, needs_approval=True)
def gated(at: str = "") -> str:
    return f"did {at}"


async def test_a_plain_answer(bench: Bench, session: str) -> None:
    agent = Agent("agent", provider=bench.model("Hello."), instructions="Be kind.")
    async with bench.serving(agent):
        result = await bench.client.execute("agent", "Hi", session_id=session)
    assert await bench.saves() == [(1, DONE, "stop", 3)]
    assert (result.text, result.steps, result.finish_reason) == ("Hello.", 1, "stop")
    assert [message.role for message in result.messages] == ["system", "user", "assistant"]
    record = await bench.record()
    assert "approvalId" not in record
    assert "businessState" not in record
    assert record["agentId"] == "agent"


async def test_two_tools_then_an_answer(bench: Bench, session: str) -> None:
    model = bench.model([call("look", {"at": "a"}), call("look", {"at": "b"})], "Seen.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        result = await bench.client.execute("agent", "Look", session_id=session)
    assert await bench.saves() == [
        (1, OPEN, CALLS, 2),
        (1, OPEN, CALLS, 3),
        (1, OPEN, CALLS, 4),
        (2, DONE, "stop", 5),
    ]
    assert [json.loads(message["content"]) for message in await bench.results()] == [
        "saw a",
        "saw b",
    ]
    assert [each.id for each in result.tool_calls] == ["call_1_1", "call_1_2"]
    usage = result.usage.to_json()
    assert (usage["modelCalls"], usage["inputTokens"], usage["promptTokens"]) == (2, 200, 200)
    assert [step.step for step in result.step_usage] == [1, 2]


async def test_saves_are_stamped_in_order_and_are_copies(bench: Bench, session: str) -> None:
    model = bench.model([call("look", {"at": "a"})], "Seen.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        await bench.client.execute("agent", "Look", session_id=session)
    history = await bench.client.history(session)
    stamps = [entry.saved_at for entry in history]
    assert stamps == sorted(stamps, reverse=True)
    assert all(len(stamp) == 24 and stamp.endswith("Z") for stamp in stamps)
    history[0].checkpoint.messages.clear()
    assert len((await bench.client.history(session, limit=1))[0].checkpoint.messages) == 4
    assert await bench.client.history(session, limit=0) == []


def three() -> list[dict[str, Any]]:
    return [call("look", {"at": "a"}), call("gated", {"at": "b"}), call("look", {"at": "c"})]


async def test_approval_in_the_middle_of_a_batch(bench: Bench, session: str) -> None:
    model = bench.model(three(), "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[look, gated])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        assert (paused.finish_reason, paused.steps) == ("awaiting-approval", 1)
        assert paused.approval_id is not None
        before: list[Save] = [
            (1, OPEN, CALLS, 2),
            (1, OPEN, CALLS, 3),
            (1, WAIT, WAIT, 3),
        ]
        assert await bench.saves() == before
        assert (await bench.record())["approvalId"] == paused.approval_id
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True)
    assert await bench.saves() == [
        *before,
        (1, OPEN, CALLS, 4),
        (1, OPEN, CALLS, 5),
        (2, DONE, "stop", 6),
    ]
    assert "approvalId" not in await bench.record()
    assert result.approval_id is None
    contents = [json.loads(message["content"]) for message in await bench.results()]
    assert contents == ["saw a", "did b", "saw c"]
    assert len(model.requests) == 2


async def test_a_rejection_is_a_result_and_the_rest_runs(bench: Bench, session: str) -> None:
    model = bench.model(three(), "Then not.")
    async with bench.serving(Agent("agent", provider=model, tools=[look, gated])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        assert paused.approval_id is not None
        result = await bench.client.approvals.resolve(
            paused.approval_id, approved=False, note="too dear"
        )
    assert result.finish_reason == "stop"
    first, rejected, last = await bench.results()
    assert rejected == {
        "role": "tool",
        "name": "gated",
        "toolName": "gated",
        "toolCallId": "call_1_2",
        "isError": True,
        "content": rejected["content"],
    }
    assert json.loads(rejected["content"]) == {
        "error": "ToolRejectedError",
        "toolName": "gated",
        "message": "Tool execution was rejected by the reviewer",
        "kind": "rejected",
        "toolCallId": "call_1_2",
        "note": "too dear",
    }
    assert [first["content"], last["content"]] == ['"saw a"', '"saw c"']
    assert (await bench.saves())[-3:] == [
        (1, OPEN, CALLS, 4),
        (1, OPEN, CALLS, 5),
        (2, DONE, "stop", 6),
    ]


async def test_two_gated_calls_are_two_approvals(bench: Bench, session: str) -> None:
    model = bench.model([call("gated", {"at": "a"}), call("gated", {"at": "b"})], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[gated])):
        first = await bench.client.execute("agent", "Go", session_id=session)
        assert first.approval_id is not None
        second = await bench.client.approvals.resolve(first.approval_id, approved=True)
        assert second.finish_reason == "awaiting-approval"
        assert second.approval_id not in (None, first.approval_id)
        last = await bench.client.approvals.resolve(second.approval_id, approved=False)
    assert last.finish_reason == "stop"
    assert await bench.saves() == [
        (1, OPEN, CALLS, 2),
        (1, WAIT, WAIT, 2),
        (1, OPEN, CALLS, 3),
        (1, WAIT, WAIT, 3),
        (1, OPEN, CALLS, 4),
        (2, DONE, "stop", 5),
    ]
    assert "note" not in json.loads((await bench.results())[1]["content"])


@pytest.mark.parametrize("whose", ["agent", "run"])
async def test_steps_run_out(bench: Bench, session: str, whose: str) -> None:
    model = bench.model(*[[call("look", {"at": str(turn)})] for turn in range(5)])
    limit = 2 if whose == "run" else None
    agent = Agent("agent", provider=model, tools=[look], max_steps=2 if whose == "agent" else 50)
    async with bench.serving(agent):
        result = await bench.client.execute("agent", "Go", session_id=session, max_steps=limit)
        assert (result.finish_reason, result.steps) == ("max-steps", 2)
        assert (await bench.saves())[-2:] == [(2, OPEN, CALLS, 5), (2, DONE, "max-steps", 5)]
        # It is a finished run: the next one has its own steps.
        again = await bench.client.execute("agent", "More", session_id=session, max_steps=1)
    assert (again.finish_reason, again.steps) == ("max-steps", 1)
    assert [each.id for each in again.tool_calls] == ["call_3_1"]


@pytest.mark.parametrize("reason", ["length", "content_filter", "error", "something-new"])
async def test_why_the_model_stopped(bench: Bench, session: str, reason: str) -> None:
    model = bench.model(ModelResponse(text="Once upon", finish_reason=reason, model="m"), "Hi.")
    async with bench.serving(Agent("agent", provider=model)):
        result = await bench.client.execute("agent", "Tell", session_id=session)
        assert (result.finish_reason, result.text) == (reason, "Once upon")
        assert await bench.saves() == [(1, DONE, reason, 2)]
        assert (await bench.client.execute("agent", "On", session_id=session)).text == "Hi."
    assert result.usage.to_json()["estimated"] is True


async def test_an_answer_that_says_nothing(bench: Bench, session: str) -> None:
    """It ends the run; a blank message would only confuse the model later."""
    model = bench.model(ModelResponse(text="", model="m"), "Unreached.")
    async with bench.serving(Agent("agent", provider=model)):
        result = await bench.client.execute("agent", "Hi", session_id=session)
    assert (result.finish_reason, result.text, result.steps) == ("stop", "", 1)
    assert [message.role for message in result.messages] == ["user"]
