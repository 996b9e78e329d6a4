"""delete, for every store."""

from __future__ import annotations

import pytest

with_history = pytest.mark.usefixtures("keeps_history")


async def test_a_deleted_session_is_gone(store, record):
    await store.save("trip", record("trip"))
    await store.delete("trip")
    assert await store.load("trip") is None


@pytest.mark.parametrize("keep", [False, True])
async def test_deleting_what_is_not_there_is_no_error(store, record, keep):
    await store.delete("nope", keep_history=keep)
    await store.save("trip", record("trip"))
    await store.delete("trip", keep_history=keep)
    await store.delete("trip", keep_history=keep)
    assert await store.load("trip") is None


async def test_others_stay(store, record, text):
    for each in ("trip", "trip.fork-1", "tri"):
        await store.save(each, record(each))
    await store.delete("trip")
    for each in ("trip.fork-1", "tri"):
        assert text(await store.load(each)) == text(record(each))


async def test_a_deleted_session_can_begin_anew(store, record, text):
    await store.save("trip", record("trip", 3))
    await store.delete("trip")
    await store.save("trip", record("trip", 1))
    assert text(await store.load("trip")) == text(record("trip", 1))


@with_history
async def test_the_history_goes_with_the_checkpoint(store, record):
    await store.save("trip", record("trip", 1))
    await store.delete("trip")
    assert await store.history("trip") == []
    await store.save("trip", record("trip", 2))
    assert [entry.step for entry in await store.history("trip")] == [2]


@with_history
async def test_a_history_that_is_kept_grows_on(store, record, text):
    for step in range(1, 6):
        await store.save("trip", record("trip", step))
    before = [text(entry) for entry in await store.history("trip")]
    await store.delete("trip", keep_history=True)
    assert await store.load("trip") is None
    assert [text(entry) for entry in await store.history("trip")] == before
    await store.save("trip", record("trip", 1))
    assert text(await store.load("trip")) == text(record("trip", 1))
    after = [text(entry) for entry in await store.history("trip")]
    assert after[1:] == before
    await store.delete("trip")
    assert await store.history("trip") == []


@with_history
async def test_a_kept_history_can_be_deleted_later(store, record):
    await store.save("trip", record("trip"))
    await store.delete("trip", keep_history=True)
    await store.delete("trip")
    assert await store.history("trip") == []
