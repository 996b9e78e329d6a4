"""Idempotency keys of input that is sent through a session object: row F107 of the features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent
from perdure.checkpoint_bridge.errors import (
    IdempotencyAmbiguousError,
    IdempotencyMismatchError,
    ProviderError,
)

if TYPE_CHECKING:
    from perdure.sessions.session import Session
    from tests.integration.runs.conftest import Bench


async def ended(talk: Session, sequence: int) -> bool:
    return (await talk.outcome(sequence)).state != "pending"


async def test_f107_a_turn_happens_once_for_its_key(bench: Bench, talk: Session) -> None:
    model = bench.model("One.", "Two.", "Three.", ProviderError("away"))
    async with bench.serving(Agent("agent", provider=model)):
        one = await talk.send("Go", agent="agent", idempotency_key="K")
        await talk.send("Between")
        again = await talk.send("Go", agent="agent", idempotency_key="K")
        assert (again.text, again.run_id, again.steps) == ("One.", one.run_id, 1)
        assert [message.to_json() for message in again.messages] == [
            message.to_json() for message in one.messages
        ]
        with pytest.raises(IdempotencyMismatchError):
            await talk.send("Went", agent="agent", idempotency_key="K")
        sequence = await talk.submit("Go", agent="agent", idempotency_key="K")  # its own scope
        assert await talk.submit("Go", agent="agent", idempotency_key="K") == sequence
        await bench.until(lambda: ended(talk, sequence))
        assert len(await bench.events("turn/start")) == 3
        for _ in range(2):
            with pytest.raises(ProviderError, match="away"):
                await talk.send("Fail", idempotency_key="F")
    assert len(await bench.events("turn/start")) == 4


@pytest.mark.parametrize("how", ["send", "submit"])
async def test_f107_a_retry_finds_the_run_of_a_client_that_died(
    bench: Bench, talk: Session, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died after the run was started and before the response: once without a worker yet."""

    async def die(*_: Any) -> None:
        raise OSError("the client died")

    for opened in (False, True):
        monkeypatch.setattr("perdure.run_handle.RunHandle.opened", die)
        monkeypatch.setattr("perdure.run_handle.RunHandle.result", die)
        model = bench.model("One.", "Two.")
        agent = Agent("agent", provider=model)
        key = f"K{opened}"
        with pytest.raises(OSError, match="died"):
            await getattr(talk, how)("Go", agent="agent", idempotency_key=key)
        monkeypatch.undo()
        async with bench.serving(agent):
            if opened:
                running = await bench.client.running(bench.session)
                if running is not None:
                    await running.result()
            again = await getattr(talk, how)("Go", agent="agent", idempotency_key=key)
            turns = await bench.events("turn/start")
            if how == "submit":
                assert again == turns[-1].sequence
                running = await bench.client.running(bench.session)
                if running is not None:
                    await running.result()
            else:
                assert again.text == ("Two." if opened else "One.")
    assert len(await bench.events("turn/start")) == 2


async def test_f107_a_claim_that_started_nothing_is_ambiguous(
    bench: Bench, talk: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any, **__: Any) -> None:
        raise OSError("the client died")

    model = bench.model("One.", "Two.")
    async with bench.serving(Agent("agent", provider=model)):
        await talk.send("Go", agent="agent")
        monkeypatch.setattr("perdure.client.Client.begin", die)
        with pytest.raises(OSError, match="died"):
            await talk.submit("More", idempotency_key="K")
        monkeypatch.undo()
        with pytest.raises(IdempotencyAmbiguousError, match="'K'"):
            await talk.submit("More", idempotency_key="K")
    assert len(await bench.events("turn/start")) == 1
