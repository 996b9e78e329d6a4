"""Who waits for a run does not notice that Temporal is restarted meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from perdure import Agent, connect, run_handle
from perdure.checkpoint_bridge.errors import ConfigurationError, TemporalUnavailableError

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


async def test_who_waits_outlasts_a_temporal_that_is_away(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = WorkflowHandle.result
    away = [RPCStatusCode.UNKNOWN, RPCStatusCode.UNAVAILABLE]

    async def result(handle: WorkflowHandle[Any, Any]) -> Any:
        if away:
            raise RPCError("transport error", away.pop(), b"")
        return await answer(handle)

    monkeypatch.setattr(WorkflowHandle, "result", result)
    monkeypatch.setattr(run_handle, "_LOOK_EVERY", 0.01)
    async with bench.serving(Agent("agent", provider=bench.model("One."))):
        ended = await bench.client.execute("agent", "a", session_id=session)
    assert (ended.text, away) == ("One.", [])


@pytest.mark.parametrize(
    ("status", "patience"), [(RPCStatusCode.UNAVAILABLE, -1.0), (RPCStatusCode.NOT_FOUND, 60.0)]
)
async def test_who_waits_is_told_when_it_lasts(
    bench: Bench,
    session: str,
    monkeypatch: pytest.MonkeyPatch,
    status: RPCStatusCode,
    patience: float,
) -> None:
    async def result(_handle: WorkflowHandle[Any, Any]) -> Any:
        raise RPCError("gone", status, b"")

    model = bench.model("One.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        handle = await bench.client.start("agent", "a", session_id=session)
        with monkeypatch.context() as patched:
            patched.setattr(WorkflowHandle, "result", result)
            patched.setattr(run_handle, "_PATIENCE", patience)
            with pytest.raises(TemporalUnavailableError, match="did not answer: gone"):
                await handle.result()
        gate.open()
        assert (await handle.result()).text == "One."


async def test_what_temporal_refuses_is_no_outage(bench: Bench) -> None:
    queue = "q" * 2_000
    async with connect(bench.store_url, temporal=bench.temporal, task_queue=queue) as client:
        with pytest.raises(ConfigurationError, match=r"refused .*length exceeds"):
            await client.start("agent", "Go", session_id=bench.session)
