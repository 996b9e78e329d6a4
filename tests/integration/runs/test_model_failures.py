"""Models that fail: retried or not, recorded, never shown to the next request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    MissingApiKeyError,
    ProviderError,
    RateLimitedError,
)
from perdure.testing import ModelResponse, attempts, call

if TYPE_CHECKING:
    from perdure.activities.providers.base import ModelRequest
    from tests.integration.runs.conftest import Bench


@tool(read_only=True)
def look() -> str:
    return "seen"


def limited() -> RateLimitedError:
    return RateLimitedError("slow down", status=429, retryable=True, retry_after=0.01)


async def test_a_rate_limit_is_waited_out(bench: Bench, session: str) -> None:
    model = bench.model([call("look")], attempts(limited(), limited(), "Done."))
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert (result.text, result.steps) == ("Done.", 2)
    failed = await bench.events("assistant/attempt")
    assert [event.data["error"] for event in failed] == [
        {"code": "LOUSHO_PROVIDER_RATE_LIMITED", "message": "slow down"}
    ] * 2
    assert {event.data["step"] for event in failed} == {2}
    # The next request is the same as the one that failed, and so is the record.
    assert model.requests[1].messages == model.requests[2].messages == model.requests[3].messages
    assert "slow down" not in str(await bench.record())
    assert result.usage.to_json()["modelCalls"] == 2
    assert await bench.saves() == [
        (1, "in-progress", "tool_calls", 2),
        (1, "in-progress", "tool_calls", 3),
        (2, "finished", "stop", 4),
    ]


async def test_retry_after_is_what_counts(bench: Bench, session: str) -> None:
    model = bench.model(attempts(limited(), "Done."))
    async with bench.serving(Agent("agent", provider=model)):
        await bench.client.execute("agent", "Go", session_id=session)
    (history,) = await bench.histories()
    (failure,) = [
        event.activity_task_started_event_attributes.last_failure.application_failure_info
        for event in history.events
        if event.activity_task_started_event_attributes.attempt == 2
    ]
    assert failure.next_retry_delay.ToMilliseconds() == 10
    assert failure.type == "RateLimitedError"


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("HTTP 400: context too long", status=400),
        RuntimeError("a bug in a provider"),
        SystemExit("a provider that gives up"),
        asyncio.CancelledError("of its own"),
        KeyError("choices"),
        BaseException("past every except"),
    ],
)
async def test_what_cannot_be_mended_fails_at_once(
    bench: Bench, session: str, error: BaseException
) -> None:
    model = bench.model([call("look")], attempts(error, "Done."))
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        with pytest.raises(ProviderError) as raised:
            await bench.client.execute("agent", "Go", session_id=session)
        assert raised.value.code == "LOUSHO_PROVIDER_REQUEST_FAILED"
        assert str(error) in raised.value.message
        assert len(model.requests) == 2
        record = await bench.record()
        assert (record["status"], record["finishReason"]) == ("in-progress", "tool_calls")
        (end,) = await bench.events("turn/end")
        assert end.data["reason"]["kind"] == "error"
        assert end.data["reason"]["error"]["code"] == "LOUSHO_PROVIDER_REQUEST_FAILED"
        described = await bench.workflow().describe()
        assert described.status is not None
        assert described.status.name == "FAILED"

        result = await bench.client.resume(session)
    assert result is not None
    assert (result.text, result.steps, result.finish_reason) == ("Done.", 2, "stop")
    assert len(await bench.results()) == 1


async def test_a_first_call_that_fails_leaves_a_session_to_resume(
    bench: Bench, session: str
) -> None:
    model = bench.model(attempts(ProviderError("no credit"), "Done."))
    async with bench.serving(Agent("agent", provider=model)):
        with pytest.raises(ProviderError):
            await bench.client.execute("agent", "Go", session_id=session)
        (info,) = await bench.client.sessions.list()
        assert (info.status, info.title) == ("in-progress", "Go")
        result = await bench.client.resume(session)
    assert result is not None
    assert [message.text for message in result.messages] == ["Go", "Done."]


async def test_failed_attempts_of_a_failed_run_are_in_the_log(bench: Bench, session: str) -> None:
    model = bench.model(attempts(limited(), ProviderError("no credit"), "Done."))
    async with bench.serving(Agent("agent", provider=model)):
        with pytest.raises(ProviderError, match="no credit"):
            await bench.client.execute("agent", "Go", session_id=session)
        await bench.client.resume(session)
    messages = [e.data["error"]["message"] for e in await bench.events("assistant/attempt")]
    assert messages == ["slow down", "no credit"]


async def test_a_missing_key(bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    async with bench.serving(Agent("agent", model="openai/gpt-x")):
        with pytest.raises(MissingApiKeyError) as raised:
            await bench.client.execute("agent", "Go", session_id=session)
    assert raised.value.code == "LOUSHO_PROVIDER_MISSING_API_KEY"
    assert "OPENAI_API_KEY" in raised.value.message
    assert raised.value.hint


async def test_an_unknown_agent(bench: Bench, session: str) -> None:
    agents = [Agent(name, provider=bench.model("Hi.")) for name in ("one", "two")]
    async with bench.serving(*agents):
        with pytest.raises(ConfigurationError) as raised:
            await bench.client.execute("three", "Go", session_id=session)
        assert raised.value.field == "agent"
        assert raised.value.message == "There is no agent 'three'; this worker serves: one, two."
        assert await bench.client.sessions.list() == []
        # A session of another agent stays as it is, too.
        await bench.client.execute("one", "Go", session_id=session)
        before = await bench.events()
        with pytest.raises(ConfigurationError):
            await bench.client.execute("three", "More", session_id=session)
        assert await bench.events() == before


async def test_usage_of_every_kind_adds_up(bench: Bench, session: str) -> None:
    counted = {
        "inputTokens": 10,
        "outputTokens": 5,
        "totalTokens": 15,
        "cachedInputTokens": 4,
        "reasoningTokens": 2,
    }
    reasoning = [{"text": "hm", "signature": "s1g"}]
    first = ModelResponse(
        tool_calls=[{**call("look"), "id": "c1"}],
        finish_reason="tool_calls",
        usage=counted,
        model="gpt-a",
        reasoning=reasoning,
        response_id="r-1",
    )
    second = ModelResponse(text="Done.", usage=counted, model="gpt-b")
    model = bench.model(first, second)
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        await bench.client.execute("agent", "Go", session_id=session)
    record = await bench.record()
    usage = record["usage"]
    assert (usage["inputTokens"], usage["cachedInputTokens"], usage["reasoningTokens"]) == (
        20,
        8,
        4,
    )
    assert sorted(usage["byModel"]) == ["gpt-a", "gpt-b"]
    assert [step["model"] for step in record["stepUsage"]] == ["gpt-a", "gpt-b"]
    assert usage["estimated"] is False
    # Signed thoughts go back byte for byte.
    assert record["messages"][1]["reasoning"] == reasoning
    assert model.requests[1].messages[1]["reasoning"] == reasoning


async def test_a_provider_that_does_not_count(bench: Bench, session: str) -> None:
    model = bench.model("Done.", usage=None)
    async with bench.serving(Agent("agent", provider=model)):
        result = await bench.client.execute("agent", "Go" * 40, session_id=session)
    usage = result.usage.to_json()
    assert usage["estimated"] is True
    assert usage["inputTokens"] > 20


async def test_a_provider_that_gives_something_else(bench: Bench, session: str) -> None:
    class Odd:
        async def generate(self, _: ModelRequest) -> Any:
            return {"text": "Hello."}

    async with bench.serving(Agent("agent", provider=Odd())):
        with pytest.raises(ProviderError, match="it gave dict, not a ModelResponse"):
            await bench.client.execute("agent", "Go", session_id=session)
