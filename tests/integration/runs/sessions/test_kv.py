"""The key-value state of a session: what tools keep, and what the log says of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, PropagatingToolError, ToolContext, fold, tool
from perdure.checkpoint_bridge.errors import ConfigurationError, PerdureError
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench

GONE = "nothing"


@tool(idempotent=True)
async def keep(key: str, ctx: ToolContext, value: Any = None) -> None:
    await ctx.kv.set(key, value)


@tool(idempotent=True)
async def drop(key: str, ctx: ToolContext) -> None:
    await ctx.kv.delete(key)


@tool(read_only=True)
async def look(key: str, ctx: ToolContext) -> Any:
    return await ctx.kv.get(key, GONE)


async def test_f26_a_log_folds_to_messages_and_state_at_every_sequence(bench: Bench) -> None:
    cart = {"items": [1, 2.5, "x"]}
    model = bench.model(
        "Hello.",
        [call("keep", {"key": "cart", "value": cart}), call("keep", {"key": "note"})],
        [call("look", {"key": "note"}), call("look", {"key": "never"})],
        "One.",
    )
    session = bench.client.sessions.get(bench.session)
    async with bench.serving(Agent("agent", provider=model, tools=[keep, drop, look])):
        await session.send("Hello", agent="agent")
        await session.send("First")
        assert await session.compact(keep_last=1, summary="They greeted.") is not None
        # The answers are counted in what the model is shown, which is one less by now.
        drops = [call("drop", {"key": "cart"}), call("drop", {"key": "never"})]
        model.turns[3:] = [
            [*drops, call("keep", {"key": "n", "value": 1})],
            [call("look", {"key": "cart"})],
            "Two.",
        ]
        await session.send("Second")
    log = [event async for event in session.events()]
    states: list[dict[str, Any]] = []
    for through in range(len(log) + 1):
        kv = await session.kv(through)
        transcript = await session.transcript(through)
        assert fold(log[:through]) == (transcript.messages, kv)
        if not states or states[-1] != kv:
            states.append(kv)
    assert states[0] == {}
    assert {"cart": cart, "note": None} in states
    assert states[-1] == await session.kv() == {"note": None, "n": 1}
    looked = [e.data["message"]["content"] for e in log if e.type == "tool/result"]
    assert (looked[2:4], looked[-1]) == (["null", f'"{GONE}"'], f'"{GONE}"')
    changes = [event for event in log if event.type.startswith("kv_")]
    assert {event.type for event in changes} == {"kv_set", "kv_delete"}
    assert all(event.origin and event.origin.kind == "tool" for event in changes)
    brain = [event.type async for event in session.events(view="brain")]
    assert [type_ for type_ in brain if type_.startswith("kv_")] == [e.type for e in changes]
    mine = await session.kv()
    mine["n"] = 2
    assert (await session.kv())["n"] == 1
    with pytest.raises(ConfigurationError, match="ends at sequence"):
        await session.kv(len(log) + 1)


async def test_f26_threads_local_tools_and_forks(bench: Bench) -> None:
    seen: list[Any] = []

    @tool(idempotent=True)
    def threaded(ctx: ToolContext) -> None:
        ctx.kv.set_from_thread("a", 1)
        ctx.kv.set_from_thread("b", [None])
        ctx.kv.delete_from_thread("a")
        seen.extend(ctx.kv.get_from_thread(key, GONE) for key in "ab")

    @tool(local=True)
    async def quick(ctx: ToolContext) -> None:
        await ctx.kv.set("c", await ctx.kv.get("b"))
        with pytest.raises(PerdureError, match=r"await ctx\.kv\.set"):
            ctx.kv.set_from_thread("c", 1)

    model = bench.model([call("threaded")], "One.", [call("quick")], "Two.")
    session = bench.client.sessions.get(bench.session)
    async with bench.serving(Agent("agent", provider=model, tools=[threaded, quick])):
        await session.send("First", agent="agent")
        first = [event async for event in session.events()][-1]
        await session.send("Second")
    assert seen == [GONE, [None]]
    assert await session.kv() == {"b": [None], "c": [None]}
    fork = await session.fork(boundary=first.seq)
    assert await fork.kv() == {"b": [None]}


async def test_f26_what_is_refused(bench: Bench) -> None:
    refused: list[str] = []

    @tool(idempotent=True)
    async def wrong(ctx: ToolContext) -> None:
        for key, value in (
            ("", 1),
            ("k" * 201, 1),
            (7, 1),
            ("k", float("nan")),
            ("k", (1, 2)),
            ("k", {1: "one"}),
            ("k", b"bytes"),
            ("k", "x" * 64 * 1024),
        ):
            try:
                await ctx.kv.set(key, value)  # type: ignore[arg-type]
            except ConfigurationError as error:
                refused.append(str(error))
        await ctx.kv.set("k" * 200, "x" * (64 * 1024 - 2))

    async with bench.serving(
        Agent("agent", provider=bench.model([call("wrong")], "Done."), tools=[wrong])
    ):
        await bench.client.execute("agent", "Go", session_id=bench.session)
    assert len(refused) == 8
    assert all("\n" not in line for line in refused)
    assert refused[-1] == "The value of 'k' has 65,538 bytes as JSON; at most 65,536 are kept."
    assert len(await bench.events("kv_set")) == 1


async def test_f27_a_failed_turn_keeps_what_it_had_set(bench: Bench) -> None:
    @tool(idempotent=True)
    async def fails(ctx: ToolContext) -> None:
        await ctx.kv.set("charged", {"id": 7})
        msg = "No."
        raise PropagatingToolError(msg)

    session = bench.client.sessions.get(bench.session)
    async with bench.serving(Agent("agent", provider=bench.model([call("fails")]), tools=[fails])):
        with pytest.raises(PropagatingToolError):
            await session.send("Go", agent="agent")
    (turn,) = await session.turns()
    assert turn.outcome == (await session.outcome(turn.start_sequence)).state == "failed"
    assert await session.kv() == {"charged": {"id": 7}}


async def test_outside_of_a_run_the_state_is_in_memory() -> None:
    context = ToolContext("s", "r", "c", "k", 1, logging.getLogger("test"))
    value = {"a": [1]}
    await context.kv.set("k", value)
    value["a"].append(2)
    assert await context.kv.get("k") == {"a": [1]}
    await context.kv.set("k", None)
    assert await context.kv.get("k", GONE) is None
    await context.kv.delete("k")
    assert await context.kv.get("k", GONE) == GONE
    with pytest.raises(ConfigurationError, match="1 to 200 characters"):
        await context.kv.get("")
