"""``anthropic/<model>`` against a service that checks what it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure.activities.providers.anthropic import AnthropicProvider
from perdure.activities.providers.base import ModelRequest, ToolSpec
from perdure.activities.providers.registry import aclose_providers, provider_for
from perdure.checkpoint_bridge.errors import MissingApiKeyError, ProviderError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "sk-ant-test-0123456789"
PNG = "iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture
async def provider(service: Any) -> AsyncIterator[AnthropicProvider]:
    made = AnthropicProvider(base_url=service.url, api_key=KEY)
    yield made
    await made.aclose()


def request(*messages: dict[str, Any], tools: Any = (), **settings: Any) -> ModelRequest:
    return ModelRequest("claude-sonnet-4-5", list(messages), list(tools), settings)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def asks(*calls: dict[str, Any], text: str = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "toolCalls": list(calls), **more}


def result(identity: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "toolCallId": identity, "content": content, "name": "t", **more}


def answer(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": list(content),
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 4},
        **more,
    }


HELLO = {"type": "text", "text": "hello"}


async def test_first_turn_as_golden_request_and_response(service: Any, provider: Any) -> None:
    service.will(answer(HELLO, {"type": "text", "text": " you"}))
    got = await provider.generate(
        request(
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
            user("Hi"),
            tools=[ToolSpec("weather", "Weather", SCHEMA), ToolSpec("ping", "", {})],
            temperature=0.2,
        )
    )
    sent = service.only
    assert (sent.method, sent.path) == ("POST", "/v1/messages")
    assert sent.headers["x-api-key"] == KEY
    assert sent.headers["anthropic-version"] == "2023-06-01"
    assert sent.headers["content-type"] == "application/json"
    assert "authorization" not in sent.headers
    assert sent.body == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 8192,
        "system": "Be brief.\n\nBe kind.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "tools": [
            {"name": "weather", "description": "Weather", "input_schema": SCHEMA},
            {"name": "ping", "input_schema": {"type": "object", "properties": {}}},
        ],
        "temperature": 0.2,
    }
    assert got.message() == {"role": "assistant", "content": "hello you"}
    assert (got.finish_reason, got.model) == ("stop", "claude-sonnet-4-5-20250929")
    assert got.response_id == "msg_1"
    assert got.usage == {"inputTokens": 10, "outputTokens": 4, "totalTokens": 14}


async def test_thinking_and_parallel_calls_round_trip(service: Any, provider: Any) -> None:
    thinking = {"type": "thinking", "thinking": "Hm, ß.", "signature": "c2ln=="}
    redacted = {"type": "redacted_thinking", "data": "ZW5j=="}
    uses = [
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}},
        {"type": "tool_use", "id": "toolu_2", "name": "ping", "input": {}},
    ]
    service.will(
        answer(thinking, redacted, {"type": "text", "text": "Let me look."}, *uses,
               stop_reason="tool_use"),
        answer(HELLO),
    )  # fmt: skip
    first = await provider.generate(request(user("go")))
    assert first.finish_reason == "tool_calls"
    assert first.reasoning == [
        {"text": "Hm, ß.", "signature": "c2ln=="},
        {"text": "", "redactedData": "ZW5j=="},
    ]
    assert first.tool_calls == [
        call("toolu_1", "weather", '{"city":"Köln"}'),
        call("toolu_2", "ping", "{}"),
    ]
    await provider.generate(
        request(
            user("go"),
            first.message(),
            # Stored in the order they finished, with input that came meanwhile.
            result("toolu_2", '{"error":"Error","kind":"execution"}', isError=True),
            user("and tomorrow?"),
            result("toolu_1", '"rain"'),
            user([{"type": "text", "text": "?"}]),
        )
    )
    assert service.sent[1].body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {
            "role": "assistant",
            "content": [thinking, redacted, {"type": "text", "text": "Let me look."}, *uses],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": '"rain"'},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": '{"error":"Error","kind":"execution"}',
                    "is_error": True,
                },
                {"type": "text", "text": "and tomorrow?"},
                {"type": "text", "text": "?"},
            ],
        },
    ]


async def test_reasoning_without_a_signature_is_another_services(
    service: Any, provider: Any
) -> None:
    service.will(answer(HELLO))
    turn = asks(call("c1", "ping", "{}"), reasoning=[{"text": "unsigned"}])
    await provider.generate(request(user("x"), turn, result("c1", "1")))
    assert [b["type"] for b in service.only.body["messages"][1]["content"]] == ["tool_use"]


@pytest.mark.parametrize("raw", ['{"a": ', "[1]", '"text"', "null", "", "{}{}"])
async def test_r6_broken_arguments_are_sent_as_an_object(
    service: Any, provider: Any, raw: str
) -> None:
    stored = asks(call("c1", "ping", raw), call("c2", "ping", '{"a":12345678901234567890}'))
    service.will(answer(HELLO))
    await provider.generate(request(user("x"), stored, result("c1", "1"), result("c2", "2")))
    blocks = service.only.body["messages"][1]["content"]
    assert [b["input"] for b in blocks] == [{}, {"a": 12345678901234567890}]
    assert stored["toolCalls"][0]["function"]["arguments"] == raw


async def test_r15_r24_ids_that_the_api_refuses_and_empty_results(
    service: Any, provider: Any
) -> None:
    turns = [asks(call("call_0", "ping", "{}")), result("call_0", "")] * 2
    odd = [asks(call("functions.ping:0", "ping", "{}")), result("functions.ping:0", '""')]
    twice = [
        asks(call("d", "ping", "{}"), call("d", "ping", "{}")),
        result("d", "1"),
        result("d", "2"),
    ]
    service.will(answer(HELLO))
    await provider.generate(request(user("x"), *turns, *odd, *twice))
    messages = service.only.body["messages"]
    uses = [b["id"] for m in messages for b in m["content"] if b["type"] == "tool_use"]
    results = [b for m in messages for b in m["content"] if b["type"] == "tool_result"]
    assert [b["tool_use_id"] for b in results] == uses
    assert len(set(uses)) == 5
    assert all(i.replace("_", "").replace("-", "").isalnum() for i in uses)
    assert [b["content"] for b in results] == ['""', '""', '""', "1", "2"]


async def test_empty_messages_do_not_become_empty_blocks(service: Any, provider: Any) -> None:
    service.will(answer(HELLO), answer(HELLO))
    empty = {"role": "assistant", "content": " ", "reasoning": [{"text": "t", "signature": "s"}]}
    await provider.generate(request(user("a"), empty, user(""), user("b")))
    await provider.generate(request(user(" \n")))
    assert service.sent[0].body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    assert service.sent[1].body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "(empty message)"}]}
    ]


@pytest.mark.parametrize(
    "image",
    [{"$bytes": PNG}, bytes.fromhex("89504e470d0a1a0a"), f"data:image/png;base64,{PNG}"],
)
async def test_images_and_files(service: Any, provider: Any, image: Any) -> None:
    service.will(answer(HELLO))
    pdf = {"type": "file", "mimeType": "application/pdf", "filename": "bill.pdf"}
    await provider.generate(
        request(
            user(
                [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "image": image},
                    {"type": "image", "image": "https://pictures.test/a"},
                    {**pdf, "data": {"$bytes": "JVBERi0="}},
                    {**pdf, "data": "https://files.test/b"},
                    {"type": "file", "data": "data:text/csv;base64,YSxi"},
                    {"type": "file", "data": image, "mimeType": "image/png"},
                ]
            )
        )
    )
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PNG},
    }
    assert service.only.body["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        picture,
        {"type": "image", "source": {"type": "url", "url": "https://pictures.test/a"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
            "title": "bill.pdf",
        },
        {
            "type": "document",
            "source": {"type": "url", "url": "https://files.test/b"},
            "title": "bill.pdf",
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
        },
        picture,
    ]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "video"}, "message 1 (user), part 1 has the unknown type 'video'"),
        ({"type": "file", "data": b"PK", "mimeType": "application/zip"}, "'application/zip'"),
        ({"type": "file", "data": b"\xff", "mimeType": "text/plain"}, "text in UTF-8"),
        ({"type": "file", "data": "http://a.test/b", "mimeType": "text/csv"}, "give its data"),
        ({"type": "file", "data": 7}, "neither an http(s) or data: URL nor bytes"),
    ],
)
async def test_a_part_that_cannot_be_sent_is_named_and_nothing_is_sent(
    service: Any, provider: Any, part: Any, why: str
) -> None:
    with pytest.raises(ProviderError) as caught:
        await provider.generate(request(user([part])))
    assert why in str(caught.value)
    assert not caught.value.retryable
    assert service.sent == []


async def test_a_tool_result_may_hold_parts(service: Any, provider: Any) -> None:
    service.will(answer(HELLO))
    parts = [{"type": "text", "text": "see"}, {"type": "image", "image": {"$bytes": PNG}}]
    await provider.generate(request(user("x"), asks(call("c", "ping", "{}")), result("c", parts)))
    sent = service.only.body["messages"][2]["content"][0]["content"]
    assert [block["type"] for block in sent] == ["text", "image"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        (None, "stop"),
        ("moon_phase", "moon_phase"),
    ],
)
async def test_finish_reasons_of_an_empty_answer(
    service: Any, provider: Any, theirs: Any, ours: str
) -> None:
    service.will(answer(stop_reason=theirs))
    got = await provider.generate(request(user("x")))
    assert (got.text, got.tool_calls, got.finish_reason) == ("", [], ours)


async def test_input_tokens_count_the_whole_prompt(service: Any, provider: Any) -> None:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 70,
        "cache_creation_input_tokens": 20,
        "output_tokens": 50,
        "output_tokens_details": {"thinking_tokens": 30},
    }
    service.will(answer(HELLO, usage=usage), answer(HELLO, usage=None))
    assert (await provider.generate(request(user("x")))).usage == {
        "inputTokens": 100,
        "outputTokens": 50,
        "totalTokens": 150,
        "cachedInputTokens": 70,
        "cacheWriteTokens": 20,
        "reasoningTokens": 30,
    }
    assert (await provider.generate(request(user("x")))).usage is None


async def test_ids_of_a_response_are_made_usable(service: Any, provider: Any) -> None:
    use = {"type": "tool_use", "name": "ping", "input": {}}
    service.will(answer({**use, "id": "a"}, {**use, "id": "a"}, use, {"type": "server_note"}))
    got = await provider.generate(request(user("x")))
    ids = [c["id"] for c in got.tool_calls]
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert got.finish_reason == "tool_calls"


async def test_max_tokens_and_the_thinking_budget(service: Any, provider: Any) -> None:
    service.will(answer(HELLO), answer(HELLO))
    thinking = {"type": "enabled", "budget_tokens": 10_000}
    await provider.generate(request(user("x"), thinking=thinking))
    await provider.generate(request(user("x"), thinking=thinking, max_tokens=12_000))
    assert [sent.body["max_tokens"] for sent in service.sent] == [18_192, 12_000]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_environment_is_read_at_each_call(
    service: Any, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    shared = provider_for("anthropic/claude-sonnet-4-5")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", service.url + suffix)
    with pytest.raises(MissingApiKeyError, match="ANTHROPIC_API_KEY is not set"):
        await shared.generate(request(user("x")))
    assert service.sent == []
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    service.will(answer(HELLO))
    await shared.generate(request(user("x")))
    assert service.only.path == "/v1/messages"
    assert service.only.headers["x-api-key"] == KEY
    await aclose_providers()
