"""What tools emit stands beside a run's own events, and never in their way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint_bridge.emitting import EMITTED_LIMIT, Emission, emit
from perdure.checkpoint_bridge.errors import ConfigurationError, LogConflictError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@pytest.fixture
async def run(store, begin, make) -> Any:
    """A run whose two calls go on: their results are for 2."""
    run = await begin(store)
    calls = [NewEvent(ev.TOOL_CALL, {"seq": 2, "index": index, "name": "a"}) for index in (0, 1)]
    await run.append(make.answer("", "a", "b"), *calls, save=ev.IN_PROGRESS)
    return run


@pytest.fixture
def put(store, run) -> Callable[..., Awaitable[int]]:
    """Emits for a call of the run."""

    async def put(name: str, *, index: int = 0, **more: Any) -> int:
        emission = Emission(
            "trip", run.log_id, run.run_id, 2, index, name, "app/progress", {"name": name}
        )
        sequence: int = await store.database.write(emit, replace(emission, **more), 7)
        return sequence

    return put


async def types(store: Any) -> list[str]:
    log = await store.events("trip")
    assert [event.seq for event in log] == list(range(len(log)))
    return [event.type for event in log[5:]]


async def test_f29_a_run_goes_on_behind_what_was_emitted(store, run, put, make):
    assert await put("1.1") == 6
    await run.append(make.result(2, 0, "a"), save=ev.IN_PROGRESS)
    assert await put("1.2", index=1) == 8
    assert await put("1.3", index=1) == 9
    await run.append(make.result(2, 1, "b"), NewEvent(ev.STEP_END, {}), save=ev.IN_PROGRESS)
    await run.finish()
    progress = "app/progress"
    ends = [ev.STEP_END, ev.ASSISTANT_MESSAGE, ev.TURN_END]
    assert await types(store) == [
        *(progress, ev.TOOL_RESULT, progress, progress, ev.TOOL_RESULT),
        *ends,
    ]
    sizes = [len(entry.checkpoint.messages) for entry in await store.history("trip")]
    assert sizes == [5, 4, 3, 2]
    log = await store.events("trip")
    assert [event.origin.sequence for event in log if event.type == progress] == [4, 5, 5]


async def test_an_append_that_is_repeated_is_there_once_whatever_was_emitted(store, run, put, make):
    first = run.batch(make.result(2, 0, "a"), save=ev.IN_PROGRESS)
    await put("1.1", index=1)
    end = await store.append(first)
    second = run.batch(make.result(2, 1, "b"), head=end, save=ev.IN_PROGRESS)
    await put("1.2", index=1)
    last = await store.append(second)
    before = await types(store)
    # A workflow task that was lost appends both again, and must get the same answers.
    for _ in range(2):
        assert await store.append(first) == end
        assert await store.append(second) == last
    assert await types(store) == before
    assert len(await store.history("trip")) == 3
    with pytest.raises(LogConflictError, match="Something else"):
        await store.append(run.batch(make.result(2, 1, "b"), head=run.head))


async def test_the_same_emission_is_stored_once(store, run, put):
    assert set(await asyncio.gather(put("1.1"), put("1.1"))) == {6}
    assert await put("1.2") == 7
    assert await put("1.1") == 6
    assert await types(store) == ["app/progress"] * 2
    await store.verify("trip")


async def test_nothing_is_taken_from_a_call_that_has_its_result(store, run, put, make):
    await run.append(make.result(2, 0, "a"))
    with pytest.raises(ConfigurationError, match="has its result already"):
        await put("1.1")
    assert await put("1.1", index=1) == 7
    with pytest.raises(LogConflictError, match="does not have the call"):
        await put("1.2", index=2)


async def test_a_replaced_run_emits_nothing(store, run, put, begin):
    await begin(store, run_id="run-2", text="Hello?")
    with pytest.raises(LogConflictError, match="newer run"):
        await put("1.1")
    assert "app/progress" not in await types(store)


async def test_f29_a_turn_emits_a_bounded_amount(store, run, put, make):
    half = {"text": "x" * (EMITTED_LIMIT // 2)}
    await put("1.1", data=half)
    with pytest.raises(ConfigurationError, match="at most 1,048,576 bytes"):
        await put("1.2", index=1, data=half)
    await put("1.3", index=1)
    row = await store.session("trip")
    assert EMITTED_LIMIT // 2 < row.emitted < EMITTED_LIMIT
    await run.append(make.start("run-1", turn=2))
    assert (await store.session("trip")).emitted == 0


async def test_f26_a_call_that_is_repeated_sets_the_same_again(store, run, put, begin):
    kept = {"type": ev.KV_SET, "data": {"key": "k", "value": None}}
    # An attempt whose commit was not heard of; then one more, in another worker.
    assert await put("1.1", **kept) == await put("1.1", **kept) == 6
    assert await put("2.1", **kept) == 7
    assert (await store.state(run.log_id, 7)).kv == {"k": None}
    assert await put("2.2", type=ev.KV_DELETE, data={"key": "k"}) == 8
    assert await types(store) == [ev.KV_SET, ev.KV_SET, ev.KV_DELETE]
    assert (await store.state(run.log_id, 8)).kv == {}
    await begin(store, run_id="run-2", text="Hello?")
    with pytest.raises(LogConflictError, match="newer run"):
        await put("2.3", **kept)
