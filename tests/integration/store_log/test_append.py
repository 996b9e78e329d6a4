"""Appending to the log: what counts as done already, and who may not write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint_bridge.errors import LogConflictError, SessionNotFoundError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave

if TYPE_CHECKING:
    from perdure.checkpoint_bridge import SqlStore


async def content(store: SqlStore, session_id: str = "trip") -> tuple[Any, ...]:
    row = await store.session(session_id)
    history = [entry.to_json() for entry in await store.history(session_id)]
    return row, await store.events(session_id), history


async def test_events_are_numbered_without_gaps(store, begin, make):
    run = await begin(store)
    await run.turn("weather", "hotels")
    await run.finish()
    log = await store.events("trip")
    assert [event.seq for event in log] == list(range(run.head))
    assert [event.type for event in log] == [
        ev.TURN_START,
        ev.USER_MESSAGE,
        ev.ASSISTANT_MESSAGE,
        ev.TOOL_RESULT,
        ev.TOOL_RESULT,
        ev.ASSISTANT_MESSAGE,
        ev.TURN_END,
    ]
    assert log[1].data == make.user("Plan my trip").data


async def test_the_same_append_again_changes_nothing(store, begin, make):
    run = await begin(store)
    batch = run.batch(make.answer("", "a"), make.result(2, 0, "a"), save=ev.IN_PROGRESS)
    end = await store.append(batch)
    before = await content(store)
    later = run.batch(*batch.events, save=ev.IN_PROGRESS, time_ms=9_999)
    assert await store.append(later) == end
    assert await content(store) == before


async def test_an_append_whose_beginning_is_there_is_completed(store, begin, make):
    run = await begin(store)
    first, second = make.answer("", "a"), make.result(2, 0, "a")
    await store.append(run.batch(first, save=ev.IN_PROGRESS))
    both = run.batch(
        first,
        second,
        saves=[NewSave(1, ev.IN_PROGRESS, "tool_calls"), NewSave(2, ev.IN_PROGRESS, "tool_calls")],
    )
    assert await store.append(both) == 4
    assert [event.type for event in (await store.events("trip"))[2:]] == [
        ev.ASSISTANT_MESSAGE,
        ev.TOOL_RESULT,
    ]
    assert len(await store.history("trip")) == 2


async def test_an_older_append_again_leaves_what_followed(store, begin, make):
    run = await begin(store)
    early = run.batch(make.user("more"))
    await store.append(early)
    run.head += 1
    await run.finish()
    before = await content(store)
    assert await store.append(early) == early.head + 1
    assert await content(store) == before


@pytest.mark.parametrize("place", ["first", "second"])
async def test_something_else_at_a_taken_place_writes_nothing(store, begin, make, place):
    run = await begin(store)
    await store.append(run.batch(make.user("a"), make.user("b"), save=ev.IN_PROGRESS))
    before = await content(store)
    texts = ("X", "b", "c") if place == "first" else ("a", "X", "c")
    with pytest.raises(LogConflictError, match="Something else is at 2"):
        await store.append(run.batch(*map(make.user, texts), save=ev.FINISHED))
    assert await content(store) == before


async def test_a_gap_writes_nothing(store, begin, make):
    run = await begin(store)
    before = await content(store)
    with pytest.raises(LogConflictError, match="ends at 2, before 3"):
        await store.append(run.batch(make.user("a"), head=3))
    assert await content(store) == before


async def test_a_run_that_was_replaced_writes_nothing(store, begin, make):
    old = await begin(store, run_id="run-1")
    new = await begin(store, run_id="run-2", text="Hello?")
    before = await content(store)
    for head in (old.head, new.head):
        with pytest.raises(LogConflictError, match="newer run"):
            await store.append(old.batch(make.user("a"), head=head))
    assert await content(store) == before
    await new.append(make.user("b"))
    assert new.head == 5


async def test_a_run_opens_only_what_it_has_read(store, begin, make):
    await begin(store)
    before = await content(store)
    with pytest.raises(LogConflictError, match="written to meanwhile"):
        await store.open_session(
            "trip", agent="a", run_id="run-2", head=1, time_ms=1, events=[make.user("a")]
        )
    assert await content(store) == before


async def test_opening_a_session_at_once_makes_one_writer(store, begin):
    runs = await asyncio.gather(
        *(begin(store, run_id=f"run-{number}") for number in range(8)), return_exceptions=True
    )
    opened = [run for run in runs if not isinstance(run, BaseException)]
    refused = [run for run in runs if isinstance(run, LogConflictError)]
    assert len(opened) >= 1
    assert len(opened) + len(refused) == 8
    row = await store.session("trip")
    assert row.writer in {run.run_id for run in opened}
    assert len(await store.events("trip")) == row.head == 2 * len(opened)


async def test_a_deleted_session_takes_nothing(store, begin, make, rows):
    run = await begin(store)
    await store.delete("trip")
    with pytest.raises(LogConflictError, match="was deleted"):
        await store.append(run.batch(make.user("a")))
    again = await begin(store)
    with pytest.raises(LogConflictError, match="was deleted"):
        await store.append(run.batch(make.user("a")))
    assert again.log_id != run.log_id
    assert len(await store.events("trip")) == 2


async def test_one_append_many_times_at_once_is_there_once(store, begin, make):
    run = await begin(store)
    batch = run.batch(make.answer("", "a"), make.user(make.large), save=ev.IN_PROGRESS)
    ends = await asyncio.gather(*(store.append(batch) for _ in range(10)))
    assert set(ends) == {4}
    assert len(await store.events("trip")) == 4
    assert len(await store.history("trip")) == 1


async def test_rivals_for_one_place_leave_one_of_them(store, begin, make):
    run = await begin(store)
    done = await asyncio.gather(
        *(store.append(run.batch(make.user(f"{number}"))) for number in range(10)),
        return_exceptions=True,
    )
    assert sorted(str(type(each).__name__) for each in done) == ["LogConflictError"] * 9 + ["int"]
    assert len(await store.events("trip")) == 3


async def test_what_a_database_cannot_hold_in_a_text_comes_back(store, begin, make):
    run = await begin(store, text="\ud800 \0 \U0001f600")
    await run.append(make.user("\0" * 5000))
    log = await store.events("trip")
    assert log[1].data["message"]["content"] == "\ud800 \0 \U0001f600"
    assert log[2].data["message"]["content"] == "\0" * 5000
    assert (await store.session("trip")).title == "?  \U0001f600"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ({}, range(10)),
        ({"limit": 3}, range(3)),
        ({"after": 3, "limit": 3}, range(3, 6)),
        ({"after": 9, "limit": 5}, [9]),
        ({"after": 10}, []),
        ({"after": 99, "limit": 5}, []),
    ],
)
async def test_events_are_read_in_pages(store, begin, make, page, expected):
    run = await begin(store)
    await run.append(*(make.user(f"{number}") for number in range(8)))
    found = await store.events("trip", **page)
    assert [event.seq for event in found] == list(expected)
    assert [event.sequence for event in found] == [seq + 1 for seq in expected]


async def test_events_of_no_session(store):
    with pytest.raises(SessionNotFoundError, match="no session 'nope'"):
        await store.events("nope")


async def test_the_ring_of_saves_is_cut(store, begin, make, rows, sql_url):
    run = await begin(store)
    for number in range(60):
        await run.append(NewEvent(ev.BUSINESS_STATE, {"value": number}), save=ev.IN_PROGRESS)
    assert len(await store.history("trip")) == 50
    await run.finish()
    assert rows()["saves"] == 50
    states = [entry.checkpoint.business_state for entry in await store.history("trip")]
    assert states == [59, *range(59, 10, -1)]
