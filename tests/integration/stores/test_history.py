"""history, for every store that keeps one; and the lack of it."""

from __future__ import annotations

import asyncio
import re

import pytest

from perdure.checkpoint_bridge import get_checkpoint_history
from perdure.checkpoint_bridge.errors import ConfigurationError

with_history = pytest.mark.usefixtures("keeps_history")
OURS = ["sqlite", "postgres", "lousho-sqlite", "lousho-files", "key-value"]
three_methods = pytest.mark.parametrize("place", ["three-methods"], indirect=True)


@with_history
async def test_an_unknown_session_has_an_empty_history(store):
    assert await store.history("nope") == []
    assert await get_checkpoint_history(store, "nope") == []


@with_history
async def test_one_entry_for_each_save_newest_first(store, record, text):
    saved = [
        record("trip", 1),
        record("trip", 1),  # a tool result of the same step: an entry of its own
        record("trip", 2),
        record("trip", 2, status="finished", finishReason="stop"),
    ]
    for each in saved:
        await store.save("trip", each)
    history = await store.history("trip")
    assert [entry.step for entry in history] == [2, 2, 1, 1]
    assert [entry.status for entry in history] == ["finished", *["in-progress"] * 3]
    assert [text(entry.checkpoint) for entry in history] == [text(each) for each in saved[::-1]]
    assert [sorted(entry.to_json()) for entry in history] == [
        ["checkpoint", "savedAt", "status", "step"]
    ] * 4


@with_history
async def test_times_are_utc_with_milliseconds(store, record):
    for step in range(3):
        await store.save("trip", record("trip", step))
    times = [entry.saved_at for entry in await store.history("trip")]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    assert times == sorted(times, reverse=True)


@with_history
async def test_an_entry_without_a_status_is_in_progress(store, record):
    old = record("trip")
    del old.raw["status"]
    await store.save("trip", old)
    (entry,) = await store.history("trip")
    assert entry.to_json()["status"] == "in-progress"
    assert "status" not in entry.checkpoint


@with_history
@pytest.mark.parametrize(
    ("limit", "steps"), [(0, []), (1, [5]), (3, [5, 4, 3]), (99, [5, 4, 3, 2, 1])]
)
async def test_a_limit_gives_the_newest(store, record, limit, steps):
    for step in range(1, 6):
        await store.save("trip", record("trip", step))
    assert [entry.step for entry in await store.history("trip", limit)] == steps
    found = await get_checkpoint_history(store, "trip", limit)
    assert found is not None
    assert [entry.step for entry in found] == steps


@with_history
@pytest.mark.parametrize(("limit", "steps"), [(0, []), (1, [5]), (3, [5, 4, 3])])
async def test_the_ring_keeps_the_newest(stores, record, text, limit, steps):
    store = await stores.open(limit)
    for step in range(1, 6):
        await store.save("trip", record("trip", step))
    assert [entry.step for entry in await store.history("trip")] == steps
    assert text(await store.load("trip")) == text(record("trip", 5))


@with_history
async def test_two_hundred_saves_leave_fifty_entries(store, record):
    for step in range(1, 201):
        await store.save("trip", record("trip", 0, stepIndex=step))
    assert [entry.step for entry in await store.history("trip")] == list(range(200, 150, -1))
    assert (await store.load("trip")).step_index == 200


@pytest.mark.parametrize("place", OURS, indirect=True)
async def test_a_smaller_limit_holds_for_what_is_there_already(stores, record):
    before = await stores.open()
    for step in range(1, 6):
        await before.save("trip", record("trip", step))
    after = await stores.open(2)
    assert [entry.step for entry in await after.history("trip")] == [5, 4]
    await after.save("trip", record("trip", 6))
    assert [entry.step for entry in await after.history("trip")] == [6, 5]


@pytest.mark.parametrize("place", ["memory", *OURS], indirect=True)
@pytest.mark.parametrize("limit", [-1, 1.5, 3.0, "3", None, True])
async def test_a_limit_that_is_no_count_is_refused(stores, limit):
    with pytest.raises(ConfigurationError, match="historyLimit") as caught:
        await stores.open(limit)
    assert caught.value.field == "historyLimit"
    assert caught.value.code == "LOUSHO_CONFIG_INVALID"


@with_history
async def test_entries_are_copies(store, record, text, spoil):
    await store.save("trip", record("trip", 1, businessState={"a": [1]}))
    await store.save("trip", record("trip", 2, businessState={"a": [1]}))
    history = await store.history("trip")
    expected = [text(entry) for entry in history]
    loaded = text(await store.load("trip"))
    spoil(history[0])
    assert text(history[1]) == expected[1]
    spoil(history[1])
    assert [text(entry) for entry in await store.history("trip")] == expected
    assert text(await store.load("trip")) == loaded


@with_history
async def test_histories_of_sessions_are_apart(store, record):
    ids = ["a", "a.fork-1", "b"]
    for step in range(1, 4):
        await asyncio.gather(*(store.save(each, record(each, step)) for each in ids))
    for each in ids:
        history = await store.history(each)
        assert [entry.step for entry in history] == [3, 2, 1]
        assert {entry.checkpoint.session_id for entry in history} == {each}


@with_history
async def test_saves_of_one_session_at_once_each_leave_an_entry(store, record):
    await asyncio.gather(*(store.save("trip", record("trip", step)) for step in range(1, 9)))
    assert sorted(entry.step for entry in await store.history("trip")) == list(range(1, 9))


@three_methods
async def test_a_store_of_three_methods_has_none(store, record):
    await store.save("trip", record("trip"))
    assert await get_checkpoint_history(store, "trip") is None
