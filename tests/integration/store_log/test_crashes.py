"""Writers that are killed, and many that write at once."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.log import events as ev

WRITER = Path(__file__).with_name("killed_writer.py")


async def test_a_killed_writer_leaves_whole_appends(store, sql_url, rows):
    # The store stays open meanwhile, as that of another worker would.
    await store.sessions()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WRITER), sql_url, "20", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    told = [json.loads(line) for line in output.splitlines()]
    assert len(told) == 20
    ends = {1}
    while max(ends) < 1000:
        ends.add(max(ends) + 1 + len(ends) % 4)
    for each in told:
        row = await store.session(each["session"])
        log = await store.events(each["session"])
        # Everything that was told is there, nothing has a gap, and no append is there in part.
        assert row.head >= each["told"]
        assert [event.seq for event in log] == list(range(row.head))
        assert row.head in ends
        # And the session can go on: the next writer appends at its end.
        state = await store.state(row.log_id, row.head)
        assert len(state.messages) == row.head - 1
        loaded = await store.load(each["session"])
        assert len(loaded.messages) == row.head - 1
    await asyncio.gather(*(store.delete(each["session"]) for each in told))
    assert rows() == {}


async def test_many_writers_lose_nothing(sql_url, begin, make):
    """Eight stores, each with twenty sessions of its own, and one that all write to."""
    stores = [SqlStore(sql_url) for _ in range(8)]

    async def write(number: int, session_id: str) -> None:
        run = await begin(stores[number], session_id, text=session_id)
        await run.turn("weather")
        await run.finish()

    async def write_some(number: int, first: int) -> None:
        for index in range(first, first + 4):
            await write(number, f"w{number}-{index}")

    async def save(number: int) -> None:
        record = await stores[0].load("shared")
        assert record is not None
        await stores[number].save("shared", record.replace(agent_id=f"a{number}"))

    await write(0, "shared")
    try:
        await asyncio.gather(
            *(write_some(number, first) for number in range(8) for first in range(0, 20, 4)),
            *(save(number) for number in range(8)),
        )
        found = {row.session_id: row for row in await stores[3].sessions()}
        assert len(found) == 161
        for session_id in list(found)[::10]:
            log = await stores[5].events(session_id)
            assert [event.seq for event in log] == list(range(found[session_id].head))
            if session_id != "shared":
                assert (found[session_id].status, found[session_id].step) == ("finished", 2)
                assert len(await stores[1].history(session_id)) == 3
        shared = await stores[7].history("shared")
        agents = {entry.checkpoint.agent_id for entry in shared}
        assert agents == {"trip", *(f"a{number}" for number in range(8))}
        assert len(shared) == 3 + 8
    finally:
        for each in stores:
            await each.close()


async def test_readers_see_whole_appends_while_others_write(store, sql_url, begin, make):
    run = await begin(store)
    other = SqlStore(sql_url)
    done = asyncio.Event()

    async def read() -> int:
        count = 0
        while not done.is_set():
            for entry in await other.history("trip", 5):
                # Each turn is one append of two messages.
                assert len(entry.checkpoint.messages) % 2 == 1
            loaded = await other.load("trip")
            assert loaded is None or len(loaded.messages) % 2 == 1
            count += 1
        return count

    reading = asyncio.create_task(read())
    for number in range(30):
        await run.append(make.user(f"{number}"), make.user(make.large), save=ev.IN_PROGRESS)
    done.set()
    assert await reading > 0
    await other.close()


@pytest.mark.parametrize("rounds", [10])
async def test_deletes_beside_writes_keep_what_is_named(store, begin, make, rows, rounds):
    """One content in many sessions: it is gone with the last of them, and not before."""

    async def live(number: int) -> None:
        run = await begin(store, f"s{number}", text=make.large)
        await run.append(make.user(make.large + "!"), save=ev.IN_PROGRESS)
        assert len((await store.load(f"s{number}")).messages) == 2
        store._states.clear()
        assert (await store.load(f"s{number}")).to_json()["messages"][0]["content"] == make.large
        await store.delete(f"s{number}")

    for _ in range(rounds):
        await asyncio.gather(*(live(number) for number in range(8)))
    assert rows() == {}
