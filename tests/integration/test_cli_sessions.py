"""The commands for whole sessions, in this process, on a store without Temporal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.creating import create_session, from_transcript
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.cli.main import run
from tests.integration.store_log.conftest import answer, begin_run

if TYPE_CHECKING:
    from pathlib import Path

END = NewEvent(ev.TURN_END, {"turn": 1, "reason": {"kind": "completed"}, "finishReason": "stop"})


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'perdure.db'}"

    async def fill() -> None:
        async with SqlStore(url) as store:
            for number, session_id in enumerate(("a", "b", "c")):
                trip = await begin_run(store, session_id)
                trip.time_ms = 1000 + number
                await trip.append(answer("Hello."), END, save=ev.FINISHED)
            words = [{"role": "user", "content": "Hi"}]
            await create_session(store, "new", agent="other", beginning=from_transcript(words))

    asyncio.run(fill())
    return url


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    code = run(words)
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def test_f4_pages_of_sessions(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sessions", "--store", url, "--json", "--agent", "trip", "--limit", "2")
    _, page, said = told(capsys, *words)
    assert [each["sessionId"] for each in page] == ["c", "b"]
    cursor = said.strip().rpartition(" ")[2]
    _, page, said = told(capsys, *words, "--after", cursor)
    assert ([each["sessionId"] for each in page], said) == (["a"], "")
    assert told(capsys, *words, "--after", "x")[0] == 2
    _, page, _ = told(capsys, "sessions", "--store", url, "--json", "--status", "finished")
    assert len(page) == 4


def test_f95_forks_of_the_log(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fork = ("fork", "a", "--store", url, "--json")
    _, made, _ = told(capsys, *fork)
    assert made == {"sessionId": "a.fork-1", "inheritedEventCount": 4}
    code, _, said = told(capsys, *fork, "--boundary", "1")
    assert (code, "[PERDURE_OPEN_TURN]" in said) == (2, True)
    code, _, said = told(capsys, *fork, "--boundary", "4")
    assert (code, "[PERDURE_INVALID_BOUNDARY]" in said) == (2, True)
    _, made, _ = told(capsys, *fork, "--boundary", "2", "--close-open-turn", "--as", "cut")
    assert made == {"sessionId": "cut", "inheritedEventCount": 3}
    assert told(capsys, *fork, "--as", "cut")[0] == 2
    assert told(capsys, *fork, "--boundary", "3", "--from-step", "1")[0] == 2
    assert told(capsys, *fork, "--append-input", "More")[0] == 2
    code, _, said = told(capsys, *fork, "--from-step", "9")
    assert (code, "boundary" in said) == (2, True)


def test_sub_agents_are_deleted_when_that_is_asked(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    children = ["a.sub-1.2.0", "a.sub-1.2.0.sub-9.2.1", "a.sub-1.2.1"]

    async def fill() -> None:
        async with SqlStore(url) as store:
            for session_id in (*children, "b.sub-1.2.0"):
                await begin_run(store, session_id)

    asyncio.run(fill())
    # Without Temporal, which would say whether a run goes on.
    delete = ("delete", "--store", url, "--yes", "--force")
    _, made, said = told(capsys, *delete, "a", "--sub-agents", "--json")
    assert made["subAgents"] == [children[1], children[0], children[2]]
    assert "Session a was deleted, with 3 sessions of its sub-agents." in said
    _, _, said = told(capsys, *delete, "b")
    assert "1 session of its sub-agents stay: b.sub-1.2.0" in said
    _, left, _ = told(capsys, "sessions", "--store", url, "--json")
    assert {each["sessionId"] for each in left} == {"b.sub-1.2.0", "c", "new"}


def test_f101_what_is_stored_can_always_be_had(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE perdure_sessions SET version = 99 WHERE session_id = 'a'")
        connection.execute("UPDATE perdure_events SET data = '{' WHERE log_id = 2 AND seq = 1")
    code, _, said = told(capsys, "show", "a", "--store", url)
    assert (code, "[PERDURE_SESSION_FORMAT_UNSUPPORTED]" in said) == (1, True)
    code, _, said = told(capsys, "events", "b", "--store", url)
    assert (code, "[PERDURE_SESSION_LOG_CORRUPT]" in said) == (1, True)
    for session_id in ("a", "b"):
        code, found, _ = told(capsys, "export", session_id, "--raw", "--store", url)
        assert (code, found["session"]["session_id"]) == (0, session_id)
        assert len(found["events"]) == 4
    assert told(capsys, "export", "a", "--raw", "--history", "--store", url)[0] == 2
    assert told(capsys, "export", "nope", "--raw", "--store", url)[0] == 2


def test_events_and_transcripts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, found, _ = told(capsys, "events", "a", "--store", url, "--json", "--limit", "3")
    assert [each["sequence"] for each in found] == [1, 2, 3]
    _, found, _ = told(capsys, "events", "a", "--store", url, "--json", "--view", "brain")
    assert [each["type"] for each in found][::3] == ["turn_started", "turn_ended"]
    run(["events", "a", "--store", url, "--after", "1", "--follow", "--limit", "2", "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]
    run(["events", "a", "--store", url, "--follow", "--limit", "1"])
    assert "turn/start" in capsys.readouterr().out
    _, found, _ = told(capsys, "transcript", "a", "--store", url, "--json")
    assert [each["content"] for each in found["messages"]] == ["Plan my trip", "Hello."]
    assert found["throughSequence"] == 4
    _, found, _ = told(capsys, "transcript", "a", "--store", url, "--json", "--through", "2")
    assert len(found["messages"]) == 1
    assert run(["transcript", "a", "--store", url]) == 0
    assert "Hello." in capsys.readouterr().out
    assert told(capsys, "transcript", "a", "--store", url, "--through", "5")[0] == 2
    assert told(capsys, "transcript", "nope", "--store", url)[0] == 2
    assert told(capsys, "events", "a", "--store", url, "--view", "other")[0] == 2
