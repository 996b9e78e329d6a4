"""Stores to mirror to, and ways to take them away for a while."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint_bridge import (
    Checkpoint,
    LoushoFileStore,
    LoushoSqliteStore,
    SqlStore,
)
from perdure.checkpoint_bridge.mirrors.mirror import Mirror, mirroring

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LONG = 20.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(LONG):
        while not await condition():  # noqa: ASYNC110 - a store tells nobody
            await asyncio.sleep(0.01)


class OwnStore:
    """A user's own three methods, which can be made to fail."""

    def __init__(self, name: str = "own") -> None:
        self.name = name
        self.texts: dict[str, str] = {}
        self.writes: list[tuple[str, int]] = []
        self.calls = 0
        self.error: Exception | None = None

    def _call(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    async def save(self, session_id: str, checkpoint: Checkpoint) -> None:
        self._call()
        self.texts[session_id] = json.dumps(checkpoint.to_json())
        self.writes.append((session_id, checkpoint.step_index))
        checkpoint.raw["messages"] = "spoilt"

    async def load(self, session_id: str) -> Checkpoint | None:
        self._call()
        text = self.texts.get(session_id)
        return None if text is None else Checkpoint.from_json(json.loads(text))

    async def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        self._call()
        self.texts.pop(session_id, None)


def record(session_id: str, step: int, **more: Any) -> Checkpoint:
    """A checkpoint of a conversation that grows by a message a step."""
    messages = [{"role": "user", "content": "Plan my trip"}]
    messages += [{"role": "assistant", "content": f"step {n} é\ud83d"} for n in range(step)]
    value = {
        "agentId": "trip",
        "sessionId": session_id,
        "stepIndex": step,
        "messages": messages,
        "toolCalls": [],
        "usage": {"inputTokens": step, "outputTokens": 1, "totalTokens": step + 1},
        "finishReason": "stop",
        "status": "in-progress",
        "theirs": {"kept": [1, 2.5, None]},
    }
    return Checkpoint.from_json({**value, **more})


def content(store: Any) -> Any:
    """All that a store's files hold, to compare two of them byte for byte."""
    if isinstance(store, LoushoSqliteStore):
        with closing(sqlite3.connect(store.path)) as connection:
            return {
                table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
                for table in ("checkpoints", "checkpoint_history", "approvals")
            }
    folder = Path(store.directory)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def texts(entries: Any) -> list[str]:
    """Entries as texts, to compare them exactly."""
    return [json.dumps(entry.to_json(), sort_keys=True) for entry in entries]


@contextlib.asynccontextmanager
async def up_to_date(source: SqlStore, *targets: Any) -> AsyncIterator[list[Mirror]]:
    """Mirror during the block; at its end everything is there."""
    async with mirroring(source, targets) as mirrors:
        yield mirrors
        for mirror in mirrors:
            await until(lambda mirror=mirror: _is_done(mirror))  # type: ignore[misc]


async def _is_done(mirror: Mirror) -> bool:
    return await mirror.lag() == 0


@pytest.fixture
async def source(store_url: str) -> AsyncIterator[SqlStore]:
    """The store whose saves are mirrored."""
    async with SqlStore(store_url) as store:
        yield store


@pytest.fixture(params=["lousho-sqlite", "lousho-files"])
def make_target(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Any]:
    """Makes stores of one of the TypeScript SDK's forms, by a name."""

    def make(name: str) -> Any:
        if request.param == "lousho-sqlite":
            return LoushoSqliteStore(tmp_path / f"{name}.db", busy_seconds=0.1)
        return LoushoFileStore(tmp_path / name)

    return make
