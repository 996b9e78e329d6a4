"""Workers that are told to stop, and several workers on one task queue."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from perdure.client import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.client import Client


@pytest.fixture
def rig(new_rig: Any) -> Any:
    return new_rig("workers")


@pytest.fixture
async def client(rig: Any) -> AsyncIterator[Client]:
    async with connect(rig.store_url, temporal=rig.address, task_queue=rig.task_queue) as client:
        yield client


async def test_f71_a_worker_that_is_told_to_stop_lets_its_call_finish(
    rig: Any, client: Client
) -> None:
    worker = rig.start_worker()
    run = await client.start("sleepy", "Sleep", session_id="drained")
    await rig.until(lambda: rig.lines("tool-start"), "the tool to start")

    assert await rig.stop(worker) == 0

    assert len(rig.lines("tool-effect")) == 1
    assert len(rig.lines("stored")) == 2  # the model's first answer, and the call's result
    rig.start_worker()
    result = await run.result()
    assert result.text == "Done."
    assert len(rig.lines("tool-start")) == 1


GIVEN_UP = {
    "model:1": 2,
    "stored:model": 1,
    "begin:alpha": 1,
    "before:alpha": 2,
    "before:beta": 2,
    "stored:alpha": 1,
}
"""Where a call is when its worker stops, and how often it is begun in all."""


async def test_what_a_stopping_worker_gives_up_is_done_by_the_next_one(
    rig: Any, client: Client
) -> None:
    """``alpha`` is async; ``beta`` is in a thread, which nobody can stop."""
    rig.options = ["--grace-seconds", "0.5"]
    worker = rig.start_worker()
    sessions = {point: "given-up-" + point.replace(":", "-") for point in GIVEN_UP}
    for point, session in sessions.items():
        rig.hold(session, point)
    runs = {
        point: await client.start("trip", "Plan my trip", session_id=session)
        for point, session in sessions.items()
    }
    for point, session in sessions.items():
        await rig.held(session, point)

    assert await rig.stop(worker) == 0

    for point, session in sessions.items():
        rig.release(session, point)
    rig.start_worker()
    for point, session in sessions.items():
        result = await runs[point].result()
        assert result.finish_reason == "awaiting-approval", point
        texts = [message.content for message in result.messages if message.role == "tool"]
        assert [json.loads(text)["number"] for text in texts] == [1, 2, 3, 4], point
        name = point.split(":")[1]
        started = [line for line in rig.lines("tool-start", session) if line["tool"] == name]
        asked = [line for line in rig.lines("model", session) if line["step"] == 1]
        first = [line for line in started if line["key"] == started[0]["key"]] if started else asked
        assert len(first) == GIVEN_UP[point], point


async def test_of_two_workers_either_can_die(new_rig: Any, rig_module: Any) -> None:
    """Several runs are spread over both when one dies in the middle of a tool."""

    async def one_dies(which: int) -> list[str]:
        rig = new_rig("two-workers")
        model = f"undisturbed-{which}"
        sessions = [f"both-{which}-{number}" for number in range(6)]
        async with connect(
            rig.store_url, temporal=rig.address, task_queue=rig.task_queue
        ) as client:
            workers = [rig.start_worker(), rig.start_worker()]
            await rig.until(lambda: len(rig.lines("worker")) == 2, "both workers")
            undisturbed = await client.start("trip", "Plan my trip", session_id=model)
            await undisturbed.result(after_approval=await rig_module.approve(client, model))
            for session in sessions:
                rig.hold(session, "before:gamma")
            runs = [
                await client.start("trip", "Plan my trip", session_id=name) for name in sessions
            ]
            for session in sessions:
                await rig.held(session, "before:gamma")

            rig.kill(workers[which])
            for session in sessions:
                rig.release(session, "before:gamma")

            async def finish(run: Any) -> None:
                approval = await rig_module.approve(client, run.session_id)
                assert (await run.result(after_approval=approval)).text == "Done."

            await asyncio.gather(*map(finish, runs))
            judge = rig_module.Judge(client, rig, model)
            return [fault for name in sessions for fault in await judge.faults(name)]

    faults = await asyncio.gather(one_dies(0), one_dies(1))
    assert [*faults[0], *faults[1]] == []


async def test_r34_a_slow_tool_is_not_taken_for_a_lost_one(rig: Any, client: Client) -> None:
    """Longer than the heartbeat timeout of 5 s, and no heartbeat of its own (R34)."""
    rig.start_worker()
    rig.hold("slow", "before:alpha")
    rig.hold("slow", "before:beta")
    run = await client.start("trip", "Plan my trip", session_id="slow")
    await rig.held("slow", "before:alpha")
    await rig.held("slow", "before:beta")
    since = time.monotonic()
    await rig.until(lambda: time.monotonic() - since > 7, "more than the heartbeat timeout")
    rig.release("slow", "before:alpha")
    rig.release("slow", "before:beta")
    assert (await run.result()).finish_reason == "awaiting-approval"
    assert {line["attempt"] for line in rig.lines("tool-start")} == {1}
