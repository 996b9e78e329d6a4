"""Agents as steps of a workflow of one's own, and what Temporal's lists can ask about runs."""

from __future__ import annotations

import importlib
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client as TemporalClient
from temporalio.worker import Worker

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.client import connect
from perdure.search_attributes import look_up, register
from perdure.testing import ScriptedModel, call
from perdure.worker import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.runs.conftest import Bench


@tool(needs_approval=True)
async def charge_card(amount: int, ctx: ToolContext) -> str:
    return f"charged {amount}"


OWN_WORKFLOW = """
from temporalio import workflow

from perdure import run_agent


@workflow.defn
class Order:
    @workflow.run
    async def run(self, queue: str, limit: int) -> str:
        outcome = await run_agent(
            "billing",
            "Charge 250",
            task_queue=queue,
            max_steps=5,
            on_approval=lambda asked: limit > 100 if asked.tool_name == "charge_card" else None,
        )
        return f"{outcome.finish_reason}: {outcome.text}"
"""


@pytest.mark.parametrize(("limit", "answer"), [(500, '"charged 250"'), (50, "rejected")])
async def test_a_workflow_runs_an_agent(
    bench: Bench, limit: int, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in temporalio's sandbox, as workflows of users do, which imports its module again."""
    name = f"own_workflow_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(OWN_WORKFLOW, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    order = importlib.import_module(name).Order

    def last(request: Any) -> str:
        return str(request.messages[-1]["content"])

    model = bench.model([call("charge_card", {"amount": 250})], last)
    own = f"orders-{uuid.uuid4().hex[:8]}"
    async with (
        bench.serving(Agent("billing", provider=model, tools=[charge_card])),
        Worker(bench.temporal, task_queue=own, workflows=[order]),
    ):
        result = await bench.temporal.execute_workflow(
            order.run, args=[bench.queue, limit], id=f"order-{uuid.uuid4().hex}", task_queue=own
        )
    assert result.startswith("stop: ")
    assert answer in result
    (row,) = await bench.store.sessions()
    assert (row.agent, row.status) == ("billing", "finished")


@pytest.fixture
async def namespace(temporal_client: TemporalClient) -> TemporalClient:
    """A client of a namespace of the test's own: what is registered there reaches no other."""
    name = f"attributes-{uuid.uuid4().hex[:8]}"
    await temporal_client.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=name, workflow_execution_retention_period=Duration(seconds=86_400)
        )
    )
    address = temporal_client.service_client.config.target_host
    return await TemporalClient.connect(address, namespace=name)


async def test_runs_that_wait_are_found_by_the_tool(
    namespace: TemporalClient, store_url: str
) -> None:
    registered = await register(namespace)
    assert (registered.missing, registered.other_type) == ([], [])
    assert await register(namespace) == registered
    helper = Agent(
        "helper",
        provider=ScriptedModel([[call("charge_card", {"amount": 1})], "Charged."]),
        tools=[charge_card],
    )
    lead = Agent(
        "lead",
        provider=ScriptedModel([[call("helper", {"input": "x"})], "Done."]),
        tools=[helper.as_tool()],
    )
    query = 'AgentApprovalTools = "charge_card" AND ExecutionStatus = "Running"'

    async def found(query: str) -> set[str]:
        return {each.id async for each in namespace.list_workflows(query)}

    from tests.integration.runs.conftest import until

    async with (
        connect(store_url, temporal=namespace) as client,
        SqlStore(store_url) as store,
        serving(namespace, [lead], store),
    ):
        paused = await client.execute("lead", "Go", session_id="order-1")
        (pending,) = await client.store.approvals("order-1")
        child = pending.session_id

        async def both() -> bool:
            return await found(query) == {"order-1", child}

        await until(both)
        assert await found('AgentParentSession = "order-1" AND AgentName = "helper"') == {child}
        last = await client.approvals.resolve(paused.approval_id or "", approved=True)
        assert last.text == "Done."

        async def none() -> bool:
            return await found(query) == set()

        await until(none)

        async def finished() -> bool:
            return await found('AgentStatus = "finished" AND AgentName = "lead"') == {"order-1"}

        await until(finished)
        history = await namespace.get_workflow_handle("order-1").fetch_history()
    upserts = [
        event
        for event in history.events
        if event.HasField("upsert_workflow_search_attributes_event_attributes")
    ]
    # Running, waiting, running again, finished; none for a step.
    assert len(upserts) == 4


async def test_a_namespace_without_them_runs_all_the_same(
    namespace: TemporalClient, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    from temporalio.api.enums.v1 import IndexedValueType
    from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest

    await namespace.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=namespace.namespace,
            search_attributes={"AgentStatus": IndexedValueType.INDEXED_VALUE_TYPE_INT},
        )
    )
    from tests.integration.runs.conftest import until

    async def there() -> bool:
        return (await look_up(namespace)).other_type == ["AgentStatus"]

    await until(there)
    caplog.set_level("INFO", "perdure.worker")
    agent = Agent("agent", provider=ScriptedModel(["Done."]))
    async with (
        connect(store_url, temporal=namespace) as client,
        SqlStore(store_url) as store,
        serving(namespace, [agent], store),
    ):
        assert (await client.execute("agent", "Go")).text == "Done."
    said = [
        record.getMessage() for record in caplog.records if "search attributes" in record.message
    ]
    assert len(said) == 2
    assert "other types" in said[0]
    assert "perdure setup" in said[1]


async def test_a_decision_of_a_wrong_shape_is_shown(bench: Bench, session: str) -> None:
    model = bench.model([call("charge_card", {"amount": 1})], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[charge_card])):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        handle = bench.workflow()
        await handle.signal("resolve_approval", {"approved": "yes"})
        await handle.signal("resolve_approval", "yes")
        await bench.until(lambda: shows(bench, "A decision is one JSON object"))
        await handle.signal("resolve_approval", {"id": "nobody", "approved": True})
        await bench.until(lambda: shows(bench, "nobody"))
        result = await bench.client.approvals.resolve(paused.approval_id or "", approved=True)
        assert result.text == "Done."


async def shows(bench: Bench, text: str) -> bool:
    shown = await bench.workflow().query("__temporal_workflow_metadata")
    return text in str(shown)
