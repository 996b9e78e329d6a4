"""Lists of sessions, forks that share a beginning, and what a deletion leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from perdure.checkpoint_bridge import ForkPatch
from perdure.checkpoint_bridge.errors import CheckpointNotFoundError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.checkpoint_bridge.log.headers import SessionHeader
from perdure.checkpoint_bridge.log.lineage import child_session_id


async def checkpoint(store: Any, session_id: str) -> str:
    return json.dumps((await store.load(session_id)).to_json(), sort_keys=True)


async def a_trip(store: Any, begin: Any, make: Any, session_id: str = "trip") -> Any:
    """Three steps, with content that is too large for a row."""
    run = await begin(store, session_id)
    await run.turn("weather", size=make.large)
    await run.turn("hotels", size=make.large + "2")
    await run.finish()
    return run


async def test_sessions_newest_activity_first(store, begin, make):
    for number, session_id in enumerate(["a", "b", "c"]):
        run = await begin(store, session_id, text=f"  Hello\n{session_id} {'x' * 100}")
        run.time_ms = 10_000 + number
        await run.turn("weather")
    run = await begin(store, "a", "run-2")
    run.time_ms = 20_000
    await run.finish()
    found = await store.sessions()
    assert [row.session_id for row in found] == ["a", "c", "b"]
    assert [row.status for row in found] == ["finished", "in-progress", "in-progress"]
    assert [row.step for row in found] == [2, 1, 1]
    assert found[1].title == f"Hello c {'x' * 71}…"
    assert [row.session_id for row in await store.sessions(limit=2)] == ["a", "c"]
    assert [row.session_id for row in await store.sessions(status="finished")] == ["a"]


async def test_the_list_knows_how_the_last_run_ended(store, begin):
    run = await begin(store, "trip")
    assert (await store.session("trip")).last_end is None
    error = {"code": "X", "message": "no \0 key" + "!" * 2000, "details": [1]}
    end = {"turn": 1, "reason": {"kind": "error", "error": error}}
    await run.append(NewEvent(ev.TURN_END, end))
    (row,) = await store.sessions()
    assert json.loads(row.last_end) == {
        "kind": "error",
        "error": {"code": "X", "message": ("no  key" + "!" * 2000)[:1000]},
    }
    again = await begin(store, "trip", "run-2")
    assert (await store.session("trip")).last_end is None
    await again.append(NewEvent(ev.TURN_END, {"turn": 2, "reason": {"kind": "aborted"}}))
    assert (await store.session("trip")).last_end == '{"kind":"aborted"}'


async def test_the_list_reads_no_log(store, begin, make):
    for number in range(20):
        await a_trip(store, begin, make, f"s{number}")
    statements = []

    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        assert len(await store.sessions()) == 20
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    asked = [each for each in statements if "perdure_" in each]
    assert len(asked) == 1
    assert "perdure_events" not in asked[0]


async def test_a_fork_shares_the_beginning(store, begin, make, rows):
    await a_trip(store, begin, make)
    before = rows()
    fork_id, made = await store.fork("trip", from_step=1)
    after = rows()
    # One event that marks the border; what came before is the parent's.
    assert after["events"] - before["events"] == 1
    assert after["blobs"] == before["blobs"]
    assert json.dumps(made.to_json(), sort_keys=True) == await checkpoint(store, fork_id)
    log = await store.events(fork_id)
    border = log[-1]
    assert (border.type, border.data["inherited"]) == (ev.END_SEED, True)
    assert log[:-1] == (await store.events("trip"))[: border.seq]
    row = await store.session(fork_id)
    assert (row.parent_session, row.step, row.writer) == ("trip", 1, None)


async def test_parent_and_fork_go_on_apart(store, begin, make):
    await a_trip(store, begin, make)
    await store.fork("trip", from_step=1, patch=ForkPatch(append_input="And hotels?"))
    parent, fork = [await checkpoint(store, each) for each in ("trip", "trip.fork-1")]
    run = await begin(store, "trip.fork-1", "run-f", "more")
    await run.finish("of the fork")
    assert await checkpoint(store, "trip") == parent
    forked = await checkpoint(store, "trip.fork-1")
    assert forked != fork
    run = await begin(store, "trip", "run-2", "more")
    await run.finish("of the parent")
    assert await checkpoint(store, "trip.fork-1") == forked


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
async def test_forks_of_forks_outlive_one_another(store, begin, make, rows, order):
    await a_trip(store, begin, make)
    await store.fork("trip", from_step=2)
    patch = ForkPatch(tool_result=("c-weather", {"forecast": "rain " * 2000}))
    await store.fork("trip.fork-1", from_step=2, patch=patch, new_session_id="deep")
    names = ["trip", "trip.fork-1", "deep"]
    before = {each: await checkpoint(store, each) for each in names}
    events = {each: await store.events(each) for each in names}
    for number in order:
        await store.delete(names[number])
        store._states.clear()
        del before[names[number]]
        for each, expected in before.items():
            assert await checkpoint(store, each) == expected
            assert await store.events(each) == events[each]
            assert (await store.history(each))[0].step in (2, 3)
    assert rows() == {}


async def test_deleting_all_leaves_nothing(store, begin, make, rows):
    run = await a_trip(store, begin, make)
    run = await begin(store, "trip", "run-2")
    effect = run.effect()
    await store.begin_effect(effect, session_id="trip", run_id="run-2", name="book")
    message = {"role": "tool", "content": make.large * 2}
    await store.end_effect(effect, session_id="trip", name="book", outcome={}, message=message)
    await run.append(make.answer("", "book"), make.ask("a1", run.head), save=ev.AWAITING_APPROVAL)
    await asyncio.gather(*(store.fork("trip", from_step=2) for _ in range(4)))
    await store.save("other", await store.load("trip"))
    assert set(rows()) == {"logs", "sessions", "events", "blobs", "saves", "effects", "approvals"}
    await asyncio.gather(*(store.delete(row.session_id) for row in await store.sessions()))
    assert rows() == {}


async def test_a_blob_is_stored_once_and_stays_while_it_is_named(store, begin, make, rows):
    for session_id in ("a", "b"):
        run = await begin(store, session_id, text=make.large)
        await run.append(make.user(make.large), make.user("small"))
    assert rows()["blobs"] == 1
    await store.delete("a")
    assert rows()["blobs"] == 1
    assert (await store.events("b"))[1].data["message"]["content"] == make.large
    await store.delete("b")
    assert rows() == {}


async def test_a_result_in_the_ledger_is_the_blob_of_its_event(store, begin, make, rows):
    run = await begin(store)
    await run.append(make.answer("", "a"))
    message = make.result(2, 0, "a", make.large).data["message"]
    effect = run.effect()
    await store.begin_effect(effect, session_id="trip", run_id="run-1", name="a")
    stored = await store.end_effect(
        effect, session_id="trip", name="a", outcome={}, message=message
    )
    named = NewEvent(ev.TOOL_RESULT, {"seq": 2, "index": 0}, ref=stored.ref)
    await run.append(named, save=ev.IN_PROGRESS)
    assert rows()["blobs"] == 1
    # By name or with its content: the same event.
    again = NewEvent(ev.TOOL_RESULT, {"seq": 2, "index": 0, "message": message})
    assert await store.append(run.batch(again, head=run.head - 1)) == run.head
    assert (await store.load("trip")).to_json()["messages"][-1] == message


async def test_a_fork_of_what_is_deleted_meanwhile(store, begin, make, rows):
    await a_trip(store, begin, make)
    done = await asyncio.gather(
        *(store.fork("trip", from_step=2) for _ in range(4)),
        store.delete("trip"),
        *(store.fork("trip", from_step=2) for _ in range(4)),
        return_exceptions=True,
    )
    made = [each for each in done if isinstance(each, tuple)]
    failed = [each for each in done if isinstance(each, BaseException)]
    # Those that were too late were told so; those that were not are whole.
    assert {type(each).__name__ for each in failed} <= {
        "CheckpointNotFoundError",
        "LogConflictError",
    }
    store._states.clear()
    for fork_id, record in made:
        assert await checkpoint(store, fork_id) == json.dumps(record.to_json(), sort_keys=True)
        await store.delete(fork_id)
    assert rows() == {}


async def test_a_cleared_session_keeps_its_log(store, begin, make):
    run = await a_trip(store, begin, make)
    await store.delete("trip", keep_history=True)
    row = await store.session("trip")
    assert (row.has_checkpoint, row.status, row.head) == (False, "cleared", run.head + 1)
    run = await begin(store, "trip", "run-2", "Anew")
    await run.finish("Hello")
    loaded = (await store.load("trip")).to_json()
    assert [message["content"] for message in loaded["messages"]] == ["Anew", "Hello"]
    assert len(await store.history("trip")) == 6


async def test_a_fork_starts_with_no_approval_of_its_source(store, begin, make):
    run = await begin(store)
    seq = run.head
    await run.append(make.answer("", "book"), make.ask("a1", seq), save=ev.AWAITING_APPROVAL)
    fork_id, _ = await store.fork("trip", from_step=1)
    assert [row.session_id for row in await store.approvals()] == ["trip"]
    row = await store.session(fork_id)
    assert (row.status, row.approval_id) == ("in-progress", None)
    state = await store.state(row.log_id, row.head)
    assert (state.approval, state.announced, state.decided) == (None, set(), {})


async def test_a_fork_of_nothing(store):
    with pytest.raises(CheckpointNotFoundError):
        await store.fork("nope", from_step=1)


async def test_the_cached_state_is_what_a_fresh_fold_gives(store, begin, make):
    run = await begin(store)
    state = (await store.session("trip")).log_id
    seen = {}
    for number in range(12):
        await run.turn("a", "b", size=make.large if number % 3 == 0 else "")
        cached = await store.state(state, run.head)
        seen[run.head] = json.dumps(cached.checkpoint("trip", status="", finish_reason=""))
    store._states.clear()
    for head, expected in [*seen.items(), *list(seen.items())[::-1]]:
        fresh = await store.state(state, head)
        assert fresh.through == head
        assert json.dumps(fresh.checkpoint("trip", status="", finish_reason="")) == expected


async def test_f8_a_header_says_whose_sub_agent_a_session_is(store, begin):
    run = await begin(store)
    child = child_session_id("trip", run.log_id, 2, 0)
    grandchild = child_session_id(child, 7, 2, 1)
    for session_id, depth, parent in (
        ("trip", None, None),
        (child, 1, "trip"),
        (grandchild, 2, child),
    ):
        if depth:
            await begin(store, session_id)
        header = SessionHeader.of(await store.session(session_id))
        assert (header.delegation_depth, header.parent_session) == (depth, parent)
        assert header.to_json().get("delegationDepth") == depth
