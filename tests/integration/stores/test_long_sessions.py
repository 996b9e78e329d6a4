"""A session of 5,000 messages: its history, a fork and a comparison within a second each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint_bridge import ForkPatch, LoushoSqliteStore, SqlStore, compare_trajectories
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.mirrors.mirror import Mirror
from perdure.checkpoint_bridge.tables.event_log import Batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

STEPS = 2_500
PER_BATCH = 100
ONE_BY_ONE = 2_400
"""From this step on each batch is one step, as a run writes them."""


@pytest.fixture
async def long_session(store_url: str) -> AsyncIterator[SqlStore]:
    """A store with a run of 2,500 steps, each with a call and its result of 300 characters."""
    async with SqlStore(store_url) as store:
        start = {"turn": 1, "runId": "r", "agent": "a", "fresh": True, "fingerprint": None}
        log_id, head = await store.open_session(
            "long",
            agent="a",
            run_id="r",
            head=0,
            time_ms=1,
            events=[
                NewEvent("turn/start", start),
                NewEvent("user/message", {"message": {"role": "user", "content": "Go"}}),
            ],
        )
        steps = [*range(0, ONE_BY_ONE, PER_BATCH), *range(ONE_BY_ONE, STEPS)]
        for first, last in zip(steps, [*steps[1:], STEPS], strict=True):
            events: list[NewEvent] = []
            for step in range(first + 1, last + 1):
                events += _step(step, head + len(events))
            saves = [NewSave(len(events), "in-progress", "tool_calls")]
            batch = Batch("long", log_id, "r", head, 1_700_000_000_000 + first, events, saves)
            head = await store.append(batch)
        end = {"turn": 1, "reason": {"kind": "completed"}, "finishReason": "stop"}
        await store.append(
            Batch(
                "long",
                log_id,
                "r",
                head,
                1_700_000_009_000,
                [NewEvent("turn/end", end)],
                [NewSave(1, "finished", "stop")],
            )
        )
    # Opened again: nothing is in its memory.
    async with SqlStore(store_url) as store:
        await store.open()
        yield store


def _step(step: int, seq: int) -> list[NewEvent]:
    call_id = f"c{step}"
    function = {"name": "look", "arguments": f'{{"n":{step}}}'}
    calls = [{"id": call_id, "type": "function", "function": function}]
    message = {"role": "assistant", "content": "", "toolCalls": calls}
    usage = {"inputTokens": 9, "outputTokens": 1, "totalTokens": 10}
    said = {"turn": 1, "step": step, "model": "m", "usage": usage, "message": message}
    result = {
        "role": "tool",
        "content": "x" * 300,
        "name": "look",
        "toolCallId": call_id,
        "toolName": "look",
    }
    return [
        NewEvent("assistant/message", said),
        NewEvent("tool/result", {"seq": seq, "index": 0, "message": result}),
    ]


async def within_a_second(work: Awaitable[Any]) -> Any:
    """A second of this process's own time: the machine may be busy with something else."""
    started = time.process_time()
    result = await work
    assert time.process_time() - started < 1.0
    return result


async def test_reading_forking_and_comparing(long_session):
    history = await within_a_second(long_session.history("long"))
    assert [entry.step for entry in history] == [STEPS, *range(STEPS, STEPS - 49, -1)]
    assert len(history[0].checkpoint.messages) == 2 * STEPS + 1
    patch = ForkPatch(append_input="And then?")
    fork_id, _ = await within_a_second(long_session.fork("long", from_step=STEPS - 10, patch=patch))

    async def compare() -> Any:
        return compare_trajectories(
            await long_session.load("long"), await long_session.load(fork_id)
        )

    assert (await within_a_second(compare())).diverged_at == STEPS - 9


async def test_a_mirror_of_a_long_session(long_session, tmp_path: Path):
    """A new mirror gets the 50 saves that are kept, each with the whole conversation."""
    async with LoushoSqliteStore(tmp_path / "theirs.db") as target:
        assert await Mirror(long_session, target).copy_session("long") == 50
        (newest,) = await target.history("long", 1)
        assert newest.checkpoint == await long_session.load("long")
