"""``openai/<model>`` against a service that checks what it is sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure.activities.providers.base import ModelRequest, ToolSpec
from perdure.activities.providers.openai import OpenAIProvider
from perdure.activities.providers.registry import aclose_providers, provider_for
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    MissingApiKeyError,
    ProviderError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "sk-test-0123456789abcdef"
PNG = "iVBORw0KGgo="  # the first eight bytes of any PNG file
WEATHER = ToolSpec(
    "weather", "Weather of a city", {"type": "object", "properties": {"city": {"type": "string"}}}
)
PING = ToolSpec("ping", "", {})


@pytest.fixture
async def provider(service: Any) -> AsyncIterator[OpenAIProvider]:
    made = OpenAIProvider(base_url=f"{service.url}/v1", api_key=KEY)
    yield made
    await made.aclose()


def request(*messages: dict[str, Any], tools: Any = (), **settings: Any) -> ModelRequest:
    return ModelRequest("gpt-4o-mini", list(messages), list(tools), settings)


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


def result(identity: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "toolCallId": identity, "content": content, "name": "t", **more}


def answer(text: str | None = "hello", **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    }


async def test_first_turn_as_golden_request_and_response(service: Any, provider: Any) -> None:
    service.will(answer("Servus ✓"))
    got = await provider.generate(
        request(
            {"role": "system", "content": "Be brief."},
            user("Grüß Gott"),
            tools=[WEATHER, PING],
            temperature=0.2,
            max_completion_tokens=99,
        )
    )
    sent = service.only
    assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["content-type"] == "application/json"
    assert sent.body == {
        "model": "gpt-4o-mini",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Grüß Gott"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "Weather of a city",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                },
            },
            {
                "type": "function",
                "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
            },
        ],
        "temperature": 0.2,
        "max_completion_tokens": 99,
    }
    assert got.message() == {"role": "assistant", "content": "Servus ✓"}
    assert (got.finish_reason, got.model) == ("stop", "gpt-4o-mini-2024-07-18")
    assert got.response_id == "chatcmpl-1"
    assert got.usage == {"inputTokens": 12, "outputTokens": 5, "totalTokens": 17}


async def test_parallel_calls_go_out_and_come_back(service: Any, provider: Any) -> None:
    calls = [call("c1", "weather", '{"city": "Graz"}'), call("c2", "ping", "{}")]
    reply = answer(None, finish_reason="tool_calls")
    reply["choices"][0]["message"]["tool_calls"] = calls
    service.will(reply, answer())
    first = await provider.generate(request(user("go"), tools=[WEATHER, PING]))
    assert first.finish_reason == "tool_calls"
    assert first.tool_calls == calls
    assert first.message() == {"role": "assistant", "content": "", "toolCalls": calls}
    await provider.generate(
        request(
            user("go"),
            first.message(),
            # Stored in the order they finished, with input that came meanwhile.
            result("c2", "null"),
            user("and tomorrow?"),
            result("c1", '{"error":"Error"}', isError=True),
        )
    )
    assert service.sent[1].body["messages"] == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"error":"Error"}'},
        {"role": "tool", "tool_call_id": "c2", "content": "null"},
        {"role": "user", "content": "and tomorrow?"},
    ]


@pytest.mark.parametrize("raw", ['{"a": ', "[1]", '"text"', "null", "", "{}{}", '{"a":NaN}'])
async def test_r6_broken_arguments_are_sent_as_an_object(
    service: Any, provider: Any, raw: str
) -> None:
    stored = asks(call("c1", "ping", raw), call("c2", "ping", '{ "a" : 1.0 }'))
    service.will(answer())
    await provider.generate(request(user("x"), stored, result("c1", "1"), result("c2", "2")))
    sent = service.only.body["messages"][1]["tool_calls"]
    assert [c["function"]["arguments"] for c in sent] == ["{}", '{ "a" : 1.0 }']
    assert stored["toolCalls"][0]["function"]["arguments"] == raw


async def test_r15_r24_ids_of_earlier_turns_and_empty_results(service: Any, provider: Any) -> None:
    turns = [asks(call("call_0", "ping", "{}")), result("call_0", "")] * 2
    messages = [user("x"), *turns, asks(call("", "ping", "{}")), result("", '""')]
    service.will(answer(), answer())
    for _ in range(2):
        await provider.generate(request(*messages))
    assert service.sent[0].raw == service.sent[1].raw
    sent = service.sent[0].body["messages"]
    asked = [m["tool_calls"][0]["id"] for m in sent if "tool_calls" in m]
    answered = [m["tool_call_id"] for m in sent if m["role"] == "tool"]
    assert asked == answered
    assert asked[0] == "call_0"
    assert len(set(asked)) == 3
    assert all(asked)
    assert [m["content"] for m in sent if m["role"] == "tool"] == ['""'] * 3


async def test_r25_an_invented_tool_name_does_not_poison_the_next_turn(
    service: Any, provider: Any
) -> None:
    service.will(answer())
    odd = ToolSpec("files.read", "", {})
    turn = asks(call("1", "no such tool!", "{}"), call("2", "files.read", "{}"))
    await provider.generate(
        request(user("x"), turn, result("1", "1"), result("2", "2"), tools=[odd])
    )
    sent = service.only.body["messages"][1]["tool_calls"]
    assert [c["function"]["name"] for c in sent] == ["no_such_tool_", "files.read"]


@pytest.mark.parametrize(
    "image",
    [{"$bytes": PNG}, bytes.fromhex("89504e470d0a1a0a"), f"data:image/png;base64,{PNG}"],
)
async def test_images_and_files(service: Any, provider: Any, image: Any) -> None:
    service.will(answer())
    await provider.generate(
        request(
            user(
                [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "image": image},
                    {"type": "image", "image": "https://pictures.test/a", "mimeType": "image/png"},
                    {"type": "file", "data": {"$bytes": "JVBERi0="}, "mimeType": "application/pdf"},
                    {
                        "type": "file",
                        "data": "data:text/plain,a%20b",
                        "mimeType": "text/plain",
                        "filename": "a.txt",
                    },
                    {"type": "file", "data": {"$bytes": PNG}, "mimeType": "image/png"},
                    {"type": "file", "data": {"$bytes": "UklGRg=="}, "mimeType": "audio/wav"},
                ]
            )
        )
    )
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    assert service.only.body["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        picture,
        {"type": "image_url", "image_url": {"url": "https://pictures.test/a"}},
        {
            "type": "file",
            "file": {"filename": "file.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        },
        {
            "type": "file",
            "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,YSBi"},
        },
        picture,
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "video", "video": "x"}, "message 1 (user), part 1 has the unknown type 'video'"),
        ({"type": "image", "image": "/tmp/a.png"}, "neither an http(s) or data: URL nor bytes"),
        ({"type": "image", "image": {"$bytes": "%%"}}, "broken base64"),
        ({"type": "image", "image": b"what?"}, "is an image of the type 'unknown'"),
        ({"type": "file", "data": "https://a.test/b.pdf"}, "do not take; give its data"),
        ({"type": "file", "data": b"?"}, "without a mimeType"),
        ("text", "unknown type None"),
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


async def test_an_unanswered_call_or_a_stray_result_is_named_and_nothing_is_sent(
    service: Any, provider: Any
) -> None:
    for messages, why in [
        ([user("x"), asks(call("c1", "ping", "{}"))], "asks for ping (c1), which has no result"),
        ([user("x"), result("c9", "1")], "answers 'c9', which nothing asked for"),
        ([{"role": "robot", "content": ""}], "unknown role 'robot'"),
    ]:
        with pytest.raises(ProviderError, match="cannot be sent") as caught:
            await provider.generate(request(*messages))
        assert why in str(caught.value)
        assert not caught.value.retryable
    assert service.sent == []


async def test_a_compatible_server_may_leave_out_nearly_everything(
    service: Any, provider: Any
) -> None:
    bare = {"choices": [{"message": {"content": None, "tool_calls": None}}]}
    parts = {
        "choices": [
            {
                "message": {
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                        {"type": "text", "text": "a"},
                        {"type": "text", "text": "b"},
                    ]
                },
                "finish_reason": "eos",
            }
        ],
        "usage": None,
    }
    calls = {
        "choices": [
            {
                "message": {
                    "tool_calls": [
                        {"id": "", "function": {"name": "ping"}},
                        {"function": {"name": "ping", "arguments": {"a": "ß"}}},
                        {"id": "x", "function": {"name": "ping", "arguments": ""}},
                        {"id": "x", "function": {"name": "ping", "arguments": "{}"}},
                    ]
                },
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3},
    }
    service.will(bare, parts, calls)
    got = await provider.generate(request(user("x")))
    assert (got.text, got.tool_calls, got.finish_reason, got.usage) == ("", [], "stop", None)
    assert (got.model, got.response_id) == ("gpt-4o-mini", None)
    got = await provider.generate(request(user("x")))
    assert (got.text, got.finish_reason, got.reasoning) == ("ab", "stop", [{"text": "hm"}])
    got = await provider.generate(request(user("x")))
    assert got.finish_reason == "tool_calls"
    assert [c["function"]["arguments"] for c in got.tool_calls] == ["{}", '{"a":"ß"}', "", "{}"]
    ids = [c["id"] for c in got.tool_calls]
    assert ids[2] == "x"
    assert len(set(ids)) == 4
    assert all(len(i) == len("call_") + 32 for i in (ids[0], ids[1], ids[3]))
    assert got.usage == {"inputTokens": 3, "outputTokens": 0, "totalTokens": 3}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "stop"),  # without a call
        (None, "stop"),
        ("model_length", "length"),
        ("moon_phase", "moon_phase"),
    ],
)
async def test_finish_reasons(service: Any, provider: Any, theirs: Any, ours: str) -> None:
    service.will(answer(finish_reason=theirs))
    assert (await provider.generate(request(user("x")))).finish_reason == ours


async def test_refusal_is_the_text_and_a_content_filter(service: Any, provider: Any) -> None:
    service.will(answer(message={"content": None, "refusal": "I won't."}))
    got = await provider.generate(request(user("x")))
    assert (got.text, got.finish_reason) == ("I won't.", "content_filter")


async def test_usage_details(service: Any, provider: Any) -> None:
    reply = answer()
    reply["usage"] = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }
    service.will(reply)
    assert (await provider.generate(request(user("x")))).usage == {
        "inputTokens": 100,
        "outputTokens": 50,
        "totalTokens": 150,
        "cachedInputTokens": 64,
        "reasoningTokens": 30,
    }


async def test_reasoning_of_a_compatible_server_goes_back_with_its_calls(
    service: Any, provider: Any
) -> None:
    reply = answer(None)
    reply["choices"][0]["message"] |= {
        "reasoning_content": "Let me see.",
        "tool_calls": [call("c1", "ping", "{}")],
    }
    service.will(reply, answer())
    first = await provider.generate(request(user("x")))
    assert first.reasoning == [{"text": "Let me see."}]
    signed = asks(call("c2", "ping", "{}"), reasoning=[{"text": "t", "signature": "s"}])
    await provider.generate(
        request(user("x"), first.message(), result("c1", "1"), signed, result("c2", "2"))
    )
    sent = service.sent[1].body["messages"]
    assert sent[1]["reasoning_content"] == "Let me see."
    assert "reasoning_content" not in sent[3]


async def test_lone_surrogates_never_leave_nor_come_in(service: Any, provider: Any) -> None:
    reply = answer()
    raw = json.dumps(reply).replace("hello", "\\ud83d\\ude00 \\ud800!").encode()
    service.will(raw)
    got = await provider.generate(request(user("a\ud800b \ud83d\ude00")))
    assert got.text == "😀 \ufffd!"
    assert service.only.body["messages"][0]["content"] == "a\ufffdb 😀"


async def test_settings_cannot_replace_what_the_run_decides(service: Any, provider: Any) -> None:
    with pytest.raises(ConfigurationError, match="'stream'") as caught:
        await provider.generate(request(user("x"), stream=True))
    assert caught.value.field == "settings"
    with pytest.raises(ConfigurationError, match="what JSON cannot"):
        await provider.generate(request(user("x"), temperature=float("nan")))
    assert service.sent == []


async def test_the_environment_is_read_at_each_call(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = provider_for("openai/gpt-4o-mini")
    assert provider_for("openai/o3") is shared
    monkeypatch.setenv("OPENAI_BASE_URL", f"{service.url}/v1/")
    for missing in (None, "", "  "):
        if missing is not None:
            monkeypatch.setenv("OPENAI_API_KEY", missing)
        with pytest.raises(MissingApiKeyError, match="OPENAI_API_KEY is not set") as caught:
            await shared.generate(request(user("x")))
        assert caught.value.code == "LOUSHO_PROVIDER_MISSING_API_KEY"
        assert not caught.value.retryable
    assert service.sent == []
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    service.will(answer(), answer())
    await shared.generate(request(user("x")))
    assert service.only.path == "/v1/chat/completions"
    assert service.only.headers["authorization"] == f"Bearer {KEY}"
    await shared.generate(request(user("x")))
    assert service.connections == 1
    await aclose_providers()


async def test_model_of_the_provider_and_extra_headers(service: Any) -> None:
    provider = OpenAIProvider(
        base_url=f"{service.url}/x?api-version=7",
        api_key=KEY,
        default_model="local",
        headers={"x-team": "blue-team"},
    )
    service.will(answer())
    await provider.generate(ModelRequest("", [user("x")]))
    assert service.only.path == "/x/chat/completions?api-version=7"
    assert service.only.headers["x-team"] == "blue-team"
    assert service.only.body["model"] == "local"
    with pytest.raises(ConfigurationError) as caught:
        await OpenAIProvider(api_key=KEY).generate(ModelRequest("", [user("x")]))
    assert caught.value.field == "model"
    await provider.aclose()
