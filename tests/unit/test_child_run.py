"""A cancel that comes while a sub-agent is about to start; see test_children_cut_short.py, too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.workflows.child_run import run_child


class Server:
    """Starts a child when it is told to; the child ends when it is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = asyncio.Event()
        self.starts = asyncio.get_running_loop().create_future()
        self.told = False
        monkeypatch.setattr(workflow, "start_child_workflow", self._start)

    async def _start(self, *_: Any, **__: Any) -> asyncio.Task[None]:
        self.asked.set()
        await self.starts
        return asyncio.ensure_future(self._child())

    async def _child(self) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.told = True
            raise


async def test_a_child_that_is_about_to_start_is_waited_for_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(monkeypatch)
    running = asyncio.create_task(run_child({"agent": "helper"}, id="below"))
    await server.asked.wait()
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=0.05)
    assert not done
    server.starts.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert server.told


async def test_a_child_that_does_not_start_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(monkeypatch)
    running = asyncio.create_task(run_child({"agent": "helper"}, id="below"))
    await server.asked.wait()
    running.cancel()
    await asyncio.sleep(0)
    server.starts.set_exception(WorkflowAlreadyStartedError("below", "AgentWorkflow"))
    with pytest.raises(WorkflowAlreadyStartedError):
        await running
