"""Large values: they reach the store whole, and Temporal's history not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from perdure import Agent, tool
from perdure.testing import ModelResponse, call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench

MEGABYTE = 1024 * 1024
MARKER = "marker-of-the-end"


async def history_text(bench: Bench) -> str:
    """All that Temporal keeps of the run."""
    texts = []
    for history in await bench.histories():
        size = sum(event.ByteSize() for event in history.events)
        assert size < 40_000
        texts += [event.SerializeToString().decode("latin-1") for event in history.events]
    return "".join(texts)


async def test_r5_a_user_message_of_3_mb(bench: Bench, session: str) -> None:
    text = "ü" * (3 * MEGABYTE // 2) + MARKER
    model = bench.model("Long.")
    async with bench.serving(Agent("agent", provider=model)):
        result = await bench.client.execute("agent", text, session_id=session)
    assert result.messages[0].text == text
    assert model.requests[0].messages[0]["content"] == text
    assert MARKER not in await history_text(bench)


async def test_a_large_message_to_a_run_that_goes_on(bench: Bench, session: str) -> None:
    text = "b" * (200 * 1024) + MARKER
    model = bench.model("One.", "Two.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        await bench.client.start("agent", "a", session_id=session)
        await gate.reached()
        handle = await bench.client.start("agent", text, session_id=session)
        gate.open()
        result = await handle.result()
    assert [message.text for message in result.messages] == ["a", "One.", text, "Two."]


async def test_r5_a_tool_result_of_3_mb(bench: Bench, session: str) -> None:
    text = "x" * (3 * MEGABYTE) + MARKER

    @tool(read_only=True)
    def dump() -> str:
        return text

    model = bench.model([call("dump")], "Long.")
    agent = Agent("agent", provider=model, tools=[dump], max_result_chars=4 * MEGABYTE)
    async with bench.serving(agent):
        await bench.client.execute("agent", "Go", session_id=session)
    assert model.requests[1].messages[-1]["content"] == json.dumps(text)
    assert MARKER not in await history_text(bench)


@pytest.mark.parametrize(("size", "inline"), [(3_000, True), (5_000, False), (MEGABYTE, False)])
async def test_an_answer_of_any_size(bench: Bench, session: str, size: int, inline: bool) -> None:
    text = "y" * size + MARKER
    model = bench.model(text)
    async with bench.serving(Agent("agent", provider=model)):
        result = await bench.client.execute("agent", "Go", session_id=session)
        state = await bench.state()
    assert result.text == text
    assert len(state["last_text"]) <= 500
    history = await history_text(bench)
    assert (MARKER in history) is inline
    # What is not inline is named: by digest, with the size and the beginning for people.
    (answer,) = await bench.events("assistant/message")
    assert answer.data["message"]["content"] == text
    assert ('"preview":"yyyy' in history) is not inline


async def test_large_arguments_and_many_calls(bench: Bench, session: str) -> None:
    seen: list[int] = []

    @tool(read_only=True)
    async def take(text: str) -> int:
        seen.append(len(text))
        return len(text)

    sizes = [10, 3_000, 100_000, 500_000]
    calls = [call("take", {"text": "z" * size}) for size in sizes]
    answer = ModelResponse(
        text="Here:" + "w" * 10_000,
        tool_calls=[{**each, "id": f"c{index}"} for index, each in enumerate(calls)],
        finish_reason="tool_calls",
        model="m",
    )
    model = bench.model(answer, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[take])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert sorted(seen) == sizes
    assert [json.loads(message["content"]) for message in await bench.results()] == sizes
    assert "z" * 4_000 not in await history_text(bench)


async def test_r5_history_grows_with_what_happened(bench: Bench, session: str) -> None:
    """Not with the conversation: each step costs the same, however long the talk before it."""

    @tool(read_only=True)
    async def dump() -> str:
        return "d" * 20_000

    model = bench.model(*[[call("dump")] for _ in range(20)], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[dump])):
        await bench.client.execute("agent", "Go", session_id=session)
    (history,) = await bench.histories()
    models = [
        event.activity_task_scheduled_event_attributes.input.ByteSize()
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "call_model"
    ]
    assert len(models) == 21
    assert max(models) - min(models) < 10
    assert sum(event.ByteSize() for event in history.events) < 21 * 6_000
