"""Runs that no worker serves: what is said about them is true, and they can be ended."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.cli import waiting
from perdure.cli.main import run
from perdure.client import connect
from perdure.testing import ScriptedModel, call
from perdure.worker import serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Perdure = Callable[..., tuple[int, str, str]]


@pytest.fixture
def session() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def perdure(
    store_url: str,
    temporal_address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Perdure:
    """Runs a command in this process; gives its exit code and output."""
    monkeypatch.setenv("PERDURE_STORE", store_url)
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_address)
    monkeypatch.setattr(waiting, "LOOK_EVERY", 0.2)
    monkeypatch.setattr(waiting, "QUIET", 0.05)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        return code, *capsys.readouterr()

    return command


async def _finish(store_url: str, session: str) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    async with SqlStore(store_url) as store:
        done = {"status": "finished", "finishReason": "stop", "stepIndex": 1, "agentId": "echo"}
        made = Checkpoint.from_json({"sessionId": session, "messages": messages, **done})
        await store.save(session, made)


def test_the_runs_own_queue_is_named(perdure: Perdure, store_url: str, session: str) -> None:
    asyncio.run(_finish(store_url, session))
    queue = f"nobody-{session}"
    start = ("run", "echo", "Hi", "--session-id", session, "--timeout", "1")
    code, _, errors = perdure(*start, "--task-queue", queue)
    assert (code, f"task queue '{queue}'" in errors) == (1, True)
    for command in (start, ("resume", session, "--timeout", "1")):
        code, _, errors = perdure(*command)
        assert code == 1
        assert f"No worker seems to serve task queue '{queue}'; waiting." in errors
        assert "task queue 'perdure'" not in errors
    code, _, errors = perdure("cancel", session, "--timeout", "1")
    assert f"End it without one: perdure cancel {session} --force\n" in errors
    code, _, errors = perdure("cancel", session, "--force")
    assert (code, f"Go on with it: perdure resume {session}" in errors) == (0, True)
    code, _, errors = perdure("resume", session)
    assert (code, "Nothing to resume" in errors) == (0, True)


async def _pause(store_url: str, address: str, session: str) -> str:
    @tool(needs_approval=True, idempotent=True)
    async def pay() -> str:
        return "paid"

    agent = Agent("payer", provider=ScriptedModel([[call("pay")]]), tools=[pay])
    async with (
        connect(store_url, temporal=address, task_queue=session) as client,
        serving(client.temporal, [agent], client.store, task_queue=session),
    ):
        paused = await client.execute("payer", "Pay", session_id=session)
    assert paused.approval_id is not None
    return paused.approval_id


def test_a_decision_that_no_worker_takes_in_time_is_not_sent(
    perdure: Perdure, store_url: str, temporal_address: str, session: str
) -> None:
    approval = asyncio.run(_pause(store_url, temporal_address, session))
    code, _, errors = perdure("approve", approval, "--timeout", "1", "--task-queue", session)
    assert (code, "it was not sent" in errors) == (1, True)
    assert approval in perdure("approvals")[1]


def test_a_run_that_never_began_is_found_and_ended(
    perdure: Perdure, store_url: str, session: str
) -> None:
    queue = ("--task-queue", f"nobody-{session}")
    assert perdure("run", "echo", "Hi", "--session-id", session, "--no-wait", *queue)[0] == 0
    code, _, errors = perdure("resume", session, "--timeout", "1")
    assert (code, "No end after 1 s" in errors) == (1, True)
    code, out, errors = perdure("cancel", session, "--force", "--json")
    assert (code, f'"sessionId":"{session}"' in out) == (0, True)
    assert "It had not begun" in errors
    assert "There is no store" in perdure("cancel", session)[2]
    asyncio.run(_finish(store_url, f"{session}-2"))
    code, _, errors = perdure("show", session)
    assert (code, "that no worker has taken yet" in errors) == (2, True)


def test_a_run_makes_no_store_before_its_worker(
    perdure: Perdure, tmp_path: Path, session: str
) -> None:
    elsewhere = ("--store", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    start = ("run", "echo", "Hi", "--session-id", session, "--timeout", "0.5")
    assert perdure(*start, "--task-queue", f"nobody-{session}", *elsewhere)[0] == 1
    assert not (tmp_path / "elsewhere.db").exists()
