"""Reading a session without a worker: pages, streams, views, the transcript and its position."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, update

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    SessionFormatUnsupportedError,
    SessionNotFoundError,
)
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.derived import derive_messages
from perdure.checkpoint_bridge.log.events import NewEvent, dump
from perdure.checkpoint_bridge.log.surface import derive_event_message
from perdure.checkpoint_bridge.log.views import BRAIN_NAMES
from perdure.checkpoint_bridge.tables.schema import events as event_rows, sessions as session_rows
from perdure.sessions.stored import StoredSession

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1024 * 1024


@pytest.fixture
def reader(store: SqlStore) -> StoredSession:
    return StoredSession(store, "trip")


@pytest.fixture
def put_unknown(store: SqlStore) -> Callable[..., Any]:
    """Appends an event of a type that this version does not know, as a newer one would."""

    async def put(type_: str, *, ignorable: bool) -> int:
        row = await store.session("trip")
        assert row is not None

        def write(connection: Any) -> None:
            values = {
                "log_id": row.log_id,
                "seq": row.head,
                "type": type_,
                "time_ms": 5,
                "data": dump({"new": True}),
                "digest": "-",
                "ignorable": ignorable,
            }
            connection.execute(insert(event_rows).values(**values))
            connection.execute(update(session_rows).values(head=row.head + 1))

        await store.database.write(write)
        return row.head

    return put


async def test_f16_what_was_read_stays_as_it_was(store, begin, make, reader):
    run = await begin(store)
    await run.turn("weather")
    before = [(event.seq, event.type, event.time_ms, event.data) async for event in reader.events()]
    await run.append(NewEvent(ev.TRANSCRIPT_DELTA, {"keep": 1, "append": []}))
    await run.finish()
    async with SqlStore(store.database.url.render_as_string(hide_password=False)) as other:
        again = [
            (event.seq, event.type, event.time_ms, event.data)
            async for event in StoredSession(other, "trip").events()
        ]
    assert again[: len(before)] == before
    assert len(again) == len(before) + 3


async def test_f17_sequences_have_no_gap(store, begin, reader):
    run = await begin(store)
    await run.turn("weather", "hotels")
    await run.finish()
    await store.fork("trip", from_step=1, new_session_id="fork")
    for session in ("trip", "fork"):
        found = [event async for event in StoredSession(store, session).events()]
        assert [event.seq for event in found] == list(range(len(found)))
        assert all(event.sequence == event.seq + 1 for event in found)
    assert {event.inherited for event in found} == {True, False}
    assert (await anext(reader.events(3))).sequence == 4


async def test_f104_events_come_in_order_in_pages_with_no_worker(store, begin, make, reader):
    run = await begin(store)
    await run.append(*(make.user(str(number)) for number in range(2_498)))
    pages, cursor, more = [], 0, True
    while more:
        page = await reader.events_page(cursor)
        pages.append(len(page.events))
        cursor, more = page.cursor, page.has_more
    assert pages == [1000, 1000, 500]
    handled, saved = [], 0
    async for event in reader.events():
        handled.append(event.sequence)
        if event.sequence == 1_700:
            break  # the consumer dies between handling an event and saving its cursor
        saved = event.sequence
    again = [event.sequence async for event in reader.events(saved)]
    assert again[0] == handled[-1]
    assert handled[:-1] + again == list(range(1, 2_501))


async def test_f105_an_oversized_event_comes_alone(store, begin, make, reader):
    run = await begin(store)
    await run.append(make.user("x" * 9 * MIB), make.user("small"))
    sizes, cursor, more = [], 1, True
    while more:
        page = await reader.events_page(cursor)
        sizes.append([len(event.data["message"]["content"]) for event in page.events])
        cursor, more = page.cursor, page.has_more
    assert sizes == [[len("Plan my trip")], [9 * MIB], [len("small")]]


async def test_f105_a_page_is_bounded_in_bytes(store, begin, make, reader):
    run = await begin(store)
    await run.append(*(make.user(f"{number}" + "x" * 3 * MIB) for number in range(4)))
    first = await reader.events_page()
    assert (len(first.events), first.cursor, first.has_more) == (4, 4, True)
    second = await reader.events_page(first.cursor)
    assert (len(second.events), second.cursor, second.has_more) == (2, 6, False)
    third = await reader.events_page(second.cursor)
    assert (third.events, third.cursor, third.has_more) == ([], 6, False)
    assert len((await reader.events_page(limit=2)).events) == 2


async def test_what_cannot_be_read_says_so(store, begin, reader):
    with pytest.raises(SessionNotFoundError, match="no session 'trip'"):
        await reader.transcript()
    with pytest.raises(SessionNotFoundError):
        _ = [event async for event in reader.events()]
    await begin(store)
    for nonsense in (-1, 1 << 63):
        with pytest.raises(ConfigurationError, match="after is a sequence"):
            await reader.events_page(nonsense)
    with pytest.raises(ConfigurationError, match="no view 'nope'"):
        _ = [event async for event in reader.events(view="nope")]
    with pytest.raises(ConfigurationError, match="ends at sequence 2, before 3"):
        await reader.transcript(3)


async def test_f19_both_views_have_the_same_sequences(store, begin, reader):
    run = await begin(store)
    await run.turn("weather")
    await run.finish()
    ours = [event async for event in reader.events()]
    brain = [event async for event in reader.events(view="brain")]
    assert [event.sequence for event in brain] == [event.sequence for event in ours]
    assert [event.data for event in brain] == [event.data for event in ours]
    assert [event.type for event in brain] == [BRAIN_NAMES[event.type] for event in ours]
    assert [event.type for event in brain][-1] == "turn_ended"
    table = (Path(__file__).parents[3] / "docs" / "sessions.md").read_text("utf-8")
    table = table.partition("### Names")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\S+)` \| `(\w+)`", table, re.MULTILINE)
    assert dict(rows) == BRAIN_NAMES
    assert set(BRAIN_NAMES) == ev.VOCABULARY
    assert len(set(BRAIN_NAMES.values())) == len(BRAIN_NAMES)


async def test_f30_an_unknown_event_is_refused_unless_it_is_ignorable(
    store, begin, reader, put_unknown
):
    run = await begin(store)
    await run.finish()
    before = (await reader.transcript()).messages
    await put_unknown("newer/thing", ignorable=True)
    assert (await reader.transcript()).messages == before
    seq = await put_unknown("newer/other", ignorable=False)
    with pytest.raises(SessionFormatUnsupportedError, match="newer/other") as refused:
        await reader.transcript()
    assert (refused.value.type, refused.value.seq) == ("newer/other", seq)
    raw = [event async for event in reader.events()]
    assert [event.type for event in raw][-2:] == ["newer/thing", "newer/other"]
    with pytest.raises(SessionFormatUnsupportedError):
        derive_messages(raw)


async def test_f33_a_blank_answer_adds_no_message(store, begin, make, reader):
    run = await begin(store)
    await run.append(make.answer(""), make.answer("Done."))
    found = [event async for event in reader.events()]
    derived = [message for event in found if (message := derive_event_message(event))]
    assert derived == [message.to_json() for message in derive_messages(found)]
    assert [message["content"] for message in derived] == ["Plan my trip", "Done."]
    row = await store.session("trip")
    assert (await store.state(row.log_id, row.head)).usage["inputTokens"] == 20


async def test_f35_transcript_position(store, begin, make, reader):
    """While a run writes, the messages are always those of the events up to the position."""
    run = await begin(store)
    random.seed(35)

    async def write() -> None:
        for number in range(40):
            if number % 10 == 9:
                keep = random.randrange(3)
                new = [{"role": "user", "content": "so far"}]
                await run.append(NewEvent(ev.TRANSCRIPT_DELTA, {"keep": keep, "append": new}))
            await run.turn("weather")

    writing = asyncio.create_task(write())
    positions: list[int] = []
    while len(positions) < 100 or not writing.done():
        messages, through = await reader.transcript()
        positions.append(through)
        events = [event async for event in reader.events()]
        assert derive_messages(events[:through]) == messages
    await writing
    assert len(set(positions)) > 3
    # F26: the same for every position, afterwards.
    events = [event async for event in reader.events()]
    for through in range(0, len(events) + 1, 7):
        messages, at = await reader.transcript(through)
        assert at == through
        assert derive_messages(events[:through]) == messages


async def test_turns_are_listed_with_how_they_ended(store, begin, make, reader):
    run = await begin(store)
    await run.turn("weather")
    await run.finish()
    again = await begin(store, run_id="run-2", text="More")
    open_turn, done_turn = (await reader.turns())[::-1]
    assert done_turn.to_json() == {
        "turn": 1,
        "runId": "run-1",
        "outcome": "ended",
        "reason": {"kind": "completed"},
        "steps": 2,
        "startSequence": 1,
        "endSequence": 6,
        "startedAt": 1000,
        "endedAt": 1000,
    }
    assert (open_turn.outcome, open_turn.steps, open_turn.start_sequence) == ("pending", 0, 7)
    error = {"kind": "error", "error": {"code": "X", "message": "no"}}
    await again.append(NewEvent(ev.TURN_END, {"turn": 2, "reason": error}))
    assert (await reader.turns())[1].outcome == "failed"


async def test_a_stream_catches_up_and_follows_without_gap_or_repeat(store, begin, make, reader):
    run = await begin(store)
    await run.append(*(make.user(str(number)) for number in range(5)))
    url = store.database.url.render_as_string(hide_password=False)

    async def follow(after: int) -> list[int]:
        # As another process would: with a store of its own.
        got = []
        async with SqlStore(url) as other:
            async for event in StoredSession(other, "trip").stream(after):
                got.append(event.sequence)
                if len(got) == 30:
                    started.release()
                if event.type == ev.TURN_END:
                    return got
        raise AssertionError

    started = asyncio.Semaphore(0)
    followers = [asyncio.create_task(follow(after)) for after in (0, 3)]
    for number in range(60):
        await run.append(make.user(f"more {number}"))
    for _ in followers:
        await started.acquire()
    await run.finish()
    whole = list(range(1, run.head + 1))
    assert [await each for each in followers] == [whole, whole[3:]]


async def test_a_stream_hears_of_an_append_while_it_waits(store, begin, make, reader):
    run = await begin(store)
    got: asyncio.Queue[int] = asyncio.Queue()

    async def follow() -> None:
        async for event in reader.stream():
            got.put_nowait(event.sequence)

    task = asyncio.create_task(follow())
    assert [await got.get(), await got.get()] == [1, 2]
    for number in range(3, 6):
        await run.append(make.user("more"))
        async with asyncio.timeout(4):  # less than the look that needs no notice
            assert await got.get() == number
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_of_a_deleted_session_ends_with_an_error(store, begin, reader):
    run = await begin(store)
    stream = reader.stream()
    assert [(await anext(stream)).sequence for _ in range(2)] == [1, 2]
    await run.finish()
    await store.delete("trip")
    await begin(store, text="Another")
    with pytest.raises(SessionNotFoundError, match="was deleted"):
        await anext(stream)
