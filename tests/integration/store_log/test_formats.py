"""Logs of other formats, and damaged ones: told apart, never read wrong, never changed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.emitting import Emission, emit
from perdure.checkpoint_bridge.errors import (
    SessionFormatUnsupportedError,
    SessionLogCorruptError,
)
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.checkpoint_bridge.log.formats import CURRENT, LogFormats
from perdure.checkpoint_bridge.log.headers import SESSION_FORMAT_VERSION, SessionHeader
from perdure.checkpoint_bridge.tables.schema import events, sessions


def to_2(type_: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Format 1 of these tests calls a user's message by another name."""
    return (ev.USER_MESSAGE if type_ == "user/said" else type_), data


def to_3(type_: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Format 2 has its text alone."""
    if type_ == ev.USER_MESSAGE and "text" in data:
        return type_, {"message": {"role": "user", "content": data["text"]}}
    return type_, data


FORMATS = LogFormats(3, {1: to_2, 2: to_3})


def stored(connection: Any, log_id: int | None = None) -> list[tuple[Any, ...]]:
    query = select(events).order_by(events.c.log_id, events.c.seq)
    if log_id is not None:
        query = query.where(events.c.log_id == log_id)
    return [tuple(row) for row in connection.execute(query)]


def reading(url: str, formats: LogFormats) -> Any:
    """The store as a later version would have it."""
    return SqlStore(url, formats=formats)


async def old_session(store: Any, begin: Any, make: Any) -> Any:
    """A session of format 1, whose second message is as that format had it."""
    run = await begin(store)
    await run.turn("look", size=make.large)
    await run.append(NewEvent("user/said", {"text": "And now?"}))
    await run.turn("see")
    await run.finish("Done.")
    return run


def set_version(connection: Any, session_id: str, version: int) -> None:
    where = sessions.c.session_id == session_id
    connection.execute(update(sessions).where(where).values(version=version))


def damage(connection: Any, seq: int) -> None:
    where = events.c.seq == seq
    connection.execute(update(events).where(where).values(digest="0" * 64))


async def test_f102_an_older_log_goes_through_all_steps(store, begin, make, sql_url, rows):
    run = await old_session(store, begin, make)
    before = await store.database.read(stored)
    uid = await store.log_uid(run.log_id)
    async with reading(sql_url, FORMATS) as newer:
        row = await newer.session("trip")
        assert (row.version, SessionHeader.of(row).version) == (3, 3)
        said = [m["content"] for m in (await newer.load("trip")).to_json()["messages"]]
        assert [text for text in said if text in ("Plan my trip", "And now?", "Done.")] == [
            "Plan my trip",
            "And now?",
            "Done.",
        ]
        log = await newer.events("trip")
        assert [each.seq for each in log] == list(range(run.head))
        assert len(await newer.history("trip")) == 5
        # What was there is there as it was, and idempotency keys are the same.
        assert await newer.database.read(stored, run.log_id) == before
        assert await newer.log_uid(row.log_id) == uid
        await newer.verify("trip")
        # It goes on, can be forked, and goes with all that it was made of.
        again = await begin(newer, "trip", "run-2")
        await again.finish("More.")
        fork_id, _ = await newer.fork("trip", from_step=1)
        assert (await newer.session(fork_id)).version == 3
        await newer.delete("trip")
        assert [m["content"] for m in (await newer.load(fork_id)).to_json()["messages"]][-1]
        await newer.delete(fork_id)
    assert rows() == {}


async def test_f102_forks_of_an_older_log_keep_their_beginning(store, begin, make, sql_url, rows):
    await old_session(store, begin, make)
    await store.fork("trip", from_step=1)
    old = [(e.seq, e.time_ms) for e in await store.events("trip.fork-1")]
    async with reading(sql_url, FORMATS) as newer:
        await newer.session("trip")
        assert [(e.seq, e.time_ms) for e in await newer.events("trip.fork-1")] == old
        await newer.delete("trip.fork-1")
        assert len(await newer.events("trip")) == 9
        await newer.delete("trip")
    assert rows() == {}


async def emitting(store: Any, begin: Any, make: Any, type_: str) -> Any:
    """A session of format 1 in which a tool has emitted an event."""
    run = await begin(store)
    call = NewEvent(ev.TOOL_CALL, {"seq": 2, "index": 0, "name": "look"})
    await run.append(make.answer("", "look"), call, save=ev.IN_PROGRESS)
    emission = Emission("trip", run.log_id, run.run_id, 2, 0, "1.1", type_, {"text": "half"})
    run.head = await store.database.write(emit, emission, 7)
    await run.append(make.result(2, 0, "look"), NewEvent(ev.STEP_END, {}), save=ev.IN_PROGRESS)
    await run.finish("Done.")
    return run


async def test_f102_what_tools_emit_passes_unchanged(store, begin, make, sql_url):
    run = await emitting(store, begin, make, "app/progress")
    (before,) = [each for each in await store.events("trip") if each.ignorable]

    def careful(type_: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        assert type_ in ev.VOCABULARY
        return type_, {**data, "text": 0}

    async with reading(sql_url, LogFormats(2, {1: careful})) as newer:
        log = await newer.events("trip")
        assert log[before.seq] == before
        assert log[before.seq - 1].data["text"] == 0
        row = await newer.session("trip")
        old, new = [await newer.database.read(stored, each) for each in (run.log_id, row.log_id)]
        assert new[before.seq][1:] == old[before.seq][1:]
        await newer.verify("trip")


async def test_f102_an_unknown_event_of_ours_is_not_guessed(store, begin, make, sql_url):
    await emitting(store, begin, make, "turn/mood")
    async with reading(sql_url, FORMATS) as newer:
        with pytest.raises(SessionFormatUnsupportedError):
            await newer.load("trip")
    assert (await store.session("trip")).version == 1


async def test_f102_a_step_that_fails_publishes_nothing(store, begin, make, sql_url):
    await old_session(store, begin, make)
    before = await store.database.read(stored)

    def broken(type_: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if type_ == ev.TURN_END:
            raise KeyError("reason")
        return type_, data

    async with reading(sql_url, LogFormats(3, {1: to_2, 2: broken})) as newer:
        with pytest.raises(SessionLogCorruptError, match="from format 1 to 3"):
            await newer.load("trip")
    row = await store.session("trip")
    assert row.version == 1
    assert await store.database.read(stored) == before


async def test_f102_a_running_session_is_not_brought_over(store, begin, sql_url):
    await begin(store)
    async with reading(sql_url, FORMATS) as newer:
        with pytest.raises(SessionFormatUnsupportedError, match="a run of it goes on"):
            await newer.session("trip")


def test_f102_steps_have_no_gap():
    assert CURRENT.version == SESSION_FORMAT_VERSION
    for steps in ({1: to_2}, {1: to_2, 3: to_3}, {2: to_2, 3: to_3}):
        with pytest.raises(ValueError, match="gap"):
            LogFormats(3, steps)


async def test_f101_newer_and_damaged_are_told_apart(store, begin, make, sql_url):
    for session_id in ("trip", "newer"):
        run = await begin(store, session_id)
        await run.turn("look", size=make.large)
        await run.finish()
    await store.database.write(set_version, "newer", 99)
    before = await store.database.read(stored)
    reads = (store.session, store.load, store.history, store.events, store.verify)
    for read in reads:
        with pytest.raises(SessionFormatUnsupportedError, match="newer version of perdure"):
            await read("newer")
    with pytest.raises(SessionFormatUnsupportedError):
        await begin(store, "newer", "run-2")
    with pytest.raises(SessionFormatUnsupportedError):
        await store.fork("newer", from_step=1)
    assert await store.database.read(stored) == before
    await store.database.write(set_version, "newer", 0)
    with pytest.raises(SessionFormatUnsupportedError, match="older than any"):
        await store.load("newer")
    await store.verify("trip")
    await store.database.write(damage, 3)
    with pytest.raises(SessionLogCorruptError, match="damaged at event 3"):
        await store.verify("trip")
    for session_id in ("trip", "newer"):
        raw = await store.raw(session_id)
        assert raw["session"]["session_id"] == session_id
        assert [each["seq"] for each in raw["events"]] == list(range(raw["session"]["head"]))
    assert raw["session"]["version"] == 0
    assert (await store.raw("trip"))["events"][3]["digest"] == "0" * 64
    assert await store.raw("nope") is None
    # They can be deleted.
    await store.delete("newer")
    assert [row.session_id for row in await store.sessions()] == ["trip"]


@pytest.mark.parametrize(
    ("column", "value"), [("data", "{"), ("data", "{}"), ("type", "turn/end"), ("seq", 400)]
)
async def test_f101_any_damage_is_found(store, begin, make, column, value):
    run = await begin(store)
    await run.turn("look")

    def change(connection):
        connection.execute(update(events).where(events.c.seq == 1).values({column: value}))

    await store.database.write(change)
    store._states.clear()
    with pytest.raises(SessionLogCorruptError):
        await store.verify("trip")
    if value == "{":
        with pytest.raises(SessionLogCorruptError):
            await store.events("trip")
