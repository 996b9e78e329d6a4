"""Runs that are cut short: they end within seconds, keep what is finished and can go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.worker import Worker

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import ProviderError
from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.connection import connect_temporal
from perdure.testing import ScriptedModel, attempts, call
from perdure.worker import activities, tool_threads
from perdure.workflows.agent_workflow import AgentWorkflow
from tests.integration.runs.conftest import held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.activities.providers.base import ModelRequest, ModelResponse
    from perdure.run_handle import RunHandle
    from tests.integration.runs.conftest import Bench

NOT_RUN = "Tool call was cancelled before it ran because the run was aborted"


@tool(read_only=True)
def quick() -> str:
    return "quick"


@tool(read_only=True, needs_approval=True)
def gated() -> str:
    return "gated"


async def cancelled(bench: Bench, handle: RunHandle, *, times: int = 1) -> dict[str, Any]:
    """Cancel, and check what holds after every cancel; returns the checkpoint."""
    async with asyncio.timeout(15):
        for _ in range(times):
            await handle.cancel()
        result = await handle.result()
    assert result.finish_reason == "aborted"
    described = await bench.workflow(handle.session_id).describe()
    assert described.status is not None
    assert described.status.name == "CANCELED"
    record = await bench.record(handle.session_id)
    assert (record["status"], record["finishReason"]) == ("in-progress", "aborted")
    assert "approvalId" not in record
    assert_valid(record["messages"])
    return record


def results(record: dict[str, Any]) -> list[Any]:
    contents = [json.loads(m["content"]) for m in record["messages"] if m["role"] == "tool"]
    return [each["kind"] if isinstance(each, dict) else each for each in contents]


async def test_r12_during_a_model_call(bench: Bench, session: str) -> None:
    model = bench.model([call("quick")], "Unheard.", "Done.")
    gate = model.gate(2)
    async with bench.serving(Agent("agent", provider=model, tools=[quick])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        record = await cancelled(bench, handle)
        assert results(record) == ["quick"]
        gate.open()
        # The next input continues the run.
        model.turns[1] = "Done."
        result = await bench.client.execute("agent", "Shorter", session_id=session)
    assert (result.text, result.steps, result.finish_reason) == ("Done.", 2, "stop")
    roles = [message.role for message in result.messages]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


async def test_r1_r12_during_an_async_tool(bench: Bench, session: str) -> None:
    """What had its result keeps it; what ran may have happened; what had not begun did not run."""
    gate = bench.gate()
    noticed: list[str] = []

    @tool
    async def slow(ctx: ToolContext) -> str:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            noticed.append(ctx.tool_call_id)
            raise
        return "slow"

    calls = [call("quick"), call("slow"), call("quick"), call("gated"), call("quick")]
    model = bench.model(calls, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick, slow, gated])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.until(lambda: third_is_stored(bench))
        record = await cancelled(bench, handle)
        assert results(record) == ["quick", "cancelled", "quick", "not-run", "not-run"]
        assert noticed == ["call_1_2"]
        closed = json.loads(record["messages"][5]["content"])
        assert (closed["message"], closed["error"]) == (NOT_RUN, "ToolNotRunError")
        result = await bench.client.execute("agent", "Go on", session_id=session)
    assert result.text == "Done."
    assert result.steps == 2
    assert len(model.requests) == 2


async def third_is_stored(bench: Bench) -> bool:
    from perdure.checkpoint_bridge.tables.ledger import EffectId

    row = await bench.store.session(bench.session)
    assert row is not None
    (answer,) = await bench.events("assistant/message")
    effect = await bench.store.effect(EffectId(row.log_id, answer.seq, 2))
    return effect is not None and effect.done


async def test_during_a_plain_tool(bench: Bench, session: str) -> None:
    """A thread cannot be stopped; the run does not wait for it."""
    gate = bench.gate()

    @tool
    def stuck(ctx: ToolContext) -> str:
        gate.hold_thread()
        return "too late"

    model = bench.model([call("stuck")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[stuck])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        record = await cancelled(bench, handle)
        assert results(record) == ["unknown-outcome"]
        gate.open()
        result = await bench.client.execute("agent", "Go on", session_id=session)
    assert result.text == "Done."
    # What comes too late changes nothing.
    assert results(await bench.record()) == ["unknown-outcome"]


async def test_a_tool_that_ends_well_when_it_is_cancelled(bench: Bench, session: str) -> None:
    gate = bench.gate()

    @tool
    async def careful(ctx: ToolContext) -> str:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            return "rolled back"
        return "unreached"

    model = bench.model([call("careful")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[careful])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        record = await cancelled(bench, handle)
    assert results(record) == ["rolled back"]


async def test_a_call_whose_worker_dies_behind_a_cancel_is_not_made_again(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No heartbeats: the worker hears of no cancel, and counts as dead after a second.
    monkeypatch.setattr("perdure.activities.tool_call.heartbeats", contextlib.nullcontext)
    monkeypatch.setattr("perdure.workflows.tool_dispatch.HEARTBEAT", timedelta(seconds=1))
    gate, began = bench.gate(), []

    @tool(read_only=True)
    async def slow(ctx: ToolContext) -> str:
        began.append(ctx.idempotency_key)
        await gate.hold()
        return "slow"

    model = bench.model([call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        record = await cancelled(bench, handle)
    assert results(record) == ["unknown-outcome"]
    assert len(began) == 1


async def test_a_model_that_fails_behind_a_cancel_is_not_asked_again(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.activities.model_call.heartbeats", contextlib.nullcontext)

    @tool(local=True, read_only=True)
    def near() -> str:
        return "near"

    model = bench.model(attempts(ProviderError("busy", retryable=True, retry_after=0.01), "Done."))
    gate = model.gate(1)
    agent = Agent("agent", provider=model, tools=[near], on_crash="interrupt")
    async with bench.serving(agent):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await handle.cancel()
        await bench.until(lambda: is_told(bench))
        gate.open()
        await cancelled(bench, handle)
    assert len(model.requests) == 1


@pytest.mark.parametrize("below", [False, True])
async def test_nothing_begins_again_behind_a_cancel_that_no_worker_has_taken(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch, below: bool
) -> None:
    """As when a worker dies with the workflow task that has the cancel."""
    monkeypatch.setattr("perdure.activities.model_call.heartbeats", contextlib.nullcontext)
    monkeypatch.setattr("perdure.workflows.model_dispatch.HEARTBEAT", timedelta(seconds=1))
    asked, gate = [], bench.gate()

    class Hanging(ScriptedModel):
        async def generate(self, request: ModelRequest) -> ModelResponse:
            asked.append(request.session_id)
            await gate.hold()
            return await super().generate(request)

    helper = Agent("helper", provider=Hanging(["Unheard."]))
    lead = Agent(
        "lead", provider=bench.model([call("helper", {"input": "Look"})]), tools=[helper.as_tool()]
    )
    top = "lead" if below else "helper"
    async with effects_worker(bench, [lead, helper]):
        async with runs_worker(bench, [lead, helper]):
            handle = await bench.client.start(top, "Go", session_id=session)
            await gate.reached()
        await handle.cancel()
        await bench.until(lambda: was_lost_twice(bench, asked[0]))
        assert len(asked) == 1
        async with runs_worker(bench, [lead, helper]):
            assert (await handle.result()).finish_reason == "aborted"
    assert len(asked) == 1


def effects_worker(bench: Bench, agents: list[Agent]) -> Worker:
    """A worker that makes calls, and takes no workflow tasks."""
    found = activities(agents, bench.store, tool_threads())
    return Worker(bench.temporal, task_queue=bench.queue, activities=found)


@contextlib.asynccontextmanager
async def runs_worker(bench: Bench, agents: list[Agent]) -> AsyncIterator[None]:
    """A worker that takes workflow tasks, and makes no calls."""
    client = await connect_temporal(bench.temporal.service_client.config.target_host)
    found = activities(agents, bench.store, tool_threads())
    async with Worker(
        client,
        task_queue=bench.queue,
        workflows=[AgentWorkflow],
        activities=found,
        no_remote_activities=True,
    ):
        yield


async def was_lost_twice(bench: Bench, session_id: str) -> bool:
    """Whether Temporal has begun the session's model call for the third time."""
    found = await bench.workflow(session_id).describe()
    return any(each.attempt > 2 for each in found.raw_description.pending_activities)


async def is_told(bench: Bench) -> bool:
    """Whether the run has told its activity to stop."""
    (history,) = await bench.histories()
    attributes = "activity_task_cancel_requested_event_attributes"
    return any(event.HasField(attributes) for event in history.events)  # type: ignore[arg-type]


async def test_r12_while_an_approval_waits(bench: Bench, session: str) -> None:
    model = bench.model([call("quick"), call("gated"), call("quick")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick, gated])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        assert (await handle.result()).finish_reason == "awaiting-approval"
        record = await cancelled(bench, handle)
        assert results(record) == ["quick", "not-run", "not-run"]
        assert await bench.client.approvals.list() == []
        result = await bench.client.execute("agent", "Never mind", session_id=session)
    assert result.text == "Done."


async def test_before_a_worker_took_the_run(bench: Bench, session: str) -> None:
    """What somebody said is kept, and it is closed: nothing looks as if it still went on."""
    model = bench.model("Done.")
    handle = await bench.client.start("agent", "Go", session_id=session)
    await handle.cancel()
    async with bench.serving(Agent("agent", provider=model)):
        await cancelled(bench, handle)
        assert model.requests == []
        types = [event.type for event in await bench.events()]
        assert types == ["turn/start", "user/message", "turn/end"]
        result = await bench.client.execute("agent", "Go on", session_id=session)
    assert [message.role for message in result.messages] == ["user", "user", "assistant"]


async def test_while_the_store_is_away(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.workflows.agent_workflow.CLEANUP", timedelta(seconds=0.5))
    async with bench.serving(Agent("agent", provider=bench.model("Done."))), held(bench.store_url):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await bench.until(lambda: is_opening(bench))
        await handle.cancel()
        assert (await handle.result()).finish_reason == "aborted"


async def is_opening(bench: Bench) -> bool:
    return bool((await bench.state())["status"] == "opening")


async def test_r12_twice(bench: Bench, session: str) -> None:
    gate = bench.gate()

    @tool
    async def slow(ctx: ToolContext) -> None:
        await gate.hold()

    model = bench.model([call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await cancelled(bench, handle, times=2)
        await handle.cancel()
        assert len(await bench.events("turn/end")) == 1


async def test_a_finished_run(bench: Bench, session: str) -> None:
    async with bench.serving(Agent("agent", provider=bench.model("Done."))):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await handle.result()
        await handle.cancel()
        assert (await handle.result()).finish_reason == "stop"
    assert (await bench.record())["status"] == "finished"


async def test_before_the_run_has_begun(bench: Bench, session: str) -> None:
    """Nobody serves the queue yet; the cancel is there before the first task."""
    model = bench.model("Done.")
    handle = await bench.client.start("agent", "Go", session_id=session)
    await handle.cancel()
    async with bench.serving(Agent("agent", provider=model)):
        async with asyncio.timeout(15):
            result = await handle.result()
        assert result.finish_reason == "aborted"
        again = await bench.client.execute("agent", "Go", session_id=session)
    assert again.text == "Done."
    assert [message.text for message in again.messages] == ["Go", "Done."]


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.02, 0.04, 0.08])
async def test_r12_at_any_moment(bench: Bench, session: str, delay: float) -> None:
    """Whatever a cancel meets, also the instant of the end: one of two ends, both whole."""
    model = bench.model([call("quick"), call("quick")], "Done.", "More.", "Yet more.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await asyncio.sleep(delay)
        await handle.cancel()
        async with asyncio.timeout(15):
            result = await handle.result()
        assert result.finish_reason in ("aborted", "stop")
        again = await bench.client.execute("agent", "Go on", session_id=session)
        assert again.finish_reason == "stop"
    assert_valid((await bench.record())["messages"])
    assert len(await bench.results()) in (0, 2)


async def test_plain_cancel_of_the_workflow(bench: Bench, session: str) -> None:
    """As the Temporal UI and ``temporal workflow cancel`` do it."""
    model = bench.model("Unheard.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.workflow().cancel()
        async with asyncio.timeout(15):
            assert (await handle.result()).finish_reason == "aborted"
        gate.open()
    assert (await bench.record())["finishReason"] == "aborted"


async def test_queued_input_is_kept(bench: Bench, session: str) -> None:
    gate = bench.gate()

    @tool
    async def slow(ctx: ToolContext) -> None:
        await gate.hold()

    model = bench.model([call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.client.start("agent", "Also this", session_id=session)
        await cancelled(bench, handle)
        gate.open()
        result = await bench.client.resume(session)
    assert result is not None
    assert [message.text for message in result.messages if message.role == "user"] == [
        "Go",
        "Also this",
    ]


# -- terminated: nothing of ours could run, so whoever comes next closes what is open --------


@pytest.mark.parametrize("how", ["execute", "resume"])
async def test_terminated_during_a_tool(bench: Bench, session: str, how: str) -> None:
    gate = bench.gate()
    keys: list[tuple[str, int]] = []

    @tool
    async def slow(ctx: ToolContext) -> str:
        keys.append((ctx.idempotency_key, ctx.attempt))
        await gate.hold()
        return "slow"

    model = bench.model([call("quick"), call("slow")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick, slow])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.workflow().terminate()
        assert (await handle.result()).finish_reason == "aborted"
        gate.open()
        if how == "execute":
            result = await bench.client.execute("agent", "Go", session_id=session)
        else:
            resumed = await bench.client.resume(session)
            assert resumed is not None
            result = resumed
    assert (result.text, result.steps) == ("Done.", 2)
    assert results(await bench.record()) == ["quick", "slow"]
    assert {key for key, _ in keys} == {keys[0][0]}
    assert len(model.requests) == 2


async def test_terminated_during_a_model_call(bench: Bench, session: str) -> None:
    model = bench.model("Done.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.workflow().terminate()
        gate.open()
        result = await bench.client.resume(session)
    assert result is not None
    assert [message.text for message in result.messages] == ["Go", "Done."]


async def test_terminated_while_an_approval_waits(bench: Bench, session: str) -> None:
    """The decision reopens the session, and counts."""
    model = bench.model([call("quick"), call("gated"), call("quick")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick, gated])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        await bench.workflow().terminate()
        assert [each.id for each in await bench.client.approvals.list()] == [paused.approval_id]
        assert paused.approval_id is not None
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True, by="ann")
    assert result.text == "Done."
    assert results(await bench.record()) == ["quick", "gated", "quick"]
    (decided,) = await bench.events("approval/decided")
    assert decided.data["by"] == "ann"
    assert len(model.requests) == 2


async def test_a_decision_of_which_the_run_did_not_hear(bench: Bench, session: str) -> None:
    """It was stored, and the run was gone before it could act: the resume acts on it."""
    model = bench.model([call("gated")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[gated])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        await bench.workflow().terminate()
        assert paused.approval_id is not None
        await bench.store.decide(paused.approval_id, {"approved": False, "note": "no"})
        result = await bench.client.resume(session)
    assert result is not None
    assert result.text == "Done."
    assert results(await bench.record()) == ["rejected"]
