"""Every store that there is, for the tests that hold for all of them."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint_bridge import (
    Checkpoint,
    CheckpointStore,
    HistoryEntry,
    KeyValueStore,
    LoushoFileStore,
    LoushoSqliteStore,
    MemoryStore,
    SqlStore,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

WITH_HISTORY = ("memory", "sqlite", "postgres", "lousho-sqlite", "lousho-files", "key-value", "own")
ALL = (*WITH_HISTORY, "three-methods")


class ThreeMethods:
    """The least that a user may bring: a dictionary of JSON texts."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    async def save(self, session_id: str, checkpoint: Checkpoint) -> None:
        self.texts[session_id] = json.dumps(checkpoint.to_json())

    async def load(self, session_id: str) -> Checkpoint | None:
        text = self.texts.get(session_id)
        return None if text is None else Checkpoint.from_json(json.loads(text))

    async def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        self.texts.pop(session_id, None)


class OwnHistory(ThreeMethods):
    """A user's store that keeps a history too, with entries as plain JSON."""

    def __init__(self, texts: dict[str, str], history_limit: int) -> None:
        super().__init__(texts)
        self.limit = history_limit

    async def save(self, session_id: str, checkpoint: Checkpoint) -> None:
        await super().save(session_id, checkpoint)
        ring = json.loads(self.texts.get(f"{session_id}/history", "[]"))
        record = checkpoint.to_json()
        entry = {
            "step": record.get("stepIndex", 0),
            "savedAt": "2026-01-02T03:04:05.678Z",
            "status": record.get("status", "in-progress"),
            "checkpoint": record,
        }
        kept = [*ring, entry][-self.limit :] if self.limit else []
        self.texts[f"{session_id}/history"] = json.dumps(kept)

    async def history(self, session_id: str, limit: int | None = None) -> list[HistoryEntry]:
        ring = json.loads(self.texts.get(f"{session_id}/history", "[]"))[::-1]
        return [HistoryEntry.from_json(entry) for entry in ring[:limit]]

    async def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        await super().delete(session_id)
        if not keep_history:
            self.texts.pop(f"{session_id}/history", None)


@dataclass
class Stores:
    """Opens stores of one kind, all over the same data (in memory: each has its own)."""

    kind: str
    url: str
    folder: Path
    texts: dict[str, str] = field(default_factory=dict)
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def open(self, history_limit: Any = 50) -> Any:
        store: Any
        match self.kind:
            case "memory":
                store = MemoryStore(history_limit=history_limit)
            case "sqlite" | "postgres":
                store = SqlStore(self.url, history_limit=history_limit)
            case "lousho-sqlite":
                store = LoushoSqliteStore(self.folder / "lousho.db", history_limit)
            case "lousho-files":
                store = LoushoFileStore(self.folder / "lousho", history_limit)
            case "key-value":
                store = key_value_store(self.texts, history_limit)
            case "own":
                store = OwnHistory(self.texts, history_limit)
            case _:
                store = ThreeMethods(self.texts)
        if hasattr(store, "close"):
            self.stack.push_async_callback(store.close)
        return store


def key_value_store(texts: dict[str, str], history_limit: int = 50) -> KeyValueStore:
    async def get(key: str) -> str | None:
        return texts.get(key)

    async def put(key: str, text: str) -> None:
        texts[key] = text

    async def delete(key: str) -> None:
        texts.pop(key, None)

    return KeyValueStore(get, put, delete, prefix="agents:", history_limit=history_limit)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """What is different for each kind; PostgreSQL is started only for tests that need it."""
    kind = request.param
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    return Stores(kind, url, tmp_path)


@pytest.fixture
async def stores(place: Stores) -> AsyncIterator[Stores]:
    """Opens stores of one kind; they are closed when the test has ended."""
    async with place.stack:
        yield place


@pytest.fixture
async def store(stores: Stores) -> CheckpointStore:
    """A store with nothing in it."""
    opened: CheckpointStore = await stores.open()
    return opened


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for every store, unless it says for which."""
    chosen = any(
        mark.args[0] == "place" for mark in metafunc.definition.iter_markers("parametrize")
    )
    if "place" in metafunc.fixturenames and not chosen:
        kinds = WITH_HISTORY if "keeps_history" in metafunc.fixturenames else ALL
        metafunc.parametrize("place", kinds, indirect=True)


@pytest.fixture
def keeps_history() -> None:
    """Asked for by tests of what only a store with a history does."""


@pytest.fixture
def record() -> Callable[..., Checkpoint]:
    """Makes checkpoints: ``record("trip", step=2, businessState=None)``."""
    return make_record


def make_record(session_id: str, step: int = 1, **more: Any) -> Checkpoint:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Plan my trip"}]
    for number in range(1, step + 1):
        function = {"name": "weather", "arguments": f'{{"day": {number}}}'}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "toolCalls": [call]})
        messages.append(
            {
                "role": "tool",
                "content": '{"forecast":"sun"}',
                "name": "weather",
                "toolName": "weather",
                "toolCallId": f"c{number}",
            }
        )
    calls = [call for message in messages for call in message.get("toolCalls", [])]
    value = {
        "agentId": "trip",
        "sessionId": session_id,
        "stepIndex": step,
        "messages": messages,
        "toolCalls": copy.deepcopy(calls),
        "usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10, "modelCalls": step},
        "stepUsage": [],
        "finishReason": "tool_calls",
        "status": "in-progress",
    }
    return Checkpoint.from_json({**value, **more})


@pytest.fixture
def text() -> Callable[[Any], str]:
    """A record as text, to compare exactly: 1 is not true, and 1.0 is not 1."""
    return exact


def exact(record: Any) -> str:
    value = record.to_json() if hasattr(record, "to_json") else record
    return json.dumps(value, sort_keys=True)


@pytest.fixture
def spoil() -> Callable[[Any], None]:
    """Changes everything within a record that was given to a store or came from one."""

    def change(value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                change(item)
            value["spoilt"] = True
        elif isinstance(value, list):
            for item in value:
                change(item)
            value.append("spoilt")

    return lambda record: change(record.raw)
