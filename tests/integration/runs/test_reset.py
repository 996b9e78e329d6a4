"""Temporal's reset runs a part of a run's history again; what has happened does not again."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError

from perdure import Agent, ToolContext, tool
from perdure.testing import call

if TYPE_CHECKING:
    from temporalio.client import WorkflowHandle

    from tests.integration.runs.conftest import Bench

FIRST, LAST = 0, -1


async def reset(
    bench: Bench, session: str, place: int, run_id: str | None = None
) -> WorkflowHandle[object, dict[str, str]]:
    """``temporal workflow reset`` to one of a run's workflow tasks; returns the new execution."""
    handle = bench.temporal.get_workflow_handle(session, run_id=run_id)
    described = await handle.describe()
    tasks = [
        event.event_id
        for event in (await handle.fetch_history()).events
        if event.HasField("workflow_task_completed_event_attributes")
    ]
    answer = await bench.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=described.namespace,
            workflow_execution=WorkflowExecution(workflow_id=session, run_id=described.run_id),
            reason="to see what it does",
            workflow_task_finish_event_id=tasks[place],
            request_id=uuid.uuid4().hex,
        )
    )
    return bench.temporal.get_workflow_handle(session, run_id=answer.run_id)


class Till:
    """An agent that pays once, and then perhaps asks a person about something."""

    def __init__(self, bench: Bench, *turns: object) -> None:
        self.paid: list[str] = []

        @tool
        def pay(ctx: ToolContext) -> str:
            self.paid.append(ctx.idempotency_key)
            return "paid"

        @tool(needs_approval=True)
        def send(ctx: ToolContext) -> str:
            return "sent"

        self.model = bench.model([call("pay")], *turns, "Unheard.")
        self.agent = Agent("till", provider=self.model, tools=[pay, send])


@pytest.mark.parametrize("place", [FIRST, 1, 2, LAST])
async def test_a_finished_run(bench: Bench, session: str, place: int) -> None:
    till = Till(bench, "Done.")
    async with bench.serving(till.agent):
        await bench.client.execute("till", "Pay", session_id=session)
        before = [event.type for event in await bench.events()]
        again = await (await reset(bench, session, place)).result()
        assert again["text"] == "Done."
        assert [event.type for event in await bench.events()] == before
        # And the session goes on as ever.
        following = await bench.client.execute("till", "And?", session_id=session)
    assert following.text == "Unheard."
    assert len(till.paid) == 1
    assert len(till.model.requests) == 3


@pytest.mark.parametrize("place", [FIRST, LAST])
async def test_a_run_that_waits_for_a_person(bench: Bench, session: str, place: int) -> None:
    till = Till(bench, [call("send")], "Done.")
    async with bench.serving(till.agent):
        paused = await bench.client.execute("till", "Pay", session_id=session)
        assert paused.approval_id is not None
        run = await reset(bench, session, place)
        await bench.client.approvals.resolve(paused.approval_id, approved=True)
        assert (await run.result())["text"] == "Done."
    assert len(till.paid) == 1
    assert len(till.model.requests) == 3


@pytest.mark.parametrize("place", [FIRST, 1, LAST])
async def test_a_run_that_others_followed(bench: Bench, session: str, place: int) -> None:
    till = Till(bench, "Done.", "Later.")
    async with bench.serving(till.agent):
        first = await bench.client.execute("till", "Pay", session_id=session)
        await bench.client.execute("till", "And?", session_id=session)
        before = [event.type for event in await bench.events()]
        run = await reset(bench, session, place, first.run_id)
        if place == LAST:
            # All of it is in the history that stays, so there is nothing to do.
            assert (await run.result())["text"] == "Done."
        else:
            with pytest.raises(WorkflowFailureError) as raised:
                await run.result()
            assert "PERDURE_LOG_CONFLICT" in str(raised.value.cause)
        assert [event.type for event in await bench.events()] == before
        following = await bench.client.execute("till", "More?", session_id=session)
    assert following.text == "Unheard."
    assert len(till.paid) == 1
