"""What the Temporal UI shows of a run, and start requests that no program could read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


@tool(needs_approval=True)
async def charge(amount: int, ctx: ToolContext) -> str:
    return f"charged {amount} {ctx.attempt}"


async def shown(bench: Bench) -> str:
    metadata = await bench.workflow().query(
        "__temporal_workflow_metadata", result_type=WorkflowMetadata
    )
    return str(metadata.current_details)


async def test_the_details_say_what_the_run_waits_for_and_how_to_decide(bench: Bench) -> None:
    model = bench.model([call("charge", {"amount": 250})], "All charged.")
    async with bench.serving(Agent("till", provider=model, tools=[charge])):
        paused = await bench.client.execute("till", "Pay", session_id=bench.session)
        assert paused.approval_id is not None
        details = await shown(bench)
        assert details.startswith("**Waits for approval of charge** at step 1 of at most 50")
        assert '    {"amount": 250}' in details
        assert f"perdure approve {paused.approval_id}" in details
        # What the details say to send is what the signal takes.
        line = next(line for line in details.splitlines() if line.startswith('    {"id"'))
        await bench.workflow().signal("resolve_approval", json.loads(line))
        await bench.workflow().result()
        details = await shown(bench)
    assert details.startswith("**Finished (stop)** at step 2")
    assert "    All charged." in details


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (
            b'{"agent": "till", "input": "a", "metadata": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}",
            "nested",
        ),
    ],
)
async def test_a_request_that_cannot_be_read_is_one_clear_error(
    bench: Bench, data: bytes, why: str
) -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=data)
    async with bench.serving(Agent("till", provider=bench.model("Hello."))):
        await bench.start_plain(RawValue(payload))
        with pytest.raises(WorkflowFailureError) as caught:
            await bench.workflow().result()
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "ConfigurationError"
    assert why in caught.value.cause.message
    assert await bench.store.sessions() == []


@pytest.mark.parametrize("levels", [201, 5000])
async def test_the_client_refuses_deep_nesting_at_once(bench: Bench, levels: int) -> None:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    with pytest.raises(ConfigurationError, match="nested deeper than 200"):
        await bench.client.start("till", "Hi", session_id=bench.session, business_state=value)
