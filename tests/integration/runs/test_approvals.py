"""Approvals: who can decide, what counts as a decision, and what is remembered of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import ApprovalDecidedError, ApprovalNotFoundError
from perdure.client import connect
from perdure.testing import call
from tests.integration.runs.conftest import held

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


class Till:
    """A gated tool that counts."""

    def __init__(self, bench: Bench, **arguments: Any) -> None:
        self.charged: list[int] = []

        @tool(needs_approval=True)
        async def charge(amount: int, ctx: ToolContext, memo: str = "") -> str:
            self.charged.append(amount)
            return "charged"

        arguments.setdefault("amount", 250)
        self.model = bench.model([call("charge", arguments)], "Done.")
        self.agent = Agent("till", provider=self.model, tools=[charge])


@pytest.fixture
def till(bench: Bench) -> Till:
    return Till(bench)


async def pause(bench: Bench, session_id: str | None = None) -> str:
    result = await bench.client.execute("till", "Pay", session_id=session_id or bench.session)
    assert result.finish_reason == "awaiting-approval"
    assert result.approval_id is not None
    return result.approval_id


async def finished(bench: Bench) -> dict[str, Any]:
    outcome: dict[str, Any] = await bench.workflow().result()
    return outcome


def refusal(error: WorkflowUpdateFailedError) -> tuple[str | None, str]:
    """Type and code, as a program in another language sees them."""
    assert isinstance(error.cause, ApplicationError)
    return error.cause.type, error.cause.details[0]["code"]


async def test_the_client_decides(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        assert till.charged == []
        result = await bench.client.approvals.resolve(
            approval_id, approved=True, note="for order 7", by="ann"
        )
    assert (result.text, till.charged) == ("Done.", [250])
    (decided,) = await bench.events("approval/decided")
    assert len(decided.data["digest"]) == 16
    assert decided.data == {
        "digest": decided.data["digest"],
        "id": approval_id,
        "approved": True,
        "note": "for order 7",
        "by": "ann",
    }
    row = await bench.store.approval(approval_id)
    assert row is not None
    assert row.decision == {"approved": True, "note": "for order 7", "by": "ann"}


@pytest.mark.parametrize("approved", [True, False])
async def test_a_plain_signal_decides(bench: Bench, till: Till, approved: bool) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        decision = {"id": approval_id, "approved": approved, "note": "n", "scope": "once"}
        await bench.workflow().signal("resolve_approval", decision)
        assert (await finished(bench))["text"] == "Done."
    assert till.charged == ([250] if approved else [])
    (result,) = await bench.results()
    assert result.get("isError", False) is not approved


async def test_a_signal_counts_at_once_for_whoever_asks_for_the_result(
    bench: Bench, till: Till
) -> None:
    """A store that learns of the decision later still shows the pause, which is over."""
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        handle = await bench.client.running(bench.session)
        assert handle is not None
        async with held(bench.store_url):
            await bench.workflow().signal("resolve_approval", {"id": approval_id, "approved": True})
            waiting = asyncio.create_task(handle.result())
            _, still = await asyncio.wait({waiting}, timeout=0.3)
            assert still
        assert (await waiting).text == "Done."
    assert till.charged == [250]


async def test_a_decision_that_its_sender_gives_up_is_not_sent(bench: Bench, till: Till) -> None:
    """No worker answers; who stops waiting has decided nothing."""
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await bench.client.approvals.resolve(approval_id, approved=True)
    (history,) = await bench.histories()
    signalled = "workflow_execution_signaled_event_attributes"
    assert not any(event.HasField(signalled) for event in history.events)  # type: ignore[arg-type]
    assert await bench.pending() == approval_id


async def test_a_cancelled_pause_is_over_at_once(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        handle = await bench.client.running(bench.session)
        assert handle is not None
        await bench.workflow().cancel()
        assert (await handle.result()).finish_reason == "aborted"
        with pytest.raises(ApprovalNotFoundError, match=r"has ended \(aborted\)"):
            await bench.client.approvals.resolve(approval_id, approved=True)
    assert till.charged == []


async def test_a_decision_behind_a_cancel_is_told_of_the_end(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        async with held(bench.store_url):
            await bench.workflow().cancel()
            deciding = asyncio.create_task(
                bench.client.approvals.resolve(approval_id, approved=True)
            )
            await asyncio.wait({deciding}, timeout=0.3)
        with pytest.raises(ApprovalNotFoundError, match=r"has ended \(aborted\)"):
            await deciding
    assert till.charged == []


async def test_a_plain_update_decides_and_answers(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        answer = await bench.workflow().execute_update(
            "resolve_approval_now", {"id": approval_id, "approved": False, "by": "bob"}
        )
        assert answer == {"approved": False, "note": None, "by": "bob"}
        await finished(bench)
    assert till.charged == []


async def test_the_run_shows_what_waits(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        state = await bench.state()
        assert (state["status"], state["step"]) == ("awaiting-approval", 1)
        assert state["pending_approvals"] == [
            {
                "id": approval_id,
                "tool_call_id": "call_1_1",
                "tool_name": "charge",
                "arguments": '{"amount": 250}',
                "deciding": False,
            }
        ]
        await bench.client.approvals.resolve(approval_id, approved=True)
        state = await bench.state()
    assert (state["status"], state["finish_reason"]) == ("finished", "stop")
    assert state["pending_approvals"] == []


@pytest.mark.parametrize("patience", [10.0, 0.05])
async def test_r9_twenty_decisions_at_once(
    bench: Bench, till: Till, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """One counts, with its author; the nineteen others hear whose it was.

    Those whose update is not answered in time (Temporal takes ten at once) go on as signals.
    """
    monkeypatch.setattr("perdure.client_approvals._UPDATE_SECONDS", patience)
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        answers = await asyncio.gather(
            *(
                bench.client.approvals.resolve(approval_id, approved=True, by=f"person-{number}")
                for number in range(20)
            ),
            return_exceptions=True,
        )
    late = [answer for answer in answers if isinstance(answer, ApprovalDecidedError)]
    taken = [n for n, answer in enumerate(answers) if not isinstance(answer, BaseException)]
    assert (len(late), len(taken)) == (19, 1)
    author = f"person-{taken[0]}"
    assert {error.decision["by"] for error in late} == {author}
    assert till.charged == [250]
    (decided,) = await bench.events("approval/decided")
    assert decided.data["by"] == author


async def test_twenty_plain_signals_at_once(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        await asyncio.gather(
            *(
                bench.workflow().signal(
                    "resolve_approval",
                    {"id": approval_id, "approved": number % 2 == 0, "by": str(number)},
                )
                for number in range(20)
            )
        )
        await finished(bench)
    (decided,) = await bench.events("approval/decided")
    assert till.charged == ([250] if int(decided.data["by"]) % 2 == 0 else [])
    assert len(await bench.results()) == 1


async def test_r9_an_unknown_id(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        await pause(bench)
        with pytest.raises(ApprovalNotFoundError, match="There is no approval 'nope'"):
            await bench.client.approvals.resolve("nope", approved=True)
        with pytest.raises(WorkflowUpdateFailedError) as raised:
            await bench.workflow().execute_update(
                "resolve_approval_now", {"id": "nope", "approved": True}
            )
        assert refusal(raised.value) == ("ApprovalNotFoundError", "LOUSHO_APPROVAL_NOT_FOUND")
        assert (await bench.state())["status"] == "awaiting-approval"
    assert till.charged == []


async def test_r9_a_decided_id(bench: Bench) -> None:
    @tool(read_only=True, needs_approval=True)
    def step() -> str:
        return "done"

    model = bench.model([call("step"), call("step")], "Done.")
    async with bench.serving(Agent("till", provider=model, tools=[step])):
        first = await pause(bench)
        await bench.client.approvals.resolve(first, approved=False, by="ann", note="no")
        with pytest.raises(ApprovalDecidedError, match="already rejected by ann") as decided:
            await bench.client.approvals.resolve(first, approved=True, by="bob")
        assert decided.value.decision == {"approved": False, "note": "no", "by": "ann"}
        assert decided.value.code == "PERDURE_APPROVAL_DECIDED"
        with pytest.raises(WorkflowUpdateFailedError) as raised:
            await bench.workflow().execute_update(
                "resolve_approval_now", {"id": first, "approved": True}
            )
        assert refusal(raised.value) == ("ApprovalDecidedError", "PERDURE_APPROVAL_DECIDED")
        await bench.client.approvals.resolve(await bench.pending(), approved=True)
        # Also when the run has ended since.
        with pytest.raises(ApprovalDecidedError, match="already rejected by ann"):
            await bench.client.approvals.resolve(first, approved=True)
    assert [message.get("isError") for message in await bench.results()] == [True, None]


async def test_r9_another_runs_id(bench: Bench, till: Till) -> None:
    other = f"{bench.session}-other"
    async with bench.serving(till.agent):
        mine, others = await pause(bench), await pause(bench, other)
        decision = {"id": others, "approved": True}
        with pytest.raises(WorkflowUpdateFailedError) as raised:
            await bench.workflow().execute_update("resolve_approval_now", decision)
        assert refusal(raised.value) == ("ApprovalNotFoundError", "LOUSHO_APPROVAL_NOT_FOUND")
        await bench.workflow().signal("resolve_approval", decision)
        assert bench.session in (await bench.state())["problem"]
        assert till.charged == []
        assert {each.id for each in await bench.client.approvals.list()} == {mine, others}


async def test_r9_after_the_end(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        running = await bench.client.running(bench.session)
        assert running is not None
        await running.cancel()
        assert (await running.result()).finish_reason == "aborted"
        with pytest.raises(ApprovalNotFoundError, match=r"has ended \(aborted\)"):
            await bench.client.approvals.resolve(approval_id, approved=True)
        with pytest.raises(RPCError) as raised:
            await bench.workflow().signal("resolve_approval", {"id": approval_id, "approved": True})
        assert raised.value.status == RPCStatusCode.NOT_FOUND
        assert await bench.client.approvals.list() == []
    assert till.charged == []


NO_DECISIONS: list[tuple[Any, str]] = [
    ("yes, go ahead", "one JSON object"),
    (True, "one JSON object"),
    (None, "one JSON object"),
    ([{"approved": True}], "one JSON object"),
    ({"approved": True}, "id is a text"),
    ({"id": "", "approved": True}, "id is a text"),
    ({"id": "ID"}, "approved is true or false"),
    ({"id": "ID", "approved": "true"}, "approved is true or false"),
    ({"id": "ID", "approved": 1}, "approved is true or false"),
    ({"id": "ID", "approved": True, "aproved": True}, "no key 'aproved'"),
    ({"id": "ID", "approved": True, "note": 7}, "note is a text"),
    ({"id": "ID", "approved": True, "by": ["ann"]}, "by is a text"),
    ({"id": "ID", "approved": True, "scope": "always"}, "scope"),
]


async def test_what_is_no_decision(bench: Bench, till: Till) -> None:
    """The run says what was wrong, and goes on waiting."""
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        for given, says in NO_DECISIONS:
            decision = given
            if isinstance(given, dict) and given.get("id") == "ID":
                decision = {**given, "id": approval_id}
            await bench.workflow().signal("resolve_approval", decision)
            state = await bench.state()
            assert says in state["problem"]
            assert state["status"] == "awaiting-approval"
            with pytest.raises(WorkflowUpdateFailedError) as raised:
                await bench.workflow().execute_update("resolve_approval_now", decision)
            assert refusal(raised.value) == ("ConfigurationError", "LOUSHO_CONFIG_INVALID")
        assert till.charged == []
        # A right one still counts, and the trace goes.
        await bench.client.approvals.resolve(approval_id, approved=True)
        assert (await bench.state())["problem"] == ""
    assert till.charged == [250]


async def test_a_predicate_on_the_validated_arguments(bench: Bench, session: str) -> None:
    charged: list[int] = []

    def dear(args: Any) -> bool:
        return bool(args.amount > 100)

    @tool(needs_approval=dear)
    async def charge(amount: int, ctx: ToolContext) -> str:
        charged.append(amount)
        return "charged"

    calls = [call("charge", {"amount": amount}) for amount in (100, "101", "many")]
    agent = Agent("agent", provider=bench.model(calls, "Done."), tools=[charge])
    async with bench.serving(agent):
        paused = await bench.client.execute("agent", "Pay", session_id=session)
        assert charged == [100]
        (pending,) = await bench.client.approvals.list(session)
        assert (pending.id, pending.tool_call_id) == (paused.approval_id, "call_1_2")
        await bench.client.approvals.resolve(pending.id, approved=True)
    assert charged == [100, 101]
    kinds = [json.loads(m["content"])["kind"] for m in await bench.results() if "isError" in m]
    assert kinds == ["validation"]


@pytest.mark.parametrize("error", [LookupError("no such rule"), BaseException("past every except")])
async def test_a_predicate_that_raises_asks(
    bench: Bench, session: str, error: BaseException
) -> None:
    ran: list[str] = []

    def broken(_args: Any) -> bool:
        raise error

    @tool(needs_approval=broken)
    async def act(ctx: ToolContext) -> None:
        ran.append(ctx.tool_call_id)

    agent = Agent("agent", provider=bench.model([call("act")], "Done."), tools=[act])
    async with bench.serving(agent):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        assert (paused.finish_reason, ran) == ("awaiting-approval", [])


async def test_r13_the_list_needs_only_the_store(bench: Bench, till: Till) -> None:
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
    # No worker is up, and the reader is another one.
    async with connect(bench.store_url, temporal=bench.temporal) as cold:
        (pending,) = await cold.approvals.list()
        assert await cold.approvals.list("another-session") == []
    shown = pending.to_json()
    assert shown.pop("createdAt").endswith("Z")
    assert shown.pop("sessionId") == bench.session
    assert shown == {
        "id": approval_id,
        "toolCallId": "call_1_1",
        "toolName": "charge",
        "args": {"amount": 250},
        "agentId": "till",
    }


async def test_huge_arguments_are_readable(bench: Bench) -> None:
    memo = "é" * 10_000
    till = Till(bench, amount=1, memo=memo)
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        (pending,) = await bench.client.approvals.list(bench.session)
        assert pending.args == {"amount": 1, "memo": memo}
        assert len(json.dumps(await bench.state())) < 5_000
        await bench.client.approvals.resolve(approval_id, approved=True)
    assert till.charged == [1]


async def test_a_decision_waits_for_a_worker(bench: Bench, till: Till) -> None:
    """A signal needs no worker: whoever comes next acts on it."""
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
    await bench.workflow().signal("resolve_approval", {"id": approval_id, "approved": True})
    async with bench.serving(till.agent):
        assert (await finished(bench))["finish_reason"] == "stop"
    assert till.charged == [250]


async def test_r23_a_failing_model_does_not_lose_the_result(bench: Bench) -> None:
    till = Till(bench)
    till.model.turns[1] = RuntimeError("no model today")
    async with bench.serving(till.agent):
        approval_id = await pause(bench)
        with pytest.raises(Exception, match="no model today"):
            await bench.client.approvals.resolve(approval_id, approved=True)
        till.model.turns[1] = "Done."
        result = await bench.client.resume(bench.session)
    assert result is not None
    assert (result.text, till.charged) == ("Done.", [250])
