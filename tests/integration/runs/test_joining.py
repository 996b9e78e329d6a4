"""What only a run's start can set is refused by a run that goes on, never dropped in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent
from perdure.checkpoint_bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench

OPTIONS: dict[str, Any] = {
    "business_state": {"order": 7},
    "metadata": {"from": "mail"},
    "max_steps": 3,
}


@pytest.mark.parametrize("given", ["b", []])
@pytest.mark.parametrize("option", OPTIONS)
async def test_an_option_of_a_run_that_starts(
    bench: Bench, session: str, option: str, given: Any
) -> None:
    model = bench.model("One.", "Two.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        handle = await bench.client.start("agent", "a", session_id=session)
        await gate.reached()
        with pytest.raises(ConfigurationError, match="has a run that goes on") as raised:
            await bench.client.start(
                "agent", given, session_id=session, **{option: OPTIONS[option]}
            )
        assert raised.value.field == option
        gate.open()
        result = await handle.result()
    assert [message.text for message in result.messages] == ["a", "One."]


async def test_a_retry_brings_what_the_run_has(bench: Bench, session: str) -> None:
    model = bench.model("One.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        first = await bench.client.start("agent", "a", session_id=session, **OPTIONS)
        await gate.reached()
        second = await bench.client.start("agent", "a", session_id=session, **OPTIONS)
        assert second.run_id == first.run_id
        with pytest.raises(ConfigurationError) as raised:
            await bench.client.start("agent", "a", session_id=session, business_state=None)
        assert raised.value.field == "business_state"
        gate.open()
        await second.result()
    assert (await bench.record())["businessState"] == {"order": 7}


@pytest.mark.parametrize("given", ["b", "a", []])
async def test_another_agent(bench: Bench, session: str, given: Any) -> None:
    model = bench.model("One.")
    gate = model.gate(1)
    async with bench.serving(
        Agent("one", provider=model), Agent("two", provider=bench.model("x", "y"))
    ):
        handle = await bench.client.start("one", "a", session_id=session)
        await gate.reached()
        with pytest.raises(ConfigurationError, match="a run of agent 'one' that goes on") as raised:
            await bench.client.start("two", given, session_id=session)
        assert raised.value.field == "agent"
        gate.open()
        assert (await handle.result()).text == "One."


async def test_a_state_for_a_finished_session_without_input(bench: Bench, session: str) -> None:
    async with bench.serving(Agent("agent", provider=bench.model("One."))):
        await bench.client.execute("agent", "a", session_id=session)
        result = await bench.client.execute("agent", [], session_id=session, business_state=[1])
    assert (result.text, result.finish_reason) == ("One.", "stop")
    assert (await bench.record())["businessState"] == [1]
