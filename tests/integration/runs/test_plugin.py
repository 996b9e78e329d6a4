"""The plugin: a worker and a client that somebody has already gain agents."""

from __future__ import annotations

import importlib
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import Replayer, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from perdure import Agent
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.client import connect
from perdure.encryption import EncryptionCodec, is_encrypting
from perdure.plugin import PerdurePlugin
from perdure.testing import ScriptedModel, call
from tests.integration.runs.test_encryption import KEYS, MARKER, OWN, Shrinking, charge, raw

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.runs.conftest import Bench


@workflow.defn(sandboxed=False)  # so that it may stand in a test's file
class Theirs:
    """A workflow that the worker has served before."""

    @workflow.run
    async def run(self) -> str:
        return "theirs"


@activity.defn
async def their_activity() -> None:
    pass


@pytest.mark.parametrize("where", ["client", "worker"])
async def test_an_existing_worker_gains_agents(bench: Bench, where: str) -> None:
    model = bench.model([call("charge", {"amount": 5, "note": "x"})], "Done.")
    agent = Agent("till", provider=model, tools=[charge])
    plugin = PerdurePlugin(agents=[agent], store=bench.store_url)
    address = bench.temporal.service_client.config.target_host
    client = await Client.connect(address, plugins=[plugin] if where == "client" else [])
    async with Worker(
        client,
        task_queue=bench.queue,
        workflows=[Theirs],
        activities=[their_activity],
        plugins=[plugin] if where == "worker" else [],
    ) as worker:
        # Their workflows stay in temporalio's sandbox.
        runner = worker.config(active_config=True)["workflow_runner"]
        assert isinstance(runner, SandboxedWorkflowRunner)
        result = await bench.client.execute("till", "Pay", session_id=bench.session)
        theirs = await client.execute_workflow(
            "Theirs", id=f"{bench.session}-theirs", task_queue=bench.queue, result_type=str
        )
    assert (result.text, theirs) == ("Done.", "theirs")
    # The same object makes a replayer.
    replayer = Replayer(workflows=[], plugins=[plugin], debug_mode=True)
    for history in await bench.histories():
        await replayer.replay_workflow(history)


ONE_FILE = """
from temporalio import workflow
from temporalio.worker import Worker

from perdure import Agent, connect, run_agent
from perdure.plugin import PerdurePlugin
from perdure.testing import ScriptedModel

helper = Agent("helper", provider=ScriptedModel(lambda request: "Helped."))


@workflow.defn
class Order:
    @workflow.run
    async def run(self) -> str:
        return (await run_agent("helper", "Help")).text
"""


async def test_workflows_and_agents_may_stand_in_one_file(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox loads that file again, and does not load what the agents and plugins need."""
    name = f"one_file_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(ONE_FILE, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs = importlib.import_module(name)
    plugin = PerdurePlugin(agents=[theirs.helper], store=bench.store_url)
    own = f"orders-{uuid.uuid4().hex[:8]}"
    async with Worker(bench.temporal, task_queue=own, workflows=[theirs.Order], plugins=[plugin]):
        answer = await bench.temporal.execute_workflow(theirs.Order.run, id=own, task_queue=own)
    assert answer == "Helped."


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("encryption", [KEYS, False])
async def test_r19_the_plugin_keeps_a_users_codec_in_either_order(
    bench: Bench, encryption: Any, *, ours_first: bool
) -> None:
    """Kept; and where another plugin drops our encryption, the start fails loudly."""
    model = bench.model([call("charge", {"amount": 5, "note": MARKER})], "Done.")
    agent = Agent("till", provider=model, tools=[charge])
    store = SqlStore(bench.store_url, encryption=False)
    ours = PerdurePlugin(agents=[agent], store=store, encryption=encryption)
    theirs = SimplePlugin("theirs", data_converter=OWN)
    plugins = [ours, theirs] if ours_first else [theirs, ours]
    address = bench.temporal.service_client.config.target_host
    client = await Client.connect(address, plugins=plugins)
    if encryption and ours_first:
        with pytest.raises(ConfigurationError, match="does not encrypt"):
            Worker(client, task_queue=bench.queue)
        return
    codec = client.data_converter.payload_codec
    assert is_encrypting(codec) if encryption else isinstance(codec, Shrinking)
    bench.temporal = client
    async with (
        Worker(client, task_queue=bench.queue),
        connect(
            bench.store_url, temporal=client, task_queue=bench.queue, encryption=False
        ) as sessions,
    ):
        await sessions.execute("till", f"Pay {MARKER}", session_id=bench.session)
        seen = await raw(bench)
    await store.close()
    assert MARKER.encode() not in seen
    attributes = (await bench.histories())[0].events[0].workflow_execution_started_event_attributes
    payload = attributes.input.payloads[0]
    if encryption:
        payload = (await EncryptionCodec(KEYS).decode([payload]))[0]
    assert payload.metadata["encoding"] == b"binary/zlib"


@pytest.mark.parametrize("store", ["perdure.db", "mysql://host/name", 5])
def test_a_store_that_is_none_is_refused_at_once(store: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PerdurePlugin([Agent("agent", provider=ScriptedModel(["Done."]))], store=store)
    assert caught.value.field == "store"


async def test_a_plugin_needs_agents(temporal_client: Client, store_url: str) -> None:
    plugin = PerdurePlugin(store=SqlStore(store_url))
    with pytest.raises(ConfigurationError, match="at least one agent"):
        Worker(temporal_client, task_queue="nobody", plugins=[plugin])
