"""A worker is killed while a run takes new input, or while a cancelled one is closed (R1)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.client import connect

if TYPE_CHECKING:
    from perdure.results import RunResult


@dataclass
class Ended:
    """A run as it ended, and what became of its session afterwards."""

    result: RunResult
    status: str
    continued: RunResult | None = None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ended(new_rig: Any, rig_module: Any) -> dict[str, Ended]:
    rig = new_rig("edges")
    sessions = ["input", "cancelled", "closed"]
    found: dict[str, Ended] = {}
    async with connect(rig.store_url, temporal=rig.address, task_queue=rig.task_queue) as client:
        first = rig.start_worker()
        for session in sessions:
            rig.hold(session, "before:beta")
        runs = {
            name: await client.start("trip", "Plan my trip", session_id=name) for name in sessions
        }
        for session in sessions:
            await rig.held(session, "before:beta")
            # The other two calls of the batch are done.
            await rig.until(lambda s=session: len(rig.lines("stored", s)) == 3, "two results")

        await client.start("trip", "And pack light", session_id="input")
        rig.hold("input", "append:user/message")
        rig.release("input", "before:beta")
        await rig.held("input", "append:user/message")
        rig.hold("closed", "closed")
        await runs["closed"].cancel()
        await rig.held("closed", "closed")
        await runs["cancelled"].cancel()
        rig.kill(first)
        for session, point in (
            ("input", "append:user/message"),
            ("closed", "closed"),
            ("cancelled", "before:beta"),
            ("closed", "before:beta"),
        ):
            rig.release(session, point)
        rig.start_worker()

        async def finish(session: str) -> None:
            approval = None
            if session == "input":
                approval = await rig_module.approve(client, session)
            result = await runs[session].result(after_approval=approval)
            description = await client.temporal.get_workflow_handle(session).describe()
            assert description.status is not None
            found[session] = Ended(result, description.status.name)
            if session != "input":
                found[session].continued = await client.execute("trip", "Go on", session_id=session)
            events = await client.store.events(session)
            assert [event.seq for event in events] == list(range(len(events)))

        await asyncio.gather(*map(finish, sessions))
    print(rig.log_tail())
    return found


def texts(result: RunResult, role: str) -> list[Any]:
    return [message.content for message in result.messages if message.role == role]


def test_input_that_was_being_taken_is_there_once_and_in_its_place(ended: Any) -> None:
    result = ended["input"].result
    assert ended["input"].status == "COMPLETED"
    assert texts(result, "user") == ["Plan my trip", "And pack light"]
    roles = [message.role for message in result.messages]
    assert roles[:8] == ["system", "user", "assistant", *["tool"] * 3, "user", "assistant"]
    assert_valid([message.to_json() for message in result.messages])


def test_a_cancelled_run_ends_as_canceled_and_keeps_what_was_finished(ended: Any) -> None:
    for session in ("cancelled", "closed"):
        assert ended[session].status == "CANCELED"
        result = ended[session].result
        assert result.finish_reason == "aborted"
        alpha, beta, gamma = (json.loads(text) for text in texts(result, "tool"))
        assert alpha == {"tool": "alpha", "number": 1}
        assert beta["kind"] == "unknown-outcome"
        assert gamma == {"tool": "gamma", "number": 3}
        assert_valid([message.to_json() for message in result.messages])


def test_the_next_input_continues_a_cancelled_run(ended: Any) -> None:
    for session in ("cancelled", "closed"):
        result = ended[session].continued
        assert result.finish_reason == "awaiting-approval"
        assert texts(result, "user") == ["Plan my trip", "Go on"]
        assert result.steps == 2
