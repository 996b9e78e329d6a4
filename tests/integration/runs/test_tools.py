"""Tool calls: each has exactly one result, in call order, whatever happened to it."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import BaseModel, Field

from perdure import Agent, PropagatingToolError, ToolContext, tool
from perdure.testing import call

if TYPE_CHECKING:
    from perdure.tools import Tool
    from tests.integration.runs.conftest import Bench


async def run(bench: Bench, calls: list[Any], *tools: Tool, **options: Any) -> list[Any]:
    """One turn of calls, and an answer; returns the parsed results."""
    model = bench.model(calls, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=tools, **options)):
        result = await bench.client.execute("agent", "Go", session_id=bench.session)
    assert result.finish_reason == "stop"
    messages = await bench.results()
    assert [m["toolCallId"] for m in messages] == [each.id for each in result.tool_calls]
    assert len(await bench.events("tool/result")) == len(messages)
    return [json.loads(message["content"]) for message in messages]


async def errors(bench: Bench) -> list[bool]:
    return [message.get("isError", False) for message in await bench.results()]


class Refused(Exception):  # noqa: N818 - as a user's own would be
    pass


async def test_a_tool_that_raises(bench: Bench) -> None:
    ran: list[str] = []

    @tool(read_only=True)
    async def fails() -> None:
        ran.append("async")
        raise Refused("the bank said no")

    @tool(read_only=True)
    def fails_plainly() -> None:
        ran.append("sync")
        raise KeyError

    @tool(read_only=True)
    def fails_at_length() -> None:
        raise ValueError("x" * 5_000)

    calls = [call("fails"), call("fails_plainly"), call("fails_at_length")]
    first, second, third = await run(bench, calls, fails, fails_plainly, fails_at_length)
    assert first == {
        "error": "Refused",
        "toolName": "fails",
        "message": "the bank said no",
        "kind": "execution",
        "toolCallId": "call_1_1",
    }
    assert (second["error"], second["kind"]) == ("KeyError", "execution")
    assert third["message"] == "x" * 2_000 + "... (truncated)"
    assert await errors(bench) == [True] * 3
    # A raised error is an answer, not a reason to try again.
    assert sorted(ran) == ["async", "sync"]


class Order(BaseModel):
    amount: int = Field(gt=0)
    to: str


async def test_r6_arguments_that_do_not_fit(bench: Bench) -> None:
    ran: list[Order] = []

    @tool(idempotent=True)
    async def order(args: Order) -> str:
        ran.append(args)
        return "ordered"

    raw = [
        '{"amount": 0, "to": "Rome"}',
        '{"amount": 1}',
        '{"amount": 1, "to": "Rome"',
        "[1]",
        '"text"',
        "null",
        '{"amount": NaN, "to": "Rome"}',
        '{"amount": 1, "to": "Rome"}',
    ]
    results = await run(bench, [call("order", each) for each in raw], order)
    assert [each.to for each in ran] == ["Rome"]
    assert await errors(bench) == [True] * 7 + [False]
    assert {each["kind"] for each in results[:7]} == {"validation"}
    assert {each["error"] for each in results[:7]} == {"ToolArgumentsValidationError"}
    assert results[0]["issues"][0]["path"] == ["amount"]
    assert results[1]["issues"] == [
        {"path": ["to"], "message": "Field required", "type": "missing"}
    ]
    assert "not valid JSON" in results[2]["message"]
    assert "JSON object, not list" in results[3]["message"]


async def test_no_arguments_at_all(bench: Bench) -> None:
    @tool(read_only=True)
    def now(zone: str = "UTC") -> str:
        return zone

    assert await run(bench, [call("now", ""), call("now", " {} ")], now) == ["UTC", "UTC"]


async def test_r25_an_unknown_tool(bench: Bench) -> None:
    @tool(read_only=True)
    def known() -> str:
        return "fine"

    first, second = await run(bench, [call("unknown"), call("known")], known)
    assert (first["kind"], first["error"]) == ("not-found", "ToolNotFoundError")
    assert "unknown" in first["message"]
    assert "known" in first["message"]
    assert second == "fine"


async def test_r34_deadlines(bench: Bench) -> None:
    stuck = bench.gate()

    @tool(read_only=True, timeout=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    @tool(read_only=True, timeout=0.05)
    def slow_thread() -> None:
        stuck.hold_thread()

    @tool(read_only=True, timeout=60)
    async def quick() -> str:
        return "quick"

    calls = [call("slow"), call("slow_thread"), call("quick")]
    model = bench.model(calls, "Done.")
    agent = Agent("agent", provider=model, tools=[slow, slow_thread, quick])
    async with bench.serving(agent):
        await bench.client.execute("agent", "Go", session_id=bench.session)
        stuck.open()
    first, second, third = (json.loads(m["content"]) for m in await bench.results())
    assert (first["kind"], second["kind"], third) == ("timeout", "timeout", "quick")
    assert "0.05 s" in first["message"]
    assert "may have had effects" in second["message"]


async def test_a_propagating_error_fails_the_run(bench: Bench, session: str) -> None:
    seen: list[tuple[str, int]] = []

    @tool
    async def deploy(ctx: ToolContext) -> str:
        seen.append((ctx.idempotency_key, ctx.attempt))
        if len(seen) == 1:
            raise PropagatingToolError("the cluster is locked")
        return "deployed"

    @tool(read_only=True)
    def look() -> str:
        return "fine"

    model = bench.model([call("look"), call("deploy"), call("look")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[deploy, look])):
        with pytest.raises(PropagatingToolError, match="the cluster is locked") as raised:
            await bench.client.execute("agent", "Go", session_id=session)
        assert raised.value.code == "LOUSHO_TOOL_EXECUTION_FAILED"
        record = await bench.record()
        assert record["status"] == "in-progress"
        result = await bench.client.resume(session)
    assert result is not None
    assert (result.finish_reason, result.steps) == ("stop", 2)
    # The model is not asked again for that turn, and the call has its old key.
    assert len(model.requests) == 2
    assert [key for key, _ in seen] == [seen[0][0]] * 2
    assert [attempt for _, attempt in seen] == [1, 2]
    contents = [json.loads(message["content"]) for message in await bench.results()]
    assert contents == ["fine", "deployed", "fine"]
    assert await errors(bench) == [False] * 3


async def test_plain_functions_run_side_by_side(bench: Bench) -> None:
    together = threading.Barrier(4, timeout=20)
    names: set[str] = set()

    @tool(read_only=True)
    def meet(number: int) -> int:
        together.wait()
        names.add(threading.current_thread().name)
        return number

    assert await run(bench, [call("meet", {"number": n}) for n in range(4)], meet) == [0, 1, 2, 3]
    assert len(names) == 4
    assert threading.main_thread().name not in names


async def test_concurrency_is_bounded(bench: Bench) -> None:
    inside = most = 0
    entered: list[int] = []
    full = asyncio.Event()

    @tool(read_only=True)
    async def work(number: int) -> int:
        nonlocal inside, most
        inside += 1
        entered.append(number)
        most = max(most, inside)
        if inside == 2:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        inside -= 1
        return number

    calls = [call("work", {"number": n}) for n in range(6)]
    assert await run(bench, calls, work, tool_concurrency=2) == list(range(6))
    assert most == 2
    assert sorted(entered[:2]) == [0, 1]


async def test_r21_results_are_in_call_order_though_they_end_in_reverse(bench: Bench) -> None:
    gates = [bench.gate() for _ in range(4)]
    ended: list[int] = []

    @tool(read_only=True)
    async def work(number: int) -> int:
        await gates[number].hold()
        ended.append(number)
        return number

    model = bench.model([call("work", {"number": n}) for n in range(4)], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[work])):
        handle = await bench.client.start("agent", "Go", session_id=bench.session)
        for gate in gates:
            await gate.reached()
        for number in (3, 2, 1):
            gates[number].open()
            await bench.until(lambda number=number: number in ended)  # type: ignore[misc]
        # Only the prefix of finished calls is recorded, and there is none yet.
        assert await bench.results() == []
        gates[0].open()
        await handle.result()
    assert ended == [3, 2, 1, 0]
    assert [json.loads(m["content"]) for m in await bench.results()] == [0, 1, 2, 3]
    assert [(step, count) for step, _, _, count in await bench.saves()] == [
        (1, 2),
        (1, 3),
        (1, 4),
        (1, 5),
        (1, 6),
        (2, 7),
    ]


async def test_r26_the_prefix_is_recorded_while_others_run(bench: Bench, session: str) -> None:
    gate = bench.gate()

    @tool(read_only=True)
    async def quick() -> str:
        return "quick"

    @tool(read_only=True)
    async def slow() -> str:
        await gate.hold()
        return "slow"

    model = bench.model([call("quick"), call("slow"), call("quick")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[quick, slow])):
        handle = await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()

        async def one_result() -> bool:
            return len(await bench.saves()) == 2 and len(await bench.results()) == 1

        await bench.until(one_result)
        gate.open()
        await handle.result()


async def test_what_a_tool_knows_of_its_call(bench: Bench, session: str) -> None:
    contexts: list[ToolContext] = []

    @tool
    async def note(ctx: ToolContext) -> None:
        ctx.heartbeat("half-way", 50)
        ctx.logger.info("noted")
        contexts.append(ctx)

    @tool
    def note_plainly(ctx: ToolContext) -> None:
        ctx.heartbeat({"done": 50})
        contexts.append(ctx)

    model = bench.model([call("note"), call("note_plainly")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[note, note_plainly])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert len(contexts) == 2
    assert {ctx.session_id for ctx in contexts} == {session}
    assert {ctx.run_id for ctx in contexts} == {result.run_id}
    assert {ctx.attempt for ctx in contexts} == {1}
    assert {ctx.tool_call_id for ctx in contexts} == {"call_1_1", "call_1_2"}
    assert len({ctx.idempotency_key for ctx in contexts}) == 2


async def test_r15_keys_differ_for_all_calls(bench: Bench, session: str) -> None:
    """Also when the model repeats its ids in every turn, in other runs, forks and sessions."""
    keys: list[str] = []

    @tool
    async def act(ctx: ToolContext) -> None:
        assert ctx.tool_call_id in ("call_0", "call_1")
        keys.append(ctx.idempotency_key)

    turn = [call("act", id="call_0"), call("act", id="call_1")]
    model = bench.model(turn, turn, "Done.", turn, "Done.")
    client = bench.client
    async with bench.serving(Agent("agent", provider=model, tools=[act])):
        await client.execute("agent", "Go", session_id=session)
        fork = await client.fork(session, from_step=1)
        await client.execute("agent", "Go on", session_id=session)
        assert len(set(keys)) == len(keys) == 6
        # The fork has its first turn's results and makes the others anew.
        await client.resume(fork.session_id)
        assert len(set(keys)) == len(keys) == 8
        await client.execute("agent", "Go", session_id=f"{session}-b")
        assert len(set(keys)) == len(keys) == 12
        await client.delete(session)
        await client.execute("agent", "Go", session_id=session)
    assert len(set(keys)) == len(keys) == 16
    for message in await bench.results():
        assert message["toolCallId"] in ("call_0", "call_1")


@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadTimeout("late"),
        httpx.ConnectError("refused"),
        ConnectionResetError("reset"),
        TimeoutError("late"),
        urllib.error.URLError(TimeoutError("late")),
        ExceptionGroup("of a TaskGroup", [ValueError("first"), httpx.ReadTimeout("late")]),
    ],
)
async def test_a_broken_connection_repeats_the_same_call(bench: Bench, error: Exception) -> None:
    """A model that asked again would come with a new key; the effect may have happened."""
    keys: list[str] = []

    @tool
    async def charge(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise error
        return "charged"

    assert await run(bench, [call("charge")], charge) == ["charged"]
    assert keys == [keys[0]] * 2


async def test_a_connection_that_stays_broken_is_an_unknown_outcome(bench: Bench) -> None:
    tries: list[int] = []

    class GatewayError(Exception):
        pass

    @tool(idempotent=True, retry_on=(GatewayError,))
    def charge() -> None:
        tries.append(1)
        raise GatewayError

    (result,) = await run(bench, [call("charge")], charge)
    assert result["kind"] == "unknown-outcome"
    assert "GatewayError" in result["message"]
    assert len(tries) == 3


@pytest.mark.parametrize("retried", [False, True])
async def test_a_tool_that_must_not_run_twice_is_not_repeated(
    bench: Bench,
    retried: bool,
) -> None:
    """Unless it says itself after which errors that is fine."""
    tries: list[int] = []

    @tool(recovery="ambiguous", retry_on=(ConnectionError,) if retried else ())
    def charge() -> None:
        tries.append(1)
        raise ConnectionResetError("reset")

    (result,) = await run(bench, [call("charge")], charge)
    assert result["kind"] == "unknown-outcome"
    assert len(tries) == (3 if retried else 1)


async def test_a_person_is_asked_about_a_broken_connection(bench: Bench, session: str) -> None:
    keys: list[str] = []

    @tool(recovery="ask")
    async def charge(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        if len(keys) < 3:
            raise httpx.ReadTimeout("late")
        return "charged"

    model = bench.model([call("charge")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[charge])):
        result = await bench.client.execute("agent", "Go", session_id=session)
        for number in (1, 2):
            assert (result.finish_reason, len(keys)) == ("awaiting-approval", number)
            (pending,) = await bench.client.approvals.list(session)
            assert pending.to_json()["kind"] == "unknown-outcome"
            result = await bench.client.approvals.resolve(pending.id, approved=True)
    assert result.text == "Done."
    assert keys == [keys[0]] * 3
