"""A run with a provider as users have it: over HTTP, to a service on loopback."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge.errors import ProviderError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.runs.conftest import Bench

KEY = "sk-never-to-be-seen"


class Service:
    """Answers chat completions with what a test has prepared."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, Any]] = []
        self.bodies: list[Any] = []
        self.heads: list[str] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
                length = int(head.partition("content-length: ")[2].partition("\r")[0])
                self.heads.append(head)
                self.bodies.append(json.loads(await reader.readexactly(length)))
                status, body = self.replies.pop(0)
                payload = json.dumps(body).encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-length: {len(payload)}\r\n"
                    f"retry-after: 0\r\n\r\n".encode()
                    + payload
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    service = Service()
    server = await asyncio.start_server(service.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with server:
        yield service


def answer(text: str | None, *calls: tuple[str, str, str]) -> dict[str, Any]:
    made = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name, arguments in calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if made:
        message["tool_calls"] = made
    return {
        "id": "chatcmpl-1",
        "model": "gpt-x-2026",
        "choices": [{"message": message, "finish_reason": "tool_calls" if made else "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24},
    }


@tool(read_only=True)
def weather(city: str) -> dict[str, str]:
    """Tell the weather of a city."""
    return {"forecast": f"sunny in {city}"}


def agent() -> Agent:
    return Agent(
        "trip",
        model="openai/gpt-x",
        instructions="You plan trips.",
        tools=[weather],
        settings={"temperature": 0},
    )


async def test_a_run_with_a_tool(bench: Bench, session: str, service: Service) -> None:
    service.replies = [
        (200, answer(None, ("call_a", "weather", '{"city":"Rome"}'), ("call_b", "weather", "{}"))),
        (429, {"error": {"message": "slow down"}}),
        (200, answer("Sunny.")),
    ]
    async with bench.serving(agent()):
        result = await bench.client.execute("trip", "How is Rome?", session_id=session)
    assert (result.text, result.finish_reason, result.steps) == ("Sunny.", "stop", 2)

    first, second, third = service.bodies
    assert first["model"] == "gpt-x"
    assert first["temperature"] == 0
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    (offered,) = first["tools"]
    assert offered["function"]["name"] == "weather"
    assert offered["function"]["description"] == "Tell the weather of a city."
    assert offered["function"]["parameters"]["required"] == ["city"]
    assert second == third
    assert [message["role"] for message in third["messages"][2:]] == ["assistant", "tool", "tool"]
    assert third["messages"][3]["tool_call_id"] == "call_a"
    assert third["messages"][3]["content"] == '{"forecast":"sunny in Rome"}'
    assert "ToolArgumentsValidationError" in third["messages"][4]["content"]

    record = await bench.record()
    assert record["usage"]["byModel"]["gpt-x-2026"]["calls"] == 2
    assert (record["usage"]["inputTokens"], record["usage"]["outputTokens"]) == (40, 8)
    assert record["agentFingerprint"]["model"] == "openai/gpt-x"
    assert len(await bench.events("assistant/attempt")) == 1
    (event,) = (e for e in await bench.events("assistant/message") if e.data["step"] == 2)
    assert event.data["responseId"] == "chatcmpl-1"


async def test_the_key_stays_where_it_is(bench: Bench, session: str, service: Service) -> None:
    """Not even a service that echoes it brings it into a log, a history or an error."""
    service.replies = [(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})]
    async with bench.serving(agent()):
        with pytest.raises(ProviderError) as raised:
            await bench.client.execute("trip", "How is Rome?", session_id=session)
    assert raised.value.status == 401
    assert len(service.bodies) == 1
    assert f"authorization: bearer {KEY}" in service.heads[0]
    assert KEY not in str(raised.value)
    assert KEY not in str(await bench.events())
    (history,) = await bench.histories()
    assert KEY.encode() not in b"".join(e.SerializeToString() for e in history.events)
