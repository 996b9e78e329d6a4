"""An answer that a provider gave is paid for: it is used, or at least in the bill."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.common import RetryPolicy

from perdure import Agent, tool
from perdure.activities.liveness import until_stored
from perdure.checkpoint_bridge.errors import RateLimitedError
from perdure.checkpoint_bridge.tables.ledger import MODEL_CALL, EffectId
from perdure.testing import attempts, call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench, Gate


@tool(read_only=True)
def look() -> str:
    return "seen"


async def terminated_while_it_answers(bench: Bench, gate: Gate, *, stored: bool = True) -> None:
    """Terminate the run while the model answers; its answer then reaches the store alone."""
    await bench.client.start("agent", "Go", session_id=bench.session)
    await gate.reached()
    row = await bench.store.session(bench.session)
    assert row is not None
    await bench.workflow().terminate()
    if not stored:
        return
    gate.open()

    async def is_stored() -> bool:
        effect = await bench.store.effect(EffectId(row.log_id, row.head, MODEL_CALL))
        return effect is not None and effect.done

    await bench.until(is_stored)


@pytest.mark.parametrize("text", ["Done.", "x" * 10_000])
async def test_an_answer_ends_the_run(bench: Bench, session: str, text: str) -> None:
    """Nobody hears of it from the run; but there is nothing left to do, and it is there."""
    model = bench.model([call("look")], text, "More.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        await terminated_while_it_answers(bench, model.gate(2))
        assert await bench.client.resume(session) is None
        checkpoint = await bench.client.checkpoint(session)
        assert checkpoint is not None
        assert checkpoint.messages[-1].text == text
        assert [message.role for message in checkpoint.messages] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert await bench.saves() == [
            (1, "in-progress", "tool_calls", 2),
            (1, "in-progress", "tool_calls", 3),
            (2, "finished", "stop", 4),
        ]
        result = await bench.client.execute("agent", "And?", session_id=session)
    assert (result.text, result.steps) == ("More.", 1)
    assert len(model.requests) == 3


async def test_a_run_that_temporal_starts_again_has_its_answer(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a retry policy of the workflow's: the input of the first attempt is not taken anew."""
    model = bench.model("Done.", "Asked again.")
    held = bench.gate()

    async def then_hold(use: Any) -> Any:
        stored = await until_stored(use)
        if getattr(stored, "head", None) and getattr(stored, "done", False):
            await held.hold()
        return stored

    monkeypatch.setattr("perdure.activities.model_call.until_stored", then_hold)
    async with bench.serving(Agent("agent", provider=model)):
        handle = await bench.temporal.start_workflow(
            "AgentWorkflow",
            {"agent": "agent", "input": "Go"},
            id=session,
            task_queue=bench.queue,
            run_timeout=timedelta(seconds=1),
            retry_policy=RetryPolicy(maximum_attempts=2),
        )
        await held.reached()
        outcome = await handle.result()
        held.open()
    assert outcome["text"] == "Done."
    assert len(model.requests) == 1
    assert [message["role"] for message in (await bench.record())["messages"]] == [
        "user",
        "assistant",
    ]


async def test_its_calls_are_made(bench: Bench, session: str) -> None:
    model = bench.model([call("look"), call("look")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        await terminated_while_it_answers(bench, model.gate(1))
        result = await bench.client.resume(session)
    assert result is not None
    assert len(model.requests) == 2
    assert (result.text, result.steps) == ("Done.", 2)
    assert len(await bench.results()) == 2


async def test_new_input_comes_after_it(bench: Bench, session: str) -> None:
    model = bench.model("One.", "Two.")
    async with bench.serving(Agent("agent", provider=model)):
        await terminated_while_it_answers(bench, model.gate(1))
        result = await bench.client.execute("agent", "And more", session_id=session)
    assert [message.text for message in result.messages] == ["Go", "One.", "And more", "Two."]
    # The first run has ended, so this is one of its own.
    assert result.steps == 1
    assert len(model.requests) == 2


async def test_the_failed_attempts_of_a_call_that_was_lost_are_kept(
    bench: Bench, session: str
) -> None:
    limited = RateLimitedError("slow down", retryable=True, retry_after=60)
    model = bench.model(attempts(limited, "Done."))
    async with bench.serving(Agent("agent", provider=model)):
        await bench.client.start("agent", "Go", session_id=session)

        async def noted() -> bool:
            row = await bench.store.session(session)
            if row is None:
                return False
            effect = await bench.store.effect(EffectId(row.log_id, row.head, MODEL_CALL))
            return effect is not None and bool(effect.attempts)

        await bench.until(noted)
        await bench.workflow().terminate()
        await bench.client.resume(session)
    (event,) = await bench.events("assistant/attempt")
    assert event.data["error"]["message"] == "slow down"


@pytest.mark.parametrize("last", [False, True])
async def test_an_answer_in_the_instant_of_a_cancel_stays(
    bench: Bench,
    session: str,
    monkeypatch: pytest.MonkeyPatch,
    last: bool,
) -> None:
    """What was stored before the cancel took effect is in the transcript; its calls did not run."""
    model = bench.model(*([] if last else [[call("look")]]), "Done.")
    held = bench.gate()
    agent = Agent("agent", provider=model, tools=[look])

    async def then_hold(use: Any) -> Any:
        stored = await until_stored(use)
        if getattr(stored, "head", None) and getattr(stored, "done", False):
            await held.hold()
        return stored

    monkeypatch.setattr("perdure.activities.model_call.until_stored", then_hold)
    async with bench.serving(agent):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await held.reached()
        await handle.cancel()
        result = await handle.result()
        held.open()
        roles = [message.role for message in result.messages]
        if last:
            assert (result.finish_reason, result.text) == ("stop", "Done.")
            assert roles == ["user", "assistant"]
            return
        assert result.finish_reason == "aborted"
        assert roles == ["user", "assistant", "tool"]
        assert json.loads((await bench.results())[0]["content"])["kind"] == "not-run"
        resumed = await bench.client.resume(session)
    assert resumed is not None
    assert resumed.text == "Done."
    assert len(model.requests) == 2


async def test_a_worker_that_fails_behind_it_does_not_lose_it(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bench.model("Done.")

    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("perdure.activities.model_call._turn", broken)
    async with bench.serving(Agent("agent", provider=model)):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert (result.text, result.finish_reason) == ("Done.", "stop")
    assert len(model.requests) == 1
