"""Runs that nobody can end in good order, and a store that takes nothing for a while."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from temporalio.common import RetryPolicy

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.tables import backends
from perdure.client import connect
from perdure.dev_server import DevServer
from perdure.testing import call
from perdure.worker import serving

if TYPE_CHECKING:
    import pytest

    from tests.integration.runs.conftest import Bench


async def test_a_session_whose_temporal_is_lost_goes_on(bench: Bench, session: str) -> None:
    """Nothing knows of the run any more but the store; also its approval can be decided."""

    @tool(needs_approval=True)
    async def pay(ctx: ToolContext) -> str:
        return "paid"

    model = bench.model([call("pay")], "Done.")
    agent = Agent("agent", provider=model, tools=[pay])
    async with (
        DevServer(headless=True) as server,
        connect(bench.store_url, temporal=server.address, task_queue=bench.queue) as client,
        serving(client.temporal, [agent], client.store, task_queue=bench.queue),
    ):
        paused = await client.execute("agent", "Go", session_id=session)
    async with bench.serving(agent):
        (pending,) = await bench.client.approvals.list(session)
        assert pending.id == paused.approval_id
        result = await bench.client.approvals.resolve(pending.id, approved=True, by="ann")
    assert result.text == "Done."
    assert len(model.requests) == 2
    ends = [event.data["reason"]["kind"] for event in await bench.events("turn/end")]
    assert ends == ["interrupted", "completed"]


async def test_a_run_that_timed_out_goes_on(bench: Bench, session: str) -> None:
    """A limit that whoever started the workflow has set; ours has none."""
    gate = bench.gate()

    @tool
    async def slow(ctx: ToolContext) -> str:
        await gate.hold()
        return "slow"

    model = bench.model([call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow])):
        await bench.temporal.start_workflow(
            "AgentWorkflow",
            {"agent": "agent", "input": "Go"},
            id=session,
            task_queue=bench.queue,
            execution_timeout=timedelta(seconds=1),
        )
        await gate.reached()
        running = await bench.client.running(session)
        assert running is not None
        assert (await running.result()).finish_reason == "aborted"
        gate.open()
        result = await bench.client.resume(session)
    assert result is not None
    assert (result.text, len(model.requests)) == ("Done.", 2)


async def test_r2_a_workflow_retry_policy_repeats_no_effect(bench: Bench, session: str) -> None:
    """Temporal starts such a run again by itself: it goes on where it was, with the same keys."""
    gate = bench.gate()
    keys: list[tuple[str, int]] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        keys.append((ctx.idempotency_key, ctx.attempt))
        if len(keys) == 2:
            await gate.hold()
        return "paid"

    @tool
    async def look(ctx: ToolContext) -> str:
        keys.append((ctx.idempotency_key, ctx.attempt))
        return "seen"

    model = bench.model([call("look")], [call("pay")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[pay, look])):
        handle = await bench.temporal.start_workflow(
            "AgentWorkflow",
            {"agent": "agent", "input": "Go"},
            id=session,
            task_queue=bench.queue,
            run_timeout=timedelta(seconds=2),
            retry_policy=RetryPolicy(maximum_attempts=3),
        )
        outcome = await handle.result()
        gate.open()
    assert outcome["text"] == "Done."
    assert len(model.requests) == 3
    assert [attempt for _, attempt in keys] == [1, 1, 2]
    assert len({key for key, _ in keys}) == 2


async def test_a_full_disk_is_waited_for(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the tool did is not lost and not done again; the run goes on when there is room."""
    full = False
    real = backends._sqlite_engine

    def limited(*given: Any, **options: Any) -> Any:
        engine = real(*given, **options)

        @event.listens_for(engine, "begin")
        def on_begin(connection: Any) -> None:
            pages = 1 if full else 2**30
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        return engine

    monkeypatch.setattr(backends, "_sqlite_engine", limited)
    gate = bench.gate()
    ran: list[str] = []

    @tool
    async def write(ctx: ToolContext) -> str:
        ran.append(ctx.idempotency_key)
        await gate.hold()
        return "w" * 50_000

    model = bench.model([call("write")], "Done.")
    with caplog.at_level(logging.WARNING):
        async with bench.serving(Agent("agent", provider=model, tools=[write])):
            handle = await bench.client.start("agent", "Go", session_id=session)
            await gate.reached()
            full = True
            gate.open()
            await bench.until(lambda: caplog.text.count("database or disk is full") > 1)
            full = False
            result = await handle.result()
    assert result.text == "Done."
    assert len(ran) == 1
    assert len((await bench.results())[0]["content"]) == 50_002
