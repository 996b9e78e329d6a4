"""Stores of entries: what each of them does, and that they list the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint_bridge.log.entries import Entry, EntryTypes
from perdure.checkpoint_bridge.stores.entry_stores import JsonLinesStore, SqlEntries, session_info

if TYPE_CHECKING:
    from pathlib import Path

AGENT = "../trip agent"


def entry(sequence: int, text: str) -> Entry:
    return Entry(EntryTypes.USER, sequence, sequence * 1000, {"content": text})


async def test_f111_the_contract(tmp_path: Path) -> None:
    store = JsonLinesStore(tmp_path / "sessions")
    assert await store.read(AGENT, "nope") == []
    assert await store.list(AGENT) == []
    for number, session_id in enumerate(("a", "b.fork-1", "a")):
        await store.append(AGENT, session_id, entry(number + 1, f"é {number}\u2028"))
    await store.append("other", "a", entry(9, "theirs"))
    assert [each.data["content"] for each in await store.read(AGENT, "a")] == [
        "é 0\u2028",
        "é 2\u2028",
    ]
    listed = await store.list(AGENT)
    assert [each.session_id for each in listed] == ["a", "b.fork-1"]
    assert listed[0] == session_info(AGENT, "a", await store.read(AGENT, "a"))
    assert (listed[0].title, listed[0].last_activity, listed[0].entry_count) == ("é 0", 3000, 2)
    for _ in range(2):
        await store.delete(AGENT, "a")
        await store.delete(AGENT, "b.fork-1")
    assert await store.list(AGENT) == []
    assert len(await store.read("other", "a")) == 1


async def test_f111_two_stores_list_the_same(
    store: Any, begin: Any, make: Any, tmp_path: Path
) -> None:
    for session_id in ("trip", "other"):
        run = await begin(store, session_id, text=f"Plan {session_id} " + "x" * 100)
        run.time_ms = 5_000 if session_id == "trip" else 4_000
        await run.turn("look", size=make.large)
        await run.finish()
    ours, files = SqlEntries(store), JsonLinesStore(tmp_path)
    assert await ours.copy_to(files, "trip", "trip") == 4
    assert await ours.copy_to(files, "trip", "trip") == 0
    await ours.copy_to(files, "trip", "other")
    assert await files.list("trip") == await ours.list("trip")
    assert [each.session_id for each in await ours.list("trip")] == ["trip", "other"]
    assert await ours.read("trip", "nope") == await ours.read("nobody", "trip") == []
    await ours.delete("nobody", "trip")
    await ours.delete("trip", "trip")
    assert [each.session_id for each in await ours.list("trip")] == ["other"]


async def test_f111_an_append_that_raises_is_the_last(
    store: Any, begin: Any, tmp_path: Path
) -> None:
    class Full(JsonLinesStore):
        async def append(self, agent: str, session_id: str, entry: Entry) -> None:
            if len(await self.read(agent, session_id)) == 2:
                raise OSError("the disk is full")
            await super().append(agent, session_id, entry)

    run = await begin(store)
    await run.turn("look")
    await run.finish()
    full = Full(tmp_path)
    with pytest.raises(OSError, match="full"):
        await SqlEntries(store).copy_to(full, "trip", "trip")
    assert len(await full.read("trip", "trip")) == 2
