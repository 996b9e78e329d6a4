"""Forks behind an event of the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ForkPatch, tool
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    ForkBoundaryError,
    SessionExistsError,
    SessionIdInvalidError,
    SessionNotFoundError,
)
from perdure.testing import call

if TYPE_CHECKING:
    from perdure.sessions.session import Session
    from tests.integration.runs.conftest import Bench

TURNS = 10


def story(bench: Bench, *more: Any) -> Agent:
    @tool(read_only=True)
    async def look() -> str:
        return "seen"

    model = bench.model(*(f"Answer {n}" for n in range(1, TURNS + 1)), *more)
    return Agent("guide", provider=model, tools=[look])


async def tell(bench: Bench, turns: int = TURNS) -> Session:
    for n in range(1, turns + 1):
        await bench.client.execute("guide", f"Message {n}", session_id=bench.session)
    return await bench.client.sessions.open(bench.session)


async def contents(bench: Bench, session: Session) -> list[str]:
    messages = (await bench.record(session.session_id))["messages"]
    return [message["content"] for message in messages]


async def test_f95_a_fork_begins_behind_any_turn(bench: Bench) -> None:
    agent = story(bench, [call("look")], "Now.")
    async with bench.serving(agent):
        gate = bench.models[0].gate(TURNS + 2)
        session = await tell(bench)
        await bench.client.start("guide", "Message 11", session_id=bench.session)
        await gate.reached()
        log = await bench.events()
        ends = [each.seq for each in log if each.type == "turn/end"]
        child = await session.fork(boundary=ends[6])
        copied = await bench.events(session_id=child.session_id)
        assert copied[:-1] == log[: ends[6] + 1]
        assert (copied[-1].type, copied[-1].seq) == ("session/end-seed", ends[6] + 1)
        assert copied[-1].data["inherited"] is True
        assert len(await contents(bench, child)) == 14
        # By default, behind the newest turn that has ended.
        newest = await session.fork()
        assert len(await bench.events(session_id=newest.session_id)) == ends[9] + 2
        before = len(await bench.client.sessions.list())
        for inside in (log[-1].seq, ends[9] + 1, ends[0] - 1):
            with pytest.raises(ForkBoundaryError) as caught:
                await session.fork(boundary=inside)
            assert caught.value.code == "PERDURE_OPEN_TURN"
        assert len(await bench.client.sessions.list()) == before
        result = await bench.client.execute("guide", "Again 8", session_id=child.session_id)
        assert result.text == "Answer 8"
        closed = await session.fork(boundary=log[-1].seq, close_open_turn=True)
        assert await bench.client.resume(closed.session_id) is None
        assert await bench.events() == log
        gate.open()
        result = await bench.client.execute("guide", "And now", session_id=closed.session_id)
        assert result.text == "Now."


async def test_f95_an_open_turn_is_closed_in_the_fork(bench: Bench) -> None:
    agent = story(bench, [call("look"), call("look")], "Well.")
    async with bench.serving(agent):
        session = await tell(bench)
        await bench.client.execute("guide", "Look", session_id=bench.session)
        (asked,) = [
            each for each in await bench.events("assistant/message") if each.data["step"] == 1
        ][-1:]
        closed = await session.fork(boundary=asked.seq, close_open_turn=True)
        added = (await bench.events(session_id=closed.session_id))[asked.seq + 1 :]
        assert [each.type for each in added] == [
            "session/end-seed",
            "tool/result",
            "tool/result",
            "step/end",
            "turn/end",
        ]
        assert added[-1].data["reason"] == {"kind": "forked"}
        info = await closed.info()
        assert (info.status, info.open_tools) == ("idle", [])
        result = await bench.client.execute("guide", "Go on", session_id=closed.session_id)
        assert (result.text, result.steps) == ("Well.", 1)


async def test_f95_forks_of_one_point_run_side_by_side(bench: Bench) -> None:
    async with bench.serving(story(bench)):
        session = await tell(bench, 2)
        before = await bench.events()
        forks = await session.fork_many(4)
        await asyncio.gather(
            *(
                bench.client.execute("guide", f"Way {n}", session_id=fork.session_id)
                for n, fork in enumerate(forks)
            )
        )
        logs = [await bench.events(session_id=fork.session_id) for fork in forks]
        assert len({fork.session_id for fork in forks}) == 4
        assert all(log[: len(before)] == before for log in logs)
        assert [(await contents(bench, fork))[-2:] for fork in forks] == [
            [f"Way {n}", "Answer 3"] for n in range(4)
        ]
        assert await bench.events() == before


async def test_f96_what_a_fork_inherits_is_its_own(bench: Bench) -> None:
    bench_model = bench.model("One", "Two", "Three", usage={"inputTokens": 9, "totalTokens": 10})
    async with bench.serving(Agent("guide", provider=bench_model)):
        session = await tell(bench, 2)
        fork = await session.fork()
        before = await bench.events()
        header = (await fork.info()).header
        assert (header.parent_session, header.is_seeded) == (bench.session, True)
        count = header.inherited_event_count
        assert count == len(before)
        for each in (fork, session):
            await bench.client.execute("guide", "On", session_id=each.session_id)
        assert (await bench.events())[:count] == before
        assert (await fork.usage(own=True)).total_tokens == 10
        assert (await fork.usage()).total_tokens == 30
        assert (await session.usage(own=True)).total_tokens == 30
        await bench.client.sessions.delete(bench.session, force=True)
    log = await bench.events(session_id=fork.session_id)
    assert log[:count] == before
    assert log[count].type == "session/end-seed"


async def test_forks_that_cannot_be(bench: Bench) -> None:
    async with bench.serving(story(bench)):
        session = await tell(bench, 1)
        head = len(await bench.events())
        for boundary in (-1, head, True, "3"):
            with pytest.raises(ForkBoundaryError) as caught:
                await session.fork(boundary=boundary)  # type: ignore[arg-type]
            assert caught.value.code == "PERDURE_INVALID_BOUNDARY"
        for wrong in ({"from_step": 1, "boundary": 3}, {"patch": ForkPatch()}):
            with pytest.raises(ConfigurationError):
                await session.fork(**wrong)
        with pytest.raises(ConfigurationError, match="count"):
            await session.fork_many(0)
        with pytest.raises(SessionExistsError):
            await session.fork(new_session_id=bench.session)
        with pytest.raises(SessionIdInvalidError):
            await session.fork(new_session_id="a b")
        with pytest.raises(SessionNotFoundError) as missing:
            await bench.client.sessions.get("nope").fork()
        assert missing.value.code == "PERDURE_SESSION_NOT_FOUND"
        empty = await bench.client.sessions.create("guide")
        with pytest.raises(ForkBoundaryError):
            await empty.fork()
        by_step = await session.fork(from_step=1, patch=ForkPatch(append_input="More"))
        assert (await contents(bench, by_step))[-1] == "More"
        assert len(await bench.client.sessions.list()) == 3
