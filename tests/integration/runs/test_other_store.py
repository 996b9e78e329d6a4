"""A client and a worker that were given different stores, and decisions without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure.client_approvals
import perdure.run_handle
from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.client import connect
from perdure.testing import call

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.runs.conftest import Bench


@tool(needs_approval=True)
async def charge(amount: int, ctx: ToolContext) -> str:
    return f"charged {amount} {ctx.attempt}"


async def test_an_end_in_another_store_is_said(bench: Bench, tmp_path: Path) -> None:
    agent = Agent("agent", provider=bench.model("Hello."))
    async with (
        bench.serving(agent),
        connect(
            f"sqlite:///{tmp_path / 'other.db'}", temporal=bench.temporal, task_queue=bench.queue
        ) as stranger,
    ):
        with pytest.raises(ConfigurationError, match="its worker uses another store"):
            await stranger.execute("agent", "Hi", session_id=bench.session)


async def test_a_pause_in_another_store_is_said(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perdure.run_handle, "_STORE_AFTER", 0.5)
    agent = Agent(
        "agent", provider=bench.model([call("charge", {"amount": 1})], "Done."), tools=[charge]
    )
    async with (
        bench.serving(agent),
        connect(
            f"sqlite:///{tmp_path / 'other.db'}", temporal=bench.temporal, task_queue=bench.queue
        ) as stranger,
    ):
        with pytest.raises(ConfigurationError, match="its worker uses another store"):
            await stranger.execute("agent", "Hi", session_id=bench.session)


async def test_a_decision_without_a_worker_waits_for_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perdure.client_approvals, "_UPDATE_SECONDS", 0.5)
    agent = Agent(
        "agent", provider=bench.model([call("charge", {"amount": 1})], "Done."), tools=[charge]
    )
    async with bench.serving(agent):
        paused = await bench.client.execute("agent", "Hi", session_id=bench.session)
    assert paused.approval_id is not None
    handle = await bench.client.approvals.decide(paused.approval_id, approved=True, by="ana")
    async with bench.serving(agent):
        result = await handle.result(after_approval=paused.approval_id)
    assert result.text == "Done."
    (decided,) = await bench.events("approval/decided")
    assert decided.data["by"] == "ana"
