"""``perdure prune``, in this process."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from perdure.checkpoint_bridge import Checkpoint, SqlStore
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.cli.main import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAY = 24 * 60 * 60 * 1000


async def _fill(path: Path) -> None:
    async with SqlStore(f"sqlite:///{path}") as store:
        for session_id, days in (("old", 40), ("older", 50), ("young", 1)):
            messages = [{"role": "user", "content": session_id * 50_000}]
            facts = {"agentId": "trip", "sessionId": session_id, "stepIndex": 1}
            record = Checkpoint.from_json({**facts, "messages": messages, "status": "finished"})
            await store.save_at(session_id, record, now_ms() - days * DAY)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "perdure.db"
    monkeypatch.setenv("PERDURE_STORE", f"sqlite:///{path}")
    asyncio.run(_fill(path))
    return path


@pytest.fixture
def left(capsys: pytest.CaptureFixture[str]) -> Callable[[], set[str]]:
    def sessions() -> set[str]:
        capsys.readouterr()
        assert run(["sessions", "--json"]) == 0
        return {each["sessionId"] for each in json.loads(capsys.readouterr().out)}

    return sessions


def test_old_sessions_go(
    store: Path, left: Callable[[], set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", "--older-than", "30d", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == ["older", "old"]
    assert "2 sessions, 0 saves and 0 unused values would go." in shown.err
    assert left() == {"old", "older", "young"}
    size = store.stat().st_size
    assert run(["prune", "--older-than", "30d", "--yes", "--vacuum", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"sessions": ["older", "old"], "saves": 0, "contents": 0, "dryRun": False}
    assert left() == {"young"}
    assert store.stat().st_size < size / 2
    # Again: nothing is left to do, so nobody is asked.
    assert run(["prune", "--older-than", "30d"]) == 0


def test_the_newest_stay(store: Path, left: Callable[[], set[str]]) -> None:
    assert run(["prune", "--keep-latest", "2", "--agent", "trip", "-y"]) == 0
    assert left() == {"old", "young"}


def test_nothing_goes_unasked(
    store: Path, left: Callable[[], set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", "--keep-latest", "0"]) == 2
    assert "3 sessions, 0 saves and 0 unused values would go" in capsys.readouterr().err
    assert left() == {"old", "older", "young"}


@pytest.mark.parametrize("age", ["30", "d", "30y", "-1d", ""])
def test_what_is_no_age(store: Path, age: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", f"--older-than={age}", "--yes"]) == 2
    assert "--older-than is a number with" in capsys.readouterr().err
