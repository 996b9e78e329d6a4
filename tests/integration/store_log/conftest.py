"""Runs as the workflows write them, without Temporal: events straight into the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import MetaData, create_engine, func, select

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.tables.database import parse_store_url
from perdure.checkpoint_bridge.tables.event_log import Batch
from perdure.checkpoint_bridge.tables.ledger import EffectId
from perdure.checkpoint_bridge.tables.schema import metadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LARGE = "x" * 10_000


@dataclass
class Run:
    """A run that writes to a session, one batch after the other."""

    store: SqlStore
    session_id: str
    run_id: str
    log_id: int
    head: int
    time_ms: int = 1_000

    def batch(self, *events: NewEvent, save: str | None = None, **more: Any) -> Batch:
        saves = [NewSave(len(events), save, "")] if save else []
        values = {
            "session_id": self.session_id,
            "log_id": self.log_id,
            "run_id": self.run_id,
            "head": self.head,
            "time_ms": self.time_ms,
            "events": events,
            "saves": saves,
        }
        return Batch(**{**values, **more})

    async def append(self, *events: NewEvent, save: str | None = None) -> None:
        self.head = await self.store.append(self.batch(*events, save=save))

    async def turn(self, *tools: str, size: str = "") -> None:
        """A model turn with calls, and their results; a save after each."""
        seq = self.head
        await self.append(answer("", *tools), save=ev.IN_PROGRESS)
        for index, tool in enumerate(tools):
            await self.append(result(seq, index, tool, size), save=ev.IN_PROGRESS)

    async def finish(self, text: str = "Done.") -> None:
        await self.append(
            answer(text),
            NewEvent(ev.TURN_END, {"turn": 1, "reason": {"kind": "completed"}}),
            save=ev.FINISHED,
        )

    def effect(self, index: int = 0) -> EffectId:
        return EffectId(self.log_id, self.head, index)


def start(run_id: str, turn: int = 1) -> NewEvent:
    data = {"turn": turn, "runId": run_id, "agent": "trip", "fresh": turn == 1}
    return NewEvent(ev.TURN_START, {**data, "fingerprint": None})


def user(text: str) -> NewEvent:
    return NewEvent(ev.USER_MESSAGE, {"message": {"role": "user", "content": text}})


def answer(text: str, *tools: str) -> NewEvent:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tools:
        message["toolCalls"] = [
            {"id": f"c-{tool}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
            for tool in tools
        ]
    usage = {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}
    return NewEvent(ev.ASSISTANT_MESSAGE, {"message": message, "model": "m", "usage": usage})


def result(seq: int, index: int, tool: str, content: str = "") -> NewEvent:
    message = {
        "role": "tool",
        "content": content or f'"{tool}"',
        "name": tool,
        "toolName": tool,
        "toolCallId": f"c-{tool}",
    }
    return NewEvent(ev.TOOL_RESULT, {"seq": seq, "index": index, "message": message})


def ask(approval_id: str, seq: int) -> NewEvent:
    pending = {"id": approval_id, "toolCallId": "c-book", "toolName": "book", "args": {}}
    data = {"id": approval_id, "seq": seq, "index": 0, "pending": pending}
    return NewEvent(ev.APPROVAL_REQUESTED, data)


async def begin_run(
    store: SqlStore, session_id: str = "trip", run_id: str = "run-1", text: str = "Plan my trip"
) -> Run:
    row = await store.session(session_id)
    head = row.head if row else 0
    new = [start(run_id, 1 if row is None else 2), user(text)]
    log_id, end = await store.open_session(
        session_id, agent="trip", run_id=run_id, head=head, time_ms=1_000, events=new
    )
    return Run(store, session_id, run_id, log_id, end)


@pytest.fixture
async def store(sql_url: str) -> AsyncIterator[SqlStore]:
    """An empty store: on a SQLite file, then on PostgreSQL."""
    async with SqlStore(sql_url) as opened:
        yield opened


@pytest.fixture
def begin() -> Callable[..., Awaitable[Run]]:
    """Opens a run: ``await begin(store, "trip", "run-1")``."""
    return begin_run


@pytest.fixture
def make() -> type:
    """Makes events."""

    class Make:
        start = staticmethod(start)
        user = staticmethod(user)
        answer = staticmethod(answer)
        result = staticmethod(result)
        ask = staticmethod(ask)
        large = LARGE

    return Make


@pytest.fixture
def rows(sql_url: str) -> Callable[[], dict[str, int]]:
    """Counts the rows of every table of ours that has some, but for the store's id."""

    def count() -> dict[str, int]:
        url = parse_store_url(sql_url)
        engine = create_engine(url)
        tables = MetaData()
        with engine.connect() as connection:
            names = [name for name in metadata.tables if name != "perdure_identity"]
            tables.reflect(connection, only=names)
            counts = {
                name.removeprefix("perdure_"): connection.scalar(
                    select(func.count()).select_from(table)
                )
                for name, table in tables.tables.items()
            }
        engine.dispose()
        return {name: number for name, number in counts.items() if number}

    return count
