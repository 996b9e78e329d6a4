"""Every way in which a service fails (field report R11), over both dialects.

What counts: whether asking again can help and when, one bounded line, and never the key (R37).
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from perdure.activities.providers.anthropic import AnthropicProvider
from perdure.activities.providers.base import ModelRequest
from perdure.activities.providers.openai import OpenAIProvider
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    MissingApiKeyError,
    ProviderError,
    RateLimitedError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "k3y-5ecret-0123456789abcdef"
TEAM = "team-5ecret"
REQUEST = ModelRequest("some-model", [{"role": "user", "content": "hi"}])
GOOD = {
    "choices": [{"message": {"content": "ok"}}],
    "content": [{"type": "text", "text": "ok"}],
}


@pytest.fixture(params=[OpenAIProvider, AnthropicProvider])
async def provider(service: Any, request: Any) -> AsyncIterator[Any]:
    made = request.param(base_url=service.url, api_key=KEY, timeout=60, headers={"x-team": TEAM})
    yield made
    await made.aclose()


async def failure(provider: Any) -> ProviderError:
    """The error of one call, after the checks that hold for every one."""
    with pytest.raises(ProviderError) as caught:
        await provider.generate(REQUEST)
    error = caught.value
    text = str(error)
    assert text.startswith(provider.label)
    assert len(text) <= 500
    assert text.isprintable()
    everything = text + error.hint + "".join(traceback.format_exception(error))
    assert KEY not in everything
    assert TEAM not in everything
    # httpx's errors hold the request, with its headers.
    assert error.__cause__ is None
    assert error.__context__ is None
    return error


@pytest.mark.parametrize("status", [408, 409, 425, 500, 502, 503, 504, 529])
async def test_r11_passing_faults_are_retryable(service: Any, provider: Any, status: int) -> None:
    service.will_fail(status, {"error": {"type": "x", "message": "try later"}}, retry_after="2")
    error = await failure(provider)
    assert (error.status, error.retryable, error.retry_after) == (status, True, 2.0)
    assert error.code == "LOUSHO_PROVIDER_REQUEST_FAILED"
    assert f"HTTP {status}" in str(error)
    assert "try later" in str(error)


@pytest.mark.parametrize("status", [307, 400, 402, 404, 405, 422, 451])
async def test_r11_other_refusals_are_final(service: Any, provider: Any, status: int) -> None:
    service.will_fail(status, {"error": {"message": "no such thing"}}, retry_after="2")
    error = await failure(provider)
    assert (error.status, error.retryable, error.retry_after) == (status, False, None)
    assert len(service.sent) == 1


async def test_r11_429_waits_as_long_as_the_service_says(service: Any, provider: Any) -> None:
    body = {"error": {"type": "rate_limit_error", "message": "slow down"}}
    service.will_fail(429, body, retry_after="3")
    service.will_fail(429, body, retry_after=formatdate(time.time() + 30, usegmt=True))
    service.will_fail(429, body, retry_after_ms="1500", retry_after="9")
    service.will_fail(429, body)
    waits = []
    for _ in range(4):
        error = await failure(provider)
        assert isinstance(error, RateLimitedError)
        assert error.retryable
        assert error.code == "LOUSHO_PROVIDER_RATE_LIMITED"
        waits.append(error.retry_after)
    assert waits[0] == 3.0
    assert waits[1] == pytest.approx(30, abs=3)
    assert waits[2:] == [1.5, None]


@pytest.mark.parametrize(
    "error",
    [
        {"type": "insufficient_quota", "code": "insufficient_quota", "message": "quota"},
        {"type": "insufficient_quota", "code": "project_spend_limit_exceeded"},
        {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
    ],
)
async def test_a_used_up_quota_is_not_a_rate_limit(service: Any, provider: Any, error: Any) -> None:
    service.will_fail(429, {"error": error})
    got = await failure(provider)
    assert isinstance(got, RateLimitedError)
    assert not got.retryable
    assert "quota is used up" in str(got)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_named_by_its_place_only(
    service: Any, provider: Any, status: int
) -> None:
    echo = f"Incorrect API key provided: {KEY}, sk-proj-*******cdef, Bearer {KEY}"
    service.will_fail(status, {"error": {"message": echo}})
    error = await failure(provider)
    assert (error.status, error.retryable) == (status, False)
    assert "refused the API key of api_key" in str(error)
    assert "cdef" not in str(error)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"code": "context_length_exceeded", "message": "too much"}),
        (400, {"message": "This model's maximum context length is 8192 tokens."}),
        (400, {"type": "invalid_request_error", "message": "prompt is too long: 2 > 1 maximum"}),
        (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}),
        (429, {"code": "rate_limit_exceeded", "message": "Request too large for some-model"}),
    ],
)
async def test_r4_a_context_that_is_too_long_is_named_and_final(
    service: Any, provider: Any, status: int, error: Any
) -> None:
    service.will_fail(status, {"error": error})
    got = await failure(provider)
    assert "context too long for some-model" in str(got)
    assert not got.retryable
    assert "Shorten" in got.hint


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"choices": [{"message": {"cont',
        b"\xff\xfe",
        b"<html>Welcome to the Wi-Fi</html>",
        b"[" * 100_000,
        b"NaN",
        [],
        "text",
        {},
        {"choices": [], "content": None},
        {"choices": [None], "content": "x"},
        {"choices": [{"message": None}], "content": [None]},
        {"choices": [{"message": {"content": 7}}], "content": 7},
        {"choices": [{"message": {"tool_calls": {}}}], "content": {}},
        {
            "choices": [{"message": {"tool_calls": [{"id": "a", "function": {"name": ""}}]}}],
            "content": [{"type": "tool_use", "id": "a", "input": {}}],
        },
    ],
)
async def test_a_malformed_answer_is_asked_for_again(
    service: Any, provider: Any, body: Any
) -> None:
    service.will(body)
    error = await failure(provider)
    assert (error.status, error.retryable) == (200, True)
    assert "malformed answer" in str(error)


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        ({"code": 429, "message": "busy"}, 429, True),
        ({"type": "overloaded_error", "message": "Overloaded"}, 529, True),
        ({"type": "invalid_request_error", "message": "bad"}, 400, False),
        ({"message": "who knows"}, 200, True),
        ("who knows", 200, True),
    ],
)
async def test_an_error_inside_an_answer(
    service: Any, provider: Any, error: Any, status: int, retryable: Any
) -> None:
    service.will({"error": error})
    got = await failure(provider)
    assert (got.status, got.retryable) == (status, retryable)


async def test_connections_that_break(service: Any, provider: Any) -> None:
    service.will_break("cut", GOOD)
    service.will_break("no_answer")
    for _ in range(2):
        error = await failure(provider)
        assert (error.status, error.retryable, error.retry_after) == (None, True, None)
        assert "lost the connection" in str(error)
    service.will(GOOD)
    assert (await provider.generate(REQUEST)).text == "ok"


async def test_an_answer_that_stops_coming_times_out(service: Any, provider: Any) -> None:
    service.will_break("stall", GOOD)
    provider._timeout = 0.3
    error = await failure(provider)
    assert (error.status, error.retryable) == (None, True)
    assert "timed out waiting" in str(error)


async def test_nobody_listens(service: Any, provider: Any) -> None:
    provider._base_url = "http://127.0.0.1:1"
    error = await failure(provider)
    assert (error.status, error.retryable) == (None, True)
    assert "cannot connect to 127.0.0.1:1" in str(error)


async def test_a_huge_error_that_holds_the_key_and_control_characters(
    service: Any, provider: Any
) -> None:
    service.will_fail(500, (f"\x1b[31m{KEY} \r\n{TEAM}\x00" * 9000).encode())
    error = await failure(provider)
    assert "[redacted]" in str(error)
    service.will_fail(502, b"<html>\n<h1>Bad gateway</h1></html>")
    assert str(await failure(provider)).endswith(f"(HTTP 502 from 127.0.0.1:{service.port})")
    service.will_fail(422, {"detail": [{"loc": ["body"], "msg": "field required"}]})
    assert "field required" in str(await failure(provider))


@pytest.mark.parametrize("key", ["schlüssel-5ecret", "5ecret\nx-evil: 1"])
async def test_a_key_that_cannot_be_a_header_is_not_shown(service: Any, key: str) -> None:
    provider = OpenAIProvider(base_url=service.url, api_key=key)
    with pytest.raises(ConfigurationError) as caught:
        await provider.generate(REQUEST)
    assert "5ecret" not in "".join(traceback.format_exception(caught.value))
    assert service.sent == []


def test_an_extra_header_that_cannot_be_one_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAIProvider(headers={"x-team": "5ecret\u00fc"})
    assert caught.value.field == "headers"
    assert "5ecret" not in str(caught.value)


async def test_an_empty_key_makes_no_request(service: Any) -> None:
    with pytest.raises(MissingApiKeyError, match="api_key is not set"):
        await OpenAIProvider(base_url=service.url, api_key=" ").generate(REQUEST)
    assert service.sent == []


@pytest.mark.parametrize(
    "url",
    ["ftp://a.test", "a.test/v1", "http://", "http://u:p4ss@a.test", "http://[", "http://a:b"],
)
async def test_a_wrong_base_url_is_a_configuration_error(service: Any, url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await OpenAIProvider(base_url=url, api_key=KEY).generate(REQUEST)
    assert caught.value.field == "base_url"
    assert "p4ss" not in str(caught.value)


async def test_cancelling_a_call_frees_its_connection(service: Any, provider: Any) -> None:
    service.will_break("stall", GOOD)
    task = asyncio.ensure_future(provider.generate(REQUEST))
    await service.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    service.will(GOOD)
    assert (await provider.generate(REQUEST)).text == "ok"


async def test_one_provider_serves_several_event_loops(service: Any, provider: Any) -> None:
    service.will(GOOD, GOOD, GOOD)
    await provider.generate(REQUEST)
    texts: list[str] = []

    async def elsewhere() -> None:
        texts.append((await provider.generate(REQUEST)).text)
        await provider.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert texts == ["ok"]
    await provider.generate(REQUEST)
    assert service.connections == 2
