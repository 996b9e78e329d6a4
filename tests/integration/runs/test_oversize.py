"""What is larger than anybody planned for runs, or is refused at once by name and size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge import Checkpoint
from perdure.checkpoint_bridge.errors import ConfigurationError, ProviderError
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench

MEGABYTE = 1024 * 1024


async def size_of_history(bench: Bench) -> int:
    return sum(event.ByteSize() for history in await bench.histories() for event in history.events)


async def test_a_hundred_calls_in_one_turn(bench: Bench, session: str) -> None:
    @tool(read_only=True)
    async def square(number: int) -> int:
        return number * number

    asked = [call("square", {"number": number}, id=f"c{number}") for number in range(100)]
    model = bench.model(asked, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[square])):
        await bench.client.execute("agent", "Go", session_id=session)
    results = [json.loads(message["content"]) for message in await bench.results()]
    assert results == [number * number for number in range(100)]


async def test_a_session_of_ten_thousand_messages(bench: Bench, session: str) -> None:
    messages = [
        {"role": role, "content": f"{number} {role}"}
        for number in range(5_000)
        for role in ("user", "assistant")
    ]
    facts = {"agentId": "agent", "sessionId": session, "stepIndex": 5_000, "status": "finished"}
    await bench.store.save(session, Checkpoint.from_json({**facts, "messages": messages}))
    seen: list[int] = []

    class Model:
        default_model = "m"

        async def generate(self, request):
            from perdure.testing import ModelResponse

            seen.append(len(request.messages))
            return ModelResponse(text="Yes.", model="m")

    async with bench.serving(Agent("agent", provider=Model())):
        result = await bench.client.execute("agent", "Still there?", session_id=session)
    assert seen == [10_001]
    assert (result.text, len(result.messages)) == ("Yes.", 10_002)
    assert await size_of_history(bench) < 20_000


async def test_exceptions_with_megabytes_to_say(bench: Bench, session: str) -> None:
    @tool(read_only=True)
    async def fail() -> str:
        raise ValueError("v" * 3 * MEGABYTE)

    model = bench.model([call("fail")], ProviderError("p" * 3 * MEGABYTE))
    async with bench.serving(Agent("agent", provider=model, tools=[fail])):
        with pytest.raises(ProviderError) as caught:
            await bench.client.execute("agent", "Go", session_id=session)
    assert len(str(caught.value)) < 100_000
    (result,) = await bench.results()
    assert "vvvv" in result["content"]
    assert await size_of_history(bench) < 200_000


async def test_an_approval_of_megabytes(bench: Bench, session: str) -> None:
    text = "a" * 3 * MEGABYTE

    @tool(read_only=True, needs_approval=True)
    async def send(text: str) -> int:
        return len(text)

    model = bench.model([call("send", {"text": text})], "Sent.")
    async with bench.serving(Agent("agent", provider=model, tools=[send])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        (pending,) = await bench.client.approvals.list(session)
        assert pending.args == {"text": text}
        assert paused.approval_id is not None
        await bench.client.approvals.resolve(paused.approval_id, approved=True)
    assert (await bench.results())[0]["content"] == str(len(text))
    assert await size_of_history(bench) < 60_000


@pytest.mark.parametrize("size", [MEGABYTE, 3 * MEGABYTE])
async def test_a_note_of_megabytes(bench: Bench, session: str, size: int) -> None:
    @tool(read_only=True, needs_approval=True)
    async def send() -> str:
        return "sent"

    model = bench.model([call("send")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[send])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        assert paused.approval_id is not None
        with pytest.raises(ConfigurationError, match="note is"):
            await bench.client.approvals.resolve(
                paused.approval_id, approved=False, note="n" * size
            )
        await bench.client.approvals.resolve(paused.approval_id, approved=False, note="no")


async def test_metadata_of_megabytes(bench: Bench, session: str) -> None:
    with pytest.raises(ConfigurationError, match="metadata is 1,048,5"):
        await bench.client.execute(
            "agent", "Go", session_id=session, metadata={"large": "m" * MEGABYTE}
        )
    with pytest.raises(ConfigurationError, match="business_state is 1,048,5"):
        await bench.client.execute(
            "agent", "Go", session_id=session, business_state={"large": "m" * MEGABYTE}
        )
