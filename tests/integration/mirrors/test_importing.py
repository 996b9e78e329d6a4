"""Sessions come over whole or not at all, and as they were."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.checkpoint_bridge import (
    Checkpoint,
    ExecutionSnapshot,
    MemoryStore,
    PendingApproval,
    SqlStore,
    StoredApproval,
)
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    SessionConflictError,
    SessionNotFoundError,
    StorageError,
)
from perdure.checkpoint_bridge.mirrors.importing import import_all, import_session
from perdure.checkpoint_bridge.tables.event_log import append

from .conftest import OwnStore, record, texts


async def filled(store: Any, session_id: str = "trip", steps: int = 3) -> Any:
    for step in range(1, steps + 1):
        await store.save_at(session_id, record(session_id, step), 1_700_000_000_000 + step * 7)
    return store


async def test_a_history_comes_over_with_its_times(source, make_target):
    theirs = await filled(make_target("theirs"))
    made = await import_session(theirs, source, "trip")
    assert (made.session_id, made.saves, made.approval_id) == ("trip", 3, None)
    assert texts(await source.history("trip")) == texts(await theirs.history("trip"))
    assert (await source.load("trip")) == (await theirs.load("trip"))
    row = await source.session("trip")
    assert row is not None
    assert (row.agent, row.title, row.step) == ("trip", "Plan my trip", 3)
    assert row.created_at == 1_700_000_000_007
    # Once more: nothing to do, here or when ours has gone on.
    assert (await import_session(theirs, source, "trip")).saves == 0
    await source.save("trip", record("trip", 4))
    assert (await import_session(theirs, source, "trip")).saves == 0
    assert len(await source.history("trip")) == 4


async def test_a_checkpoint_newer_than_the_history_is_the_last_save(source, make_target):
    theirs = await filled(make_target("theirs"), steps=2)
    theirs.history_limit = 0
    await theirs.save("trip", record("trip", 5))
    theirs.history_limit = 50
    assert (await import_session(theirs, source, "trip")).saves == 3
    assert [entry.step for entry in await source.history("trip")] == [5, 2, 1]


async def test_a_store_without_history_gives_its_checkpoint(source):
    own = OwnStore()
    await own.save("trip", record("trip", 2))
    assert (await import_session(own, source, "trip")).saves == 1
    assert (await source.load("trip")) == record("trip", 2)
    with pytest.raises(ConfigurationError, match="does not list its sessions"):
        _ = [each async for each in import_all(own, source)]


async def test_a_taken_id_is_refused_and_nothing_is_written(source, make_target):
    theirs = await filled(make_target("theirs"))
    await source.save("trip", record("trip", 1, theirs="ours"))
    before = await source.events("trip")
    with pytest.raises(SessionConflictError, match="another session 'trip'"):
        await import_session(theirs, source, "trip")
    assert await source.events("trip") == before
    with pytest.raises(SessionNotFoundError):
        await import_session(theirs, source, "none")


async def test_all_sessions_come_over_but_those_that_cannot(source, make_target):
    theirs = await filled(make_target("theirs"))
    await filled(theirs, "second", 1)
    await filled(theirs, "taken", 1)
    await theirs.save("broken", Checkpoint.from_json({"messages": "x", "status": "finished"}))
    await source.save("taken", record("taken", 9))
    found = {each.session_id: each async for each in import_all(theirs, source)}
    assert {name: each.saves for name, each in found.items()} == {
        "broken": 0,
        "second": 1,
        "taken": 0,
        "trip": 3,
    }
    assert isinstance(found["taken"].error, SessionConflictError)
    assert isinstance(found["broken"].error, StorageError)
    assert await source.session_ids() == ["second", "taken", "trip"]


async def test_one_of_two_that_import_at_the_same_time_does_it(source, store_url, make_target):
    theirs = await filled(make_target("theirs"))
    async with SqlStore(store_url) as elsewhere:
        made = await asyncio.gather(
            import_session(theirs, source, "trip"), import_session(theirs, elsewhere, "trip")
        )
    assert sorted(each.saves for each in made) == [0, 3]
    assert len(await source.history("trip")) == 3


async def test_a_failure_in_the_middle_leaves_nothing(source, make_target, monkeypatch):
    theirs = await filled(make_target("theirs"))
    count = iter(range(9))

    def failing(*args: Any, **options: Any) -> int:
        if next(count) == 2:
            raise StorageError("the disk is full")
        return append(*args, **options)

    monkeypatch.setattr("perdure.checkpoint_bridge.mirrors.importing.append", failing)
    with pytest.raises(StorageError, match="disk is full"):
        await import_session(theirs, source, "trip")
    assert await source.session("trip") is None
    monkeypatch.undo()
    assert (await import_session(theirs, source, "trip")).saves == 3


@pytest.mark.parametrize(
    "record_of",
    [
        {},
        {"messages": None},
        {"messages": [None, 5, {"role": []}, {"role": "assistant", "toolCalls": "x"}]},
        {"messages": [], "status": 5, "stepIndex": "x", "approvalId": [], "agentId": {}},
        {"messages": [], "status": "awaiting-approval", "approvalId": "a\0b" * 99},
        {"messages": [{"role": "user", "content": "\0\ud83d"}], "agentId": "x" * 999},
        {"messages": [], "usage": {"promptTokens": 1}, "$bytes": "AAA="},
    ],
)
async def test_odd_records_come_over_as_they_are(make_target, record_of):
    theirs = make_target("theirs")
    await theirs.save("odd", Checkpoint.from_json(record_of))
    async with MemoryStore() as ours:
        await import_session(theirs, ours, "odd")
        loaded = await ours.load("odd")
        assert loaded is not None
        expected = {"messages": [], **record_of, "sessionId": "odd"}
        expected["messages"] = expected["messages"] or []
        assert loaded.to_json() == expected


async def test_an_approval_belongs_to_one_session(source, make_target):
    """Two sessions name one approval: it belongs to the one that it says."""
    theirs = make_target("theirs")
    for name in ("one", "two"):
        calls = [{"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}]
        more = {"status": "awaiting-approval", "approvalId": "same"}
        messages = [{"role": "assistant", "content": "", "toolCalls": calls}]
        await theirs.save(name, record(name, 1, messages=messages, **more))
        pending = PendingApproval(id="same", tool_call_id="c", tool_name="t", args={})
        snapshot = ExecutionSnapshot.from_json(
            {"sessionId": name, "pendingToolCall": calls[0], "remainingToolCalls": []}
        )
        await theirs.save_approval(StoredApproval(pending, snapshot))
    found = [each async for each in import_all(theirs, source)]
    assert [each.error for each in found] == [None, None]
    assert [each.approval_id for each in found] == [None, "same"]
    rows = [await source.session(name) for name in ("one", "two")]
    assert [row and row.status for row in rows] == ["in-progress", "awaiting-approval"]
    loaded = await source.load("one")
    assert loaded is not None
    assert loaded.status == "awaiting-approval"
    # Its id is in use here: a copy of the session is gated again.
    await source.delete("one")
    copy = make_target("copy")
    one = await theirs.load("one")
    await copy.save("one", one)
    await copy.save_approval(
        StoredApproval(pending, ExecutionSnapshot.from_json({"pendingToolCall": calls[0]}))
    )
    assert (await import_session(copy, source, "one")).approval_id is None
