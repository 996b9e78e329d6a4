"""A store of entries of the user's own beside whole runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge import JsonLinesStore, SqlEntries, SqlStore
from perdure.checkpoint_bridge.errors import EntryStoreError
from perdure.testing import call
from perdure.worker import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from perdure.checkpoint_bridge.log.entries import Entry
    from tests.integration.runs.conftest import Bench


class Full(JsonLinesStore):
    """Takes some entries, and no more until it is mended."""

    takes = 0

    async def append(self, agent: str, session_id: str, entry: Entry) -> None:
        if len(await self.read(agent, session_id)) == self.takes:
            raise OSError("the disk is full")
        await super().append(agent, session_id, entry)


@pytest.fixture
def full(tmp_path: Path) -> Full:
    return Full(tmp_path)


@tool(read_only=True)
def look(at: str) -> str:
    return f"saw {at}"


@contextlib.asynccontextmanager
async def entered(bench: Bench, agent: Agent, entries: Any) -> AsyncIterator[None]:
    async with (
        SqlStore(bench.store_url, entries=entries) as store,
        serving(bench.temporal, [agent], store, task_queue=bench.queue),
    ):
        yield


async def test_f111_an_append_that_raises_fails_the_turn(
    bench: Bench, session: str, full: Full
) -> None:
    agent = Agent("a", provider=bench.model([call("look", {"at": "x"})], "Seen."), tools=[look])
    full.takes = 2
    async with entered(bench, agent, full):
        with pytest.raises(EntryStoreError, match="OSError: the disk is full") as caught:
            await bench.client.execute("a", "Look", session_id=session)
        assert caught.value.code == "PERDURE_ENTRY_STORE"
        assert [each.type for each in await full.read("a", session)] == ["user", "tool_call"]
        assert len(await bench.events("turn/end")) == 1
        full.takes = -1
        result = await bench.client.resume(session)
    assert result is not None
    assert result.text == "Seen."
    held = await full.read("a", session)
    assert [each.type for each in held] == ["user", "tool_call", "tool_result", "error", "answer"]
    assert held == await SqlEntries(bench.store).read("a", session)
    assert await full.list("a") == await SqlEntries(bench.store).list("a")


async def test_f111_a_refused_answer_fails_its_turn_too(
    bench: Bench, session: str, full: Full
) -> None:
    agent = Agent("a", provider=bench.model("One.", "Two."))
    full.takes = 1
    async with entered(bench, agent, full):
        with pytest.raises(EntryStoreError):
            await bench.client.execute("a", "First", session_id=session)
        assert len(await full.read("a", session)) == 1
        full.takes = -1
        await bench.client.execute("a", "Second", session_id=session)
    said = [each.data["content"] for each in await full.read("a", session)]
    assert said == ["First", "One.", "Second", "Two."]


async def test_a_cancel_ends_a_run_whose_entries_are_refused(
    bench: Bench, session: str, full: Full
) -> None:
    gate = bench.gate()

    @tool(read_only=True)
    async def wait() -> None:
        await gate.hold()

    agent = Agent("a", provider=bench.model([call("wait")], "Late."), tools=[wait])
    full.takes = 2
    async with entered(bench, agent, full):
        handle = await bench.client.start("a", "Wait", session_id=session)
        await gate.reached()
        await bench.workflow().cancel()
        assert (await handle.result()).finish_reason == "aborted"
    assert len(await full.read("a", session)) == 2


async def test_entries_of_another_session_under_the_id_are_refused(
    bench: Bench, session: str, full: Full
) -> None:
    agent = Agent("a", provider=bench.model("One.", "Two."))
    full.takes = -1
    async with entered(bench, agent, full):
        await bench.client.execute("a", "First", session_id=session)
        await bench.store.delete(session)
        with pytest.raises(EntryStoreError, match="holds another session"):
            await bench.client.execute("a", "Second", session_id=session)
    assert len(await full.read("a", session)) == 2
