"""Pruning: what goes, what never goes, and that nothing else notices."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from perdure.checkpoint_bridge import ForkPatch, SqlStore
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.stores.pruning import Pruned
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables.schema import blobs, events, inputs, sessions

DAY = 24 * 60 * 60 * 1000
MEGABYTE = 1024 * 1024


async def checkpoint(store: Any, session_id: str) -> str:
    return json.dumps((await store.load(session_id)).to_json(), sort_keys=True)


@pytest.fixture
def finished(store, begin, make):
    """Makes a finished session whose last activity was some days ago."""

    async def make_session(session_id: str, days: float, agent: str = "trip") -> Any:
        run = await begin(store, session_id, text=f"{session_id} {make.large}")
        run.time_ms = now_ms() - int(days * DAY)
        await run.turn("weather", size=make.large)
        await run.finish()
        if agent != "trip":
            await change(store, session_id, agent=agent)
        return run

    return make_session


async def change(store: SqlStore, session_id: str, **values: Any) -> None:
    query = update(sessions).where(sessions.c.session_id == session_id).values(**values)
    await store.database.write(lambda connection: connection.execute(query))


async def total(store: SqlStore) -> int:
    """Bytes of all content that the store holds."""

    def count(connection: Any) -> int:
        inline = func.sum(func.length(events.c.data))
        large = select(func.coalesce(func.sum(func.length(blobs.c.content)), 0))
        of_events: int = connection.scalar(select(func.coalesce(inline, 0)))
        of_blobs: int = connection.scalar(large)
        return of_events + of_blobs

    return await store.database.read(count)


async def test_r14_the_size_is_that_of_distinct_content(store, begin, make, rows):
    """200 saves with a 1 MB image in step 1; then pruned, with a fork and a run that goes on."""
    run = await begin(store)
    await run.turn("look", size="i" * MEGABYTE)
    for _ in range(20):
        await ten_turns(run, make)
    content = len(await checkpoint(store, "trip"))
    assert content > MEGABYTE
    assert await total(store) < 1.3 * content
    fork_id, _ = await store.fork("trip", from_step=191, patch=ForkPatch(append_input="And?"))
    assert await total(store) < 1.3 * content

    # The run goes on, so only entries beyond the limit go.
    assert await store.prune(keep_latest=0) == Pruned((fork_id,), saves=202 - 50)
    fork_id, _ = await store.fork("trip", from_step=201, patch=ForkPatch(append_input="And?"))
    await run.finish()
    pruned = await store.prune(keep_latest=1)
    assert pruned.sessions in ((fork_id,), ("trip",))
    kept = "trip" if pruned.sessions == (fork_id,) else fork_id
    store._states.clear()
    assert json.loads(await checkpoint(store, kept))["messages"][2]["content"] == "i" * MEGABYTE
    assert (await store.prune(keep_latest=0)).sessions == (kept,)
    assert rows() == {}


async def ten_turns(run: Any, make: Any) -> None:
    """Ten steps with a save each, in one append."""
    new: list[NewEvent] = []
    for number in range(10):
        seq = run.head + len(new)
        text = f"{seq} {number} " + "w" * 500
        new += [make.answer("", "weather"), make.result(seq, 0, "weather", text)]
    kept = [NewSave(after, ev.IN_PROGRESS, "") for after in range(2, 22, 2)]
    run.head = await run.store.append(run.batch(*new, saves=kept))


async def test_r14_forks_outlive_what_they_share(store, finished, rows):
    await finished("old", 40)
    fork_id, _ = await store.fork("old", from_step=1)
    before = await checkpoint(store, fork_id)
    log = await store.events(fork_id)
    assert (await store.prune(older_than=timedelta(days=30))).sessions == ("old",)
    store._states.clear()
    assert await checkpoint(store, fork_id) == before
    assert await store.events(fork_id) == log
    await store.delete(fork_id)
    assert rows() == {}


async def test_f55_a_ring_of_saves_and_old_entries(sql_url, begin):
    async with SqlStore(sql_url, history_limit=3) as store:
        run = await begin(store)
        run.time_ms = now_ms() - 10 * DAY
        await run.turn("weather")
        await run.turn("weather")
        run.time_ms = now_ms() - DAY
        await run.finish()
        assert [entry.step for entry in await store.history("trip")] == [3, 2, 2]
        current = await checkpoint(store, "trip")
        pruned = await store.prune(history_older_than=timedelta(days=5))
        assert pruned == Pruned(saves=2)
        assert [entry.step for entry in await store.history("trip")] == [3]
        # The newest one is the checkpoint, however old.
        assert await store.prune(history_older_than=timedelta(0)) == Pruned()
        assert await checkpoint(store, "trip") == current
    async with SqlStore(sql_url, history_limit=0) as store:
        assert await store.history("trip") == []


async def test_what_goes_is_what_a_dry_run_says(store, finished, rows):
    for number, days in enumerate([50, 40, 20, 1]):
        await finished(f"a{number}", days)
        await finished(f"b{number}", days, agent="other")
    month = timedelta(days=30)
    everything = rows()
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({}, ()),
        ({"older_than": month}, ("a0", "b0", "a1", "b1")),
        ({"keep_latest": 3}, ("a0", "b0")),
        ({"keep_latest": 1, "older_than": month}, ("a0", "b0", "a1", "b1")),
        ({"keep_latest": 3, "older_than": timedelta(days=45)}, ("a0", "b0")),
        ({"keep_latest": 3, "agent": "other"}, ("b0",)),
        ({"keep_latest": 0, "agent": "nobody"}, ()),
    ]
    for conditions, expected in cases:
        found = await store.prune(**conditions, dry_run=True)
        assert set(found.sessions) == set(expected), conditions
    assert rows() == everything
    steps: list[tuple[int, int]] = []
    gone = await store.prune(older_than=month, on_progress=lambda *at: steps.append(at))
    assert set(gone.sessions) == {"a0", "b0", "a1", "b1"}
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert await store.prune(older_than=month) == Pruned()
    assert {row.session_id for row in await store.sessions()} == {"a2", "a3", "b2", "b3"}


async def test_what_is_not_over_never_goes(store, begin, make, finished):
    run = await begin(store, "running")
    await run.turn("weather")
    run = await begin(store, "waits")
    seq = run.head
    await run.append(make.answer("", "book"), make.ask("a1", seq), save=ev.AWAITING_APPROVAL)
    run = await begin(store, "failed")
    end = {"turn": 1, "reason": {"kind": "error", "error": {"code": "X", "message": "no"}}}
    await run.append(NewEvent(ev.TURN_END, end), save=ev.IN_PROGRESS)
    await finished("done", 3)
    again = await finished("again", 3)
    await begin(store, "again", "run-2")
    assert again.head < (await store.session("again")).head
    await store.save("outside", await store.load("done"))
    pruned = await store.prune(keep_latest=0)
    assert set(pruned.sessions) == {"failed", "done", "outside"}
    assert {row.session_id for row in await store.sessions()} == {"running", "waits", "again"}
    assert len(await store.approvals()) == 1


async def test_content_that_nobody_names_goes_when_nobody_can_want_it(store, begin, make):
    digest = await store.put_content("x" * 10_000)
    kept = await store.put_content("y" * 10_000)
    assert await store.prune() == Pruned()
    await grow_old(store, 31)
    # A run that is open may have been given it.
    run = await begin(store)
    assert await store.prune() == Pruned()
    await run.finish()
    # Stored again, it is wanted again.
    assert await store.put_content("y" * 10_000) == kept
    assert await store.prune(dry_run=True) == Pruned(contents=1)
    assert await store.prune() == Pruned(contents=1)
    assert await store.content(digest) is None
    assert await store.content(kept) is not None


async def test_input_waits_for_its_run_and_goes_with_its_session(store, begin, make, rows):
    """A large message is stored once, as its event has it, and outlives those who share it."""
    text = "m" * 100_000
    messages = [make.user(text).data["message"], make.user("small").data["message"]]
    digest = await store.put_input("s1", messages)
    assert digest == await store.put_input("s1", messages)
    other = await begin(store, "other", text=text)
    await other.finish()
    await store.delete("other")
    assert await store.input(digest) == messages
    await grow_old(store, 20)
    assert await store.prune() == Pruned()
    run = await begin(store, "s1", text=text)
    # The message, and the list that names it.
    assert rows()["blobs"] == 2
    await run.finish()
    assert (await store.prune(keep_latest=0)).sessions == ()  # stored just now: a run may come
    await store.delete("s1")
    assert rows() == {}


async def test_input_that_no_run_ever_took(store, rows):
    await store.put_input("never", [{"role": "user", "content": "m" * 100_000}])
    query = update(inputs).values(created_at=now_ms() - 31 * DAY)
    await store.database.write(lambda connection: connection.execute(query))
    assert await store.prune(dry_run=True) == Pruned(contents=2)
    assert await store.prune() == Pruned(contents=2)
    assert rows() == {}


async def grow_old(store: SqlStore, days: int) -> None:
    query = update(blobs).values(created_at=now_ms() - days * DAY)
    await store.database.write(lambda connection: connection.execute(query))


async def test_pruning_while_runs_name_the_same_content(store, begin, make, rows):
    """Five sessions end and begin anew, all with the same large values, under steady pruning."""
    over = asyncio.Event()

    async def live(number: int) -> None:
        for turn in range(3):
            run = await begin(store, f"s{number}", f"run-{turn}", text=make.large)
            await run.turn("weather", size=make.large)
            effect = run.effect()
            await store.begin_effect(
                effect, session_id=f"s{number}", run_id=f"run-{turn}", name="book"
            )
            message = make.result(run.head, 0, "book", make.large * 2).data["message"]
            await store.end_effect(
                effect, session_id=f"s{number}", name="book", outcome={}, message=message
            )
            await run.finish(make.large)
            log = await store.events(f"s{number}")
            told = [event.data["message"] for event in log if event.type == ev.TOOL_RESULT]
            assert all(message["content"] == make.large for message in told)

    async def prune() -> None:
        while not over.is_set():
            await store.prune(keep_latest=8)

    async def delete() -> None:
        """Others with the same content come and go."""
        number = 0
        while not over.is_set():
            number += 1
            run = await begin(store, f"short-{number}", text=make.large)
            await run.turn("weather", size=make.large)
            await run.finish(make.large)
            await store.delete(f"short-{number}")

    others = [asyncio.create_task(prune()), asyncio.create_task(delete())]
    try:
        await asyncio.gather(*(live(number) for number in range(5)))
    finally:
        over.set()
    await asyncio.gather(*others)
    store._states.clear()
    for number in range(5):
        assert f'"content": "{make.large}"' in await checkpoint(store, f"s{number}")
    await store.prune(keep_latest=0)
    assert rows() == {}


async def test_a_session_that_came_alive_meanwhile_stays(store, begin, finished, monkeypatch):
    await finished("old", 40)
    read = store.database.read

    async def read_and_open(use: Any, *arguments: Any, **more: Any) -> Any:
        found = await read(use, *arguments, **more)
        if getattr(use, "__name__", "") == "find_idle":
            await begin(store, "old", "run-2")
        return found

    monkeypatch.setattr(store.database, "read", read_and_open)
    assert (await store.prune(older_than=timedelta(days=30))).sessions == ()
    monkeypatch.undo()
    assert (await store.session("old")).writer == "run-2"


@pytest.mark.parametrize(
    "wrong", [{"older_than": 30}, {"keep_latest": -1}, {"keep_latest": True}, {"older_than": -DAY}]
)
async def test_wrong_arguments(store, wrong):
    with pytest.raises(ConfigurationError) as caught:
        await store.prune(**wrong)
    assert caught.value.field == next(iter(wrong))


async def test_a_file_can_be_made_smaller(store_url, begin, make):
    async with SqlStore(store_url) as store:
        for number in range(20):
            run = await begin(store, f"s{number}", text=f"{number} {make.large * 10}")
            await run.finish()
        await store.prune(keep_latest=1)
        await store.vacuum()
        path = Path(store.database.url.database or "")
        assert path.stat().st_size < 500_000  # noqa: ASYNC240 - once, at the end
        assert len(await store.sessions()) == 1
    async with SqlStore("sqlite://") as memory:
        await memory.vacuum()


async def test_postgres_is_not_told_to_vacuum(postgres_url):
    async with SqlStore(postgres_url) as store:
        with pytest.raises(ConfigurationError, match="by itself"):
            await store.vacuum()


async def test_saves_of_a_deleted_session_are_not_counted_twice(store, finished):
    await finished("old", 40)
    dry = await store.prune(
        older_than=timedelta(days=30), history_older_than=timedelta(days=5), dry_run=True
    )
    assert dry == await store.prune(
        older_than=timedelta(days=30), history_older_than=timedelta(days=5)
    )
    assert dry == Pruned(("old",))
