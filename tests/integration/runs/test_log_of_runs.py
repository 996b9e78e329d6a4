"""What runs write into the log, as applications read it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from perdure import Agent, Chars, ToolContext, tool
from perdure.activities.providers.base import ModelRequest, ModelResponse
from perdure.checkpoint_bridge.errors import ConfigurationError, ProviderError, RateLimitedError
from perdure.checkpoint_bridge.log.entries import EntryTypes, entries_schema
from perdure.testing import attempts, call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.checkpoint_bridge.log.events import Event
    from tests.integration.runs.conftest import Bench

SEEN = {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110}


@tool(read_only=True)
def look(chars: int = 4) -> str:
    """Look at so much."""
    return "x" * chars


@tool(read_only=True, needs_approval=True)
def book(name: str) -> str:
    return f"{name} is booked"


def overloaded() -> ProviderError:
    return RateLimitedError("busy", status=429, retryable=True, retry_after=0.01, usage=SEEN)


async def test_f20_every_entry_fits_the_published_schema(bench: Bench, session: str) -> None:
    model = bench.model(
        ModelResponse(
            text="Let me look.", tool_calls=[{**call("look"), "id": "a"}], usage=SEEN, model="m"
        ),
        [call("book", {"name": "Hotel"})],
        [call("book", {"name": "Flight"})],
        ProviderError("HTTP 400: no", status=400),
    )
    agent = Agent("agent", provider=model, tools=[look, book], instructions="Be kind.")
    async with bench.serving(agent):
        await bench.client.execute("agent", "Book it", session_id=session)
        await bench.client.approvals.resolve(await bench.pending(), approved=True, by="ann")
        first = await bench.pending()
        with pytest.raises(ProviderError):
            await bench.client.approvals.resolve(first, approved=False, note="too dear")
    entries = await bench.client.sessions.get(session).entries()
    assert [str(entry.type) for entry in entries] == [
        "user",
        "answer",
        "tool_call",
        "tool_result",
        "tool_call",
        "approval_decision",
        "tool_result",
        "tool_call",
        "approval_decision",
        "tool_result",
        "error",
    ]
    assert entries[5].data == {**entries[5].data, "approved": True, "by": "ann"}
    assert entries[8].data == {**entries[8].data, "approved": False, "note": "too dear"}
    assert "HTTP 400: no" in entries[-1].data["message"]
    schema = entries_schema()
    for entry in entries:
        check(entry.to_json(), schema)
    assert set(schema["properties"]["type"]["enum"]) == {str(each) for each in EntryTypes}
    with pytest.raises(AssertionError):
        check({**entries[0].to_json(), "data": {"text": "?"}}, schema)


def check(value: Any, schema: dict[str, Any]) -> None:
    """As much of JSON Schema as the published one uses."""
    types: dict[str, Any] = {
        "object": dict,
        "string": str,
        "array": list,
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert isinstance(value, tuple(types[name] for name in names)), (value, schema)
    if "enum" in schema:
        assert value in schema["enum"]
    if "const" in schema:
        assert value == schema["const"]
    if "minimum" in schema:
        assert value >= schema["minimum"]
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value)
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is False:
            assert set(value) <= set(properties)
        for key in set(value) & set(properties):
            check(value[key], properties[key])
    if "oneOf" in schema:
        assert sum(fits(value, each) for each in schema["oneOf"]) == 1


def fits(value: Any, schema: dict[str, Any]) -> bool:
    try:
        check(value, schema)
    except AssertionError:
        return False
    return True


async def test_f22_every_request_can_be_built_again(bench: Bench, session: str) -> None:
    model = bench.model(
        [call("look", {"chars": 90})],
        attempts(overloaded(), [call("look", {"chars": 3})]),
        "Seen.",
        "Again.",
    )
    later = bench.model(*["Short."] * 5)
    short = tool(read_only=True, max_result_chars=10)(look.function)
    options: dict[str, Any] = {"tools": [short, book], "settings": {"temperature": 0.5}}
    plain = Agent("agent", provider=model, instructions="Be kind.", **options)
    same = Agent("agent", provider=model, **options)
    changed = Agent("agent", provider=later, tools=[look], history_budget=Chars(120))
    for agent, inputs in ((plain, ["Go"]), (same, ["More"]), (changed, ["Less", "x" * 100])):
        async with bench.serving(agent):
            for each in inputs:
                await bench.client.execute("agent", each, session_id=session)
    reader = bench.client.sessions.get(session)
    answers = await bench.events("assistant/message")
    rebuilt = [await reader.request_at(event.sequence) for event in answers]
    asked = [*model.requests, *later.requests]
    assert asked[1] == asked[2]  # the one that failed, and its second attempt
    assert rebuilt == [asked[0], *asked[2:]]
    assert "[cut: 92 characters" in str(rebuilt[1].messages[-1])
    assert len(rebuilt[-1].messages) < len((await reader.transcript()).messages) - 2
    headers = await bench.events("request/header")
    assert [header.data["reason"] for header in headers] == ["initial", "change"]
    assert headers[0].data["config"]["tools"][0]["description"] == "Look at so much."
    with pytest.raises(ConfigurationError, match="No answer of a model is at sequence 1"):
        await reader.request_at(1)


async def test_f31_failed_attempts_are_in_the_log_and_the_bill(bench: Bench, session: str) -> None:
    model = bench.model(attempts(overloaded(), overloaded(), "Done."))
    async with bench.serving(Agent("agent", provider=model)):
        result = await bench.client.execute("agent", "Go", session_id=session)
    failed = await bench.events("assistant/attempt")
    (answer,) = await bench.events("assistant/message")
    assert [event.data["attempt"] for event in [*failed, answer]] == [1, 2, 3]
    assert [request.messages for request in model.requests[1:]] == [model.requests[0].messages] * 2
    assert result.usage.input_tokens == 100
    usage = await bench.client.sessions.get(session).usage(include_attempts=True)
    assert usage.input_tokens == 300


async def test_f28_f29_what_tools_emit(bench: Bench, session: str) -> None:
    """Progress of two calls at once: in the log before their results, and in no request."""
    sequences: dict[str, list[int]] = {"slow": [], "threaded": []}
    refused: list[str] = []

    @tool
    async def slow(ctx: ToolContext) -> str:
        for number in range(3):
            forged = {"origin": {"kind": "environment"}, "number": number}
            sequences["slow"].append(await ctx.emit("app/progress", forged))
        for type_, data in (
            ("turn_ended", {}),
            ("turn/end", {}),
            ("tool/result", {}),
            ("app/", {}),
            ("app/progress", {"a": float("nan")}),
            ("app/progress", {"a": (1, 2)}),
            ("app/progress", "text"),
            ("app/progress", {"a": "x" * 1024 * 1024}),
        ):
            try:
                await ctx.emit(type_, data)  # type: ignore[arg-type]
            except ConfigurationError as error:
                refused.append(error.field)
        return "slow"

    @tool
    def threaded(ctx: ToolContext) -> str:
        sequences["threaded"].append(ctx.emit_from_thread("app/step", {"of": "threaded"}))
        sequences["threaded"].append(ctx.emit_from_thread("app/step", {"of": "threaded"}))
        return "threaded"

    model = bench.model([call("slow"), call("threaded")], [call("threaded")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow, threaded])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert result.text == "Done."
    assert refused == ["type"] * 4 + ["data"] * 4
    log = [event async for event in bench.client.sessions.get(session).events()]
    assert [event.seq for event in log] == list(range(len(log)))
    emitted = [event for event in log if event.type.startswith("app/")]
    assert sorted(event.sequence for event in emitted) == sorted(
        sequences["slow"] + sequences["threaded"]
    )
    assert [e.data["number"] for e in emitted if e.type == "app/progress"] == [0, 1, 2]
    forged = [e.data["origin"] for e in emitted if e.type == "app/progress"]
    assert forged == [{"kind": "environment"}] * 3
    calls = {event.sequence: event for event in log if event.type == "tool/call"}
    for event in emitted:
        assert event.ignorable
        assert event.origin is not None
        assert event.origin.kind == "tool"
        announced = calls[event.origin.sequence]
        result_of = next(
            other
            for other in log
            if other.type == "tool/result"
            and all(other.data[key] == announced.data[key] for key in ("seq", "index"))
        )
        assert announced.sequence < event.sequence < result_of.sequence
        assert announced.data["name"] == ("slow" if event.type == "app/progress" else "threaded")
    (start,) = [event for event in log if event.type == "turn/start"]
    loops = {event.origin for event in log if event not in emitted}
    assert [(each.kind, each.sequence) for each in loops if each] == [("loop", start.sequence)]
    assert all("progress" not in str(request.messages) for request in model.requests)


async def test_f29_what_local_tools_emit(bench: Bench, session: str) -> None:
    @tool(local=True)
    async def quick(ctx: ToolContext) -> int:
        return await ctx.emit("app/quick", {"n": 1})

    model = bench.model([call("quick"), call("quick")], [call("quick")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick])):
        await bench.client.execute("agent", "Go", session_id=session)
    emitted = [str(event.sequence) for event in await bench.events("app/quick")]
    assert sorted(result["content"] for result in await bench.results()) == sorted(emitted)
    assert len(emitted) == 3


class Streaming:
    """A provider of one's own that reads an answer in chunks over HTTP."""

    default_model = "streamed"

    def __init__(self, url: str) -> None:
        self.url = url

    async def generate(self, request: ModelRequest) -> ModelResponse:
        text = ""
        try:
            async with httpx.AsyncClient() as http, http.stream("GET", self.url) as response:
                async for chunk in response.aiter_text():
                    text += chunk
        except httpx.TransportError as error:
            msg = f"The stream broke after {text!r}."
            raise ProviderError(msg, retryable=True, retry_after=0.01) from error
        return ModelResponse(text=text, usage=SEEN, model="streamed")


@pytest.fixture
async def breaking_once() -> AsyncIterator[str]:
    """A server whose first answer breaks off after some chunks; the second is whole."""
    words = ["one ", "two ", "three ", "four ", "five"]
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for word in words[:3] if asked == 1 else words:
            writer.write(f"{len(word):x}\r\n{word}\r\n".encode())
            await writer.drain()
        if asked > 1:
            writer.write(b"0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_r32_a_stream_that_breaks_shows_the_text_once(
    bench: Bench, session: str, breaking_once: str
) -> None:
    """Early, late and again: each consumer ends with exactly the final text."""
    final = "one two three four five"
    got: list[Event] = []

    async def consume(after: int = 0) -> str:
        text = ""
        async for event in bench.client.sessions.get(session).stream(after):
            got.append(event)
            if event.type == "assistant/message":
                text = event.data["message"]["content"]
            if event.type == "turn/end":
                return text
        raise AssertionError

    async with bench.serving(Agent("agent", provider=Streaming(breaking_once))):
        handle = await bench.client.start("agent", "Count", session_id=session)
        await bench.until(lambda: _exists(bench, session))
        early = asyncio.create_task(consume())
        await handle.result()
        assert await early == final
    early_events = list(got)
    got.clear()
    assert await consume() == final  # late: all of it from the beginning
    assert got == early_events
    last = next(event for event in got if event.type == "assistant/attempt").sequence
    assert await consume(last) == final  # again: it had seen the failed attempt
    failed, answer = (
        next(event for event in early_events if event.type == type_)
        for type_ in ("assistant/attempt", "assistant/message")
    )
    assert (failed.data["attempt"], answer.data["attempt"]) == (1, 2)
    assert failed.sequence < answer.sequence
    assert "broke after 'one two three '" in failed.data["error"]["message"]
    messages, _ = await bench.client.sessions.get(session).transcript()
    assert [message.text for message in messages] == ["Count", final]


async def _exists(bench: Bench, session: str) -> bool:
    return await bench.store.session(session) is not None


async def test_f21_how_turns_end(bench: Bench, session: str) -> None:
    """Every outcome has its reason, and steps are brackets around answers and their calls."""
    cut = ModelResponse(
        text="Half", tool_calls=[{**call("look"), "id": "a"}], finish_reason="length", usage=SEEN
    )
    scripts: dict[str, tuple[Any, ...]] = {
        "completed": ([call("look"), call("look")], "Done."),
        "max-tokens": (cut, "Done."),
        "max-tokens-at-the-end": ([call("look")] * 1, cut),
        "error": ([call("look")], ProviderError("HTTP 400: no", status=400)),
        "rejected": (ProviderError("HTTP 400: no", status=400),),
        "aborted": ([call("look")], "Never."),
    }
    agents = [
        Agent(name, provider=bench.model(*turns), tools=[look], max_steps=2)
        for name, turns in scripts.items()
    ]
    bench.models[-1].gate(2)
    bench.gates.append(bench.models[-1].gate(2))
    kinds = {}
    async with bench.serving(*agents):
        for name in scripts:
            handle = await bench.client.start(name, "Go", session_id=f"{session}-{name}")
            if name == "aborted":
                await bench.models[-1].gate(2).reached()
                await handle.cancel()
            with contextlib.suppress(ProviderError, asyncio.CancelledError):
                await handle.result()
            log = await bench.events(session_id=f"{session}-{name}")
            kinds[name] = log[-1].data["reason"]["kind"]
            steps = [event for event in log if event.type in ("step/start", "step/end")]
            assert [event.type for event in steps] == ["step/start", "step/end"] * (len(steps) // 2)
            numbers = [event.data["step"] for event in steps]
            assert numbers == sorted([*range(1, len(steps) // 2 + 1)] * 2)
            inside = {event.seq for event in log if event.type in _INSIDE}
            for start, end in zip(steps[::2], steps[1::2], strict=True):
                inside -= set(range(start.seq, end.seq))
            assert not inside
            if name == "rejected":
                assert not steps
    assert kinds == {
        "completed": "completed",
        "max-tokens": "max-tokens",
        "max-tokens-at-the-end": "max-tokens",
        "error": "error",
        "rejected": "error",
        "aborted": "aborted",
    }


_INSIDE = ("assistant/message", "tool/call", "tool/result")
