"""The types that a user's editor and type checker see: mypy checks the bodies, nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from perdure import Agent, tool
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry, WaitingApproval
from perdure.checkpoint_bridge.log.events import Event
from perdure.results import Fork, RunResult, SessionInfo
from perdure.run_handle import RunHandle
from perdure.sessions.session import Session
from perdure.tools import Tool

if TYPE_CHECKING:
    from perdure.client import Client


@tool(read_only=True)
def look(city: str) -> str:
    """Look."""
    return city


def test_a_decorated_function_is_a_tool() -> None:
    assert_type(look, Tool)
    assert isinstance(look, Tool)


async def runs(client: Client) -> None:
    assert_type(await client.execute("agent", "Hi"), RunResult)
    assert_type(await client.start("agent", [{"role": "user", "content": "Hi"}]), RunHandle)
    assert_type(await client.resume("id"), RunResult | None)
    assert_type(await client.approvals.resolve("id", approved=True), RunResult)
    assert_type(await client.approvals.list(), list[WaitingApproval])
    assert_type(await client.checkpoint("id"), Checkpoint | None)
    assert_type(await client.history("id", limit=3), list[HistoryEntry])
    assert_type(await client.fork("id", from_step=1), Fork)


async def sessions(client: Client) -> None:
    session = client.sessions.get("id")
    assert_type(session, Session)
    assert_type(await session.send("Hi"), RunResult)
    assert_type(await session.submit("Hi"), int)
    async for event in session.stream(after=0):
        assert_type(event, Event)
    for info in await client.sessions.list():
        assert_type(info, SessionInfo)


def agents(given: dict[str, Any]) -> None:
    Agent("agent", model="openai/gpt-4o-mini", tools=[look], max_steps=3)
    Agent("agent", model=3)  # type: ignore[arg-type]
    Agent("agent", **given)
