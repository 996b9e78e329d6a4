"""Approvals that nobody decides, and calls whose outcome only a person can tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import ApprovalDecidedError, ConfigurationError
from perdure.checkpoint_bridge.tables.ledger import EffectId
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


class Payments:
    """A gated and an asking tool, with what was paid."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.paid: list[tuple[int, int, str]] = []
        self.read: list[int] = []

        @tool(recovery="ask")
        async def pay(amount: int, ctx: ToolContext) -> dict[str, Any]:
            self.paid.append((amount, ctx.attempt, ctx.idempotency_key))
            return {"id": 1}

        @tool(needs_approval=True)
        async def gated(amount: int, ctx: ToolContext) -> str:
            self.paid.append((amount, ctx.attempt, ctx.idempotency_key))
            return "done"

        @tool(read_only=True)
        async def balance(account: int) -> int:
            self.read.append(account)
            return 7

        turn = [
            call("balance", {"account": 1}),
            call("pay", {"amount": 5}),
            call("balance", {"account": 2}),
        ]
        self.model = bench.model(turn, "Paid.")
        self.agent = Agent("payer", provider=self.model, tools=[pay, gated, balance], **options)


async def pause_with_unknown_outcome(bench: Bench, payments: Payments) -> str:
    """A run whose second call had begun in a worker that is no more."""
    handle = await bench.client.start("payer", "Pay 5", session_id=bench.session)
    # No worker yet: the mark that a dead one would have left is made here, at the place where
    # the first model turn of a new session always is.
    gate = payments.model.gate(1)
    async with bench.serving(payments.agent):
        await gate.reached()
        row = await bench.store.session(bench.session)
        assert row is not None
        await bench.store.begin_effect(
            EffectId(row.log_id, row.head + 2, 1),
            session_id=bench.session,
            run_id=handle.run_id,
            name="pay",
        )
        gate.open()
        approval_id = await bench.pending()
        await bench.until(lambda: len(payments.read) == 2)
    assert payments.paid == []
    return approval_id


async def test_a_person_is_asked_and_lets_it_run_again(bench: Bench) -> None:
    payments = Payments(bench)
    approval_id = await pause_with_unknown_outcome(bench, payments)
    (pending,) = await bench.client.approvals.list(bench.session)
    assert (pending.kind, pending.args) == ("unknown-outcome", {"amount": 5})
    assert "may have happened" in pending.question
    async with bench.serving(payments.agent):
        result = await bench.client.approvals.resolve(approval_id, approved=True, by="ana")
    assert result.text == "Paid."
    assert [(amount, attempt) for amount, attempt, _ in payments.paid] == [(5, 3)]
    assert payments.read == [1, 2]
    contents = [message["content"] for message in await bench.results()]
    assert contents == ["7", '{"id":1}', "7"]


async def test_a_person_gives_up(bench: Bench) -> None:
    payments = Payments(bench)
    approval_id = await pause_with_unknown_outcome(bench, payments)
    async with bench.serving(payments.agent):
        await bench.client.approvals.resolve(approval_id, approved=False, note="not at the bank")
    assert payments.paid == []
    error = json.loads((await bench.results())[1]["content"])
    assert (error["kind"], error["note"]) == ("unknown-outcome", "not at the bank")


async def test_a_person_supplies_the_verified_result(bench: Bench) -> None:
    payments = Payments(bench)
    approval_id = await pause_with_unknown_outcome(bench, payments)
    async with bench.serving(payments.agent):
        await bench.client.approvals.resolve(approval_id, approved=True, result={"id": 7})
    assert payments.paid == []
    message = (await bench.results())[1]
    assert (message["content"], message.get("isError")) == ('{"id":7}', None)


async def test_a_terminated_run_still_knows_why_it_asks(bench: Bench) -> None:
    payments = Payments(bench)
    approval_id = await pause_with_unknown_outcome(bench, payments)
    await bench.workflow().terminate()
    async with bench.serving(payments.agent):
        result = await bench.client.approvals.resolve(approval_id, approved=True)
    assert result.text == "Paid."
    assert [amount for amount, _, _ in payments.paid] == [5]


async def test_no_result_can_be_supplied_for_a_gated_call(bench: Bench) -> None:
    payments = Payments(bench)
    payments.model.turns[0] = [call("gated", {"amount": 1})]
    async with bench.serving(payments.agent):
        paused = await bench.client.execute("payer", "Pay", session_id=bench.session)
        assert paused.approval_id is not None
        with pytest.raises(ConfigurationError, match="unknown"):
            await bench.client.approvals.resolve(paused.approval_id, approved=True, result=1)
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True)
    assert (result.text, len(payments.paid)) == ("Paid.", 1)


async def test_an_approval_that_nobody_decides_is_rejected(bench: Bench) -> None:
    payments = Payments(bench, approval_ttl=0.5)
    payments.model.turns[0] = [call("gated", {"amount": 1})]
    async with bench.serving(payments.agent):
        paused = await bench.client.execute("payer", "Pay", session_id=bench.session)
        assert paused.approval_id is not None
        await bench.workflow().result()
        with pytest.raises(ApprovalDecidedError) as caught:
            await bench.client.approvals.resolve(paused.approval_id, approved=True)
    assert caught.value.decision["by"] == "expiry"
    assert payments.paid == []
    error = json.loads((await bench.results())[0]["content"])
    assert (error["kind"], error["note"]) == ("rejected", "Nobody decided in time.")


async def test_a_decision_in_time_counts_and_no_timer_comes_after_it(bench: Bench) -> None:
    payments = Payments(bench, approval_ttl=3600)
    payments.model.turns[0] = [call("gated", {"amount": 1})]
    async with bench.serving(payments.agent):
        paused = await bench.client.execute("payer", "Pay", session_id=bench.session)
        assert paused.approval_id is not None
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True)
    assert (result.text, len(payments.paid)) == ("Paid.", 1)


@pytest.mark.parametrize("ttl", [0, -1.0])
def test_a_lifetime_of_approvals_is_above_zero(bench: Bench, ttl: float) -> None:
    with pytest.raises(ConfigurationError, match="approval_ttl"):
        Payments(bench, approval_ttl=ttl)
