"""Field reports about what is too large, broken or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, tool
from perdure.activities.providers.openai import OpenAIProvider
from perdure.checkpoint_bridge.errors import ProviderError
from perdure.testing import attempts, call

if TYPE_CHECKING:
    from perdure.testing import ModelRequest
    from tests.integration.runs.conftest import Bench

MEGABYTE = 1024 * 1024


@tool(read_only=True)
def dump() -> str:
    return "x" * (3 * MEGABYTE)


def answer(request: ModelRequest) -> Any:
    """As a service with a window of a megabyte."""
    if len(json.dumps(request.messages)) > MEGABYTE:
        return ProviderError("HTTP 400: maximum context length exceeded", status=400)
    return "Done."


async def test_r4_a_huge_result_does_not_end_the_conversation(bench: Bench, session: str) -> None:
    model = bench.model([call("dump")], answer, "More.")
    async with bench.serving(Agent("agent", provider=model, tools=[dump])):
        result = await bench.client.execute("agent", "Go", session_id=session)
        assert result.text == "Done."
        assert (await bench.client.execute("agent", "More", session_id=session)).text == "More."
    shown = model.requests[1].messages[-1]["content"]
    assert shown.endswith("... [cut: 3145730 characters in all, the first 100000 are shown]")
    assert shown.startswith('"' + "x" * 99_999 + "...")
    # The record has all of it.
    assert json.loads((await bench.results())[0]["content"]) == "x" * (3 * MEGABYTE)


async def test_r4_a_session_that_was_too_long_goes_on_when_its_agent_shows_less(
    bench: Bench, session: str
) -> None:
    model = bench.model([call("dump")], answer)
    generous = Agent("agent", provider=model, tools=[dump], max_result_chars=4 * MEGABYTE)
    async with bench.serving(generous):
        with pytest.raises(ProviderError, match="maximum context length"):
            await bench.client.execute("agent", "Go", session_id=session)
        assert len(model.requests) == 2  # it is not asked again

    @tool(name="dump", read_only=True, max_result_chars=50)
    def short() -> str:
        return "x"

    async with bench.serving(Agent("agent", provider=model, tools=[short])):
        result = await bench.client.execute("agent", "Go on", session_id=session)
    assert result.text == "Done."
    assert model.requests[2].messages[2]["content"].startswith('"' + "x" * 49 + "... [cut: ")


async def test_r5_a_long_talk_and_a_turn_of_a_hundred_calls(bench: Bench, session: str) -> None:
    @tool(read_only=True)
    async def read(page: int) -> str:
        return f"{page}:" + "p" * 5_000

    model = bench.model([call("read", {"page": n}) for n in range(100)], "Done.")
    talk = "t" * 400_000
    async with bench.serving(Agent("agent", provider=model, tools=[read])):
        result = await bench.client.execute("agent", talk, session_id=session)
    assert result.text == "Done."
    found = [json.loads(message["content"]) for message in await bench.results()]
    assert [each.split(":")[0] for each in found] == [str(n) for n in range(100)]
    sizes = [sum(e.ByteSize() for e in h.events) for h in await bench.histories()]
    assert sum(sizes) < 100 * 3_500


BROKEN = ['{"a": ', "[1]", '"text"', "null", "{}{}", '{"a": NaN}', '{"a": 1, "b"']


@pytest.mark.parametrize("good", [False, True])
async def test_r6_broken_arguments_can_be_corrected(
    bench: Bench,
    session: str,
    good: bool,
) -> None:
    ran: list[int] = []

    @tool(idempotent=True)
    def note(a: int) -> int:
        ran.append(a)
        return a

    beside = [call("note", {"a": 7})] if good else []
    turns: list[Any] = [[call("note", raw), *beside] for raw in BROKEN]
    model = bench.model(*turns, [call("note", {"a": 1})], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[note])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert result.text == "Done."
    assert ran == [*([7] * len(beside) * len(BROKEN)), 1]
    # What the model wrote stays in the record; what is sent again is an object.
    record = await bench.record()
    raws = [each["function"]["arguments"] for each in record["toolCalls"]]
    assert [raw for raw in raws if raw in BROKEN] == BROKEN
    body = OpenAIProvider(api_key="k")._body(model.requests[-1], "m")
    for message in body["messages"]:
        for each in message.get("tool_calls") or []:
            assert isinstance(json.loads(each["function"]["arguments"]), dict)


async def test_r6_corrections_are_bounded(bench: Bench, session: str) -> None:
    @tool(read_only=True)
    def note(a: int) -> int:
        return a

    model = bench.model(*[[call("note", "{")]] * 9)
    async with bench.serving(Agent("agent", provider=model, tools=[note], max_steps=4)):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert (result.finish_reason, len(model.requests)) == ("max-steps", 4)


async def test_r11_a_provider_that_fails_for_ever_fails_the_run(bench: Bench, session: str) -> None:
    """After eight times; a worker's death while it answers is none of them."""

    def busy() -> ProviderError:
        return ProviderError("HTTP 503", status=503, retryable=True, retry_after=0.001)

    model = bench.model(attempts(*[busy() for _ in range(8)], "Done."))
    async with bench.serving(Agent("agent", provider=model)):
        with pytest.raises(ProviderError, match="HTTP 503"):
            await bench.client.execute("agent", "Go", session_id=session)
        assert len(model.requests) == 8
        assert len(await bench.events("assistant/attempt")) == 8
        result = await bench.client.resume(session)
    assert result is not None
    assert result.text == "Done."


async def test_r11_a_tool_that_raises_is_not_tried_again(bench: Bench, session: str) -> None:
    ran: list[int] = []

    @tool(read_only=True)
    def fails() -> None:
        ran.append(1)
        raise ValueError("no")

    model = bench.model([call("fails")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[fails])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert ran == [1]
