"""Turns that end before the model's answer: limits, lost workers, providers asked once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ToolContext, tool
from perdure.activities import model_call
from perdure.checkpoint_bridge.errors import (
    LimitReachedError,
    ProviderError,
    RunFailedError,
    TurnInterruptedError,
)
from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.options import Limits
from perdure.testing import attempts, call
from perdure.worker import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.runs.conftest import Bench

BUSY = ProviderError("the provider is away", status=503, retryable=True)


@tool(read_only=True)
def look() -> str:
    return "seen"


@contextlib.asynccontextmanager
async def without_patience(bench: Bench, agent: Agent) -> AsyncIterator[None]:
    """A worker whose end is as sudden as a kill: it waits for nothing that is in flight."""
    async with (
        SqlStore(bench.store_url) as store,
        serving(
            bench.temporal,
            [agent],
            store,
            task_queue=bench.queue,
            graceful_shutdown_timeout=timedelta(0),
        ),
    ):
        yield


async def kinds(bench: Bench) -> list[str]:
    return [json.loads(message["content"])["kind"] for message in await bench.results()]


async def reasons(bench: Bench) -> list[dict[str, Any]]:
    return [event.data["reason"] for event in await bench.events("turn/end")]


# -- limits ----------------------------------------------------------------------------------


async def test_f49_model_calls_of_a_turn(bench: Bench, session: str) -> None:
    model = bench.model(*[[call("look")]] * 5)
    limits = Limits(max_model_calls=2)
    async with bench.serving(Agent("agent", provider=model, tools=[look], limits=limits)):
        with pytest.raises(LimitReachedError, match="no more model calls than 2") as caught:
            await bench.client.execute("agent", "Go", session_id=session)
        assert caught.value.code == "model_call_limit"
        assert len(model.requests) == 2
        (reason,) = await reasons(bench)
        assert (reason["kind"], reason["error"]["code"]) == ("error", "model_call_limit")
        # The next turn has as many; max_steps, which finishes a run, counts on.
        with pytest.raises(LimitReachedError):
            await bench.client.resume(session)
    assert len(model.requests) == 4
    assert (await bench.record())["status"] == "in-progress"


async def test_f49_the_time_of_a_turn(bench: Bench, session: str) -> None:
    gate, cancelled = bench.gate(), []

    @tool(read_only=True)
    async def slow(ctx: ToolContext) -> None:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            cancelled.append(ctx.tool_call_id)
            raise

    model = bench.model([call("look"), call("slow")], "Done.")
    limits = Limits(max_turn_seconds=0.5)
    async with bench.serving(Agent("agent", provider=model, tools=[look, slow], limits=limits)):
        with pytest.raises(LimitReachedError, match="max_turn_seconds") as caught:
            await bench.client.execute("agent", "Go", session_id=session)
        assert caught.value.code == "turn_time_limit"
        assert cancelled == ["call_1_2"]
        record = await bench.record()
        assert_valid(record["messages"])
        assert json.loads(record["messages"][3]["content"])["kind"] == "cancelled"
        result = await bench.client.execute("agent", "Go on", session_id=session)
    assert result.text == "Done."
    assert [reason["kind"] for reason in await reasons(bench)] == ["error", "completed"]


async def test_f49_waiting_for_a_person_takes_none_of_a_turns_time(
    bench: Bench, session: str
) -> None:
    @tool(needs_approval=True)
    async def pay(ctx: ToolContext) -> str:
        return "paid"

    model = bench.model([call("pay")], "Done.")
    limits = Limits(max_turn_seconds=1.0)
    async with bench.serving(Agent("agent", provider=model, tools=[pay], limits=limits)):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        await asyncio.sleep(1.2)
        assert paused.approval_id is not None
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True)
    assert result.text == "Done."


async def test_f49_the_deadline_survives_continue_as_new(
    shorten: Any, bench: Bench, session: str
) -> None:
    shorten(20)
    model = bench.model(*[[call("look")]] * 200)
    limits = Limits(max_turn_seconds=1.0)
    agent = Agent("agent", provider=model, tools=[look], limits=limits, max_steps=200)
    async with bench.serving(agent):
        with pytest.raises(LimitReachedError, match="max_turn_seconds"):
            await bench.client.execute("agent", "Go", session_id=session)
    assert len(await bench.histories()) > 1


async def test_f49_the_time_of_a_tool(bench: Bench, session: str) -> None:
    gate = bench.gate()

    @tool(read_only=True, timeout=60)
    async def slow(ctx: ToolContext) -> None:
        await gate.hold()

    model = bench.model([call("slow")], "Done.")
    limits = Limits(max_tool_seconds=0.05)
    async with bench.serving(Agent("agent", provider=model, tools=[slow], limits=limits)):
        await bench.client.execute("agent", "Go", session_id=session)
    assert await kinds(bench) == ["timeout"]


# -- lost workers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_crash", "reason"), [("interrupt", {"kind": "interrupted"}), ("fail", {"kind": "error"})]
)
async def test_f68_a_turn_that_lost_its_worker_ends(
    bench: Bench, session: str, on_crash: Any, reason: dict[str, Any]
) -> None:
    gate, runs = bench.gate(), []

    @tool
    async def pay(ctx: ToolContext) -> None:
        runs.append(ctx.idempotency_key)
        await gate.hold()

    @tool(needs_approval=True)
    async def gated(ctx: ToolContext) -> str:
        return "gated"

    model = bench.model([call("look"), call("pay"), call("gated")], "Noted.")
    agent = Agent(
        "agent",
        provider=model,
        tools=[look, pay, gated],
        recovery="ambiguous",
        on_crash=on_crash,
    )
    async with without_patience(bench, agent):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
    async with bench.serving(agent):
        with pytest.raises(TurnInterruptedError) as caught:
            await handle.result()
        assert caught.value.code == "interrupted"
        (ended,) = await reasons(bench)
        assert ended["kind"] == reason["kind"]
        if on_crash == "fail":
            assert ended["error"]["code"] == "interrupted"
        record = await bench.record()
        assert_valid(record["messages"])
        closed = [json.loads(message["content"]) for message in record["messages"][3:5]]
        assert [error["code"] for error in closed] == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]
        result = await bench.client.execute("agent", "What now?", session_id=session)
    assert result.text == "Noted."
    assert len(runs) == 1


@pytest.mark.parametrize("on_crash", ["interrupt", "fail"])
async def test_f68_a_turn_that_lost_its_worker_in_a_model_call_ends(
    bench: Bench, session: str, on_crash: Any
) -> None:
    model = bench.model("Done.")
    gate = model.gate(1)
    agent = Agent("agent", provider=model, on_crash=on_crash)
    async with without_patience(bench, agent):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
    async with bench.serving(agent):
        with pytest.raises(TurnInterruptedError):
            await handle.result()
    assert model.requests == []


async def test_f25_a_failing_provider_is_asked_once(bench: Bench, session: str) -> None:
    model = bench.model(BUSY)
    async with bench.serving(Agent("agent", provider=model, model_recovery="once")):
        with pytest.raises(ProviderError, match="away"):
            await bench.client.execute("agent", "Go", session_id=session)
    assert len(model.requests) == 1
    (attempt,) = await bench.events("assistant/attempt")
    assert "away" in attempt.data["error"]["message"]
    (reason,) = await reasons(bench)
    assert reason["error"]["retryable"] is True


async def test_f25_a_model_call_that_was_sent_is_not_sent_again(bench: Bench, session: str) -> None:
    model = bench.model("Done.")
    gate = model.gate(1)
    agent = Agent("agent", provider=model, model_recovery="once")
    async with without_patience(bench, agent):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
    gate.open()
    async with bench.serving(agent):
        with pytest.raises(RunFailedError, match="its outcome is unknown") as caught:
            await handle.result()
    assert caught.value.code == "MODEL_OUTCOME_UNKNOWN"
    assert model.requests == []  # the one that was sent never came to its answer
    (attempt,) = await bench.events("assistant/attempt")
    assert attempt.data["error"]["code"] == "MODEL_OUTCOME_UNKNOWN"


async def test_c5_a_model_call_that_was_lost_with_its_run_is_in_the_log(
    bench: Bench, session: str
) -> None:
    model = bench.model("Done.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model, model_recovery="once")):
        await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.workflow().terminate()
        handle = await bench.client.start("agent", [], session_id=session)  # somebody decides to
        await handle.opened()
        gate.open()
        assert (await handle.result()).text == "Done."
    (attempt,) = await bench.events("assistant/attempt")
    assert attempt.data["error"]["code"] == "MODEL_OUTCOME_UNKNOWN"


async def test_c5_a_failing_provider_is_asked_again_by_the_run_itself(
    bench: Bench, session: str
) -> None:
    """Where deaths of workers end the turn, failures of the provider are retried all the same."""
    model = bench.model(attempts(BUSY, "Done."))
    agent = Agent("agent", provider=model, on_crash="fail")
    async with bench.serving(agent):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert result.text == "Done."
    assert len(model.requests) == 2


async def test_deaths_of_workers_are_not_the_providers_failures(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider may fail once here; a worker dies besides, and the answer still counts."""
    monkeypatch.setattr(model_call, "PROVIDER_TRIES", 2)
    held = [bench.gate()]
    model = bench.model(attempts(BUSY, "Done."))
    generate = model.generate

    async def dying(request: Any) -> Any:
        for gate in held:
            if not gate.is_reached:
                await gate.hold()
        return await generate(request)

    monkeypatch.setattr(model, "generate", dying)
    agent = Agent("agent", provider=model)
    handle = await bench.client.start("agent", "Go", session_id=session)
    for gate in held:
        async with without_patience(bench, agent):
            await gate.reached()
    async with bench.serving(agent):
        assert (await handle.result()).text == "Done."
    assert len(await bench.events("assistant/attempt")) == 1


# -- which tools may run again ---------------------------------------------------------------


def test_c3_the_recovery_of_a_tool_is_its_own_or_its_agents() -> None:
    @tool
    async def plain(ctx: ToolContext) -> None: ...

    @tool(idempotent=True)
    async def idempotent() -> None: ...

    @tool(recovery="ask")
    async def asking(ctx: ToolContext) -> None: ...

    tools = [plain, idempotent, look, asking]

    def recoveries(**options: Any) -> list[str]:
        agent = Agent("agent", model="openai/m", tools=tools, **options)
        return [agent.recovery_of(each) for each in tools]

    assert recoveries() == ["rerun", "rerun", "rerun", "ask"]
    for profile in ("dsh", "brain", "faden"):
        assert recoveries(profile=profile) == ["ambiguous", "rerun", "rerun", "ask"]
    assert recoveries(profile="brain", recovery="rerun") == ["rerun", "rerun", "rerun", "ask"]
