"""Runs whose payloads are encrypted: nothing of a run's content is readable in Temporal."""

from __future__ import annotations

import base64
import dataclasses
import logging
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadCodec

from perdure import Agent, PropagatingToolError, tool
from perdure.activities import metrics
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    EncryptionKeyError,
    PerdureError,
    ProviderError,
)
from perdure.client import connect
from perdure.connection import connect_temporal
from perdure.encryption import EncryptionCodec, Keyring, encrypting, with_encryption
from perdure.testing import attempts, call
from perdure.worker import serving

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.integration.runs.conftest import Bench

MARKER = "zebra-7731"
KEYS = Keyring({"k1": b"1" * 32})


@pytest.fixture
async def temporal_client(temporal_address: str) -> Client:
    """The bench's client encrypts."""
    return encrypting(await Client.connect(temporal_address), KEYS)


@tool(idempotent=True, needs_approval=lambda args: args.amount > 100)
async def charge(amount: int, note: str) -> dict[str, Any]:
    return {"charged": amount, "receipt": f"{note} was paid"}


@tool(read_only=True)
async def broken(note: str) -> str:
    msg = f"cannot look at {note}: {MARKER}-error"
    raise ValueError(msg)


@tool(read_only=True)
async def fatal(note: str) -> str:
    msg = f"{note} is over: {MARKER}-fatal"
    raise PropagatingToolError(msg)


async def raw(bench: Bench) -> bytes:
    """Every byte that Temporal gives out about a session's runs, none of it decoded by us."""
    found = [
        event.SerializeToString() for history in await bench.histories() for event in history.events
    ]
    found.append((await bench.workflow().describe()).raw_description.SerializeToString())
    for query in ("state", "__temporal_workflow_metadata"):
        answer = await bench.temporal.workflow_service.query_workflow(
            QueryWorkflowRequest(
                namespace=bench.temporal.namespace,
                execution=WorkflowExecution(workflow_id=bench.session),
                query=WorkflowQuery(query_type=query),
            )
        )
        found.append(answer.SerializeToString())
    listed = bench.temporal.list_workflows(f'WorkflowId = "{bench.session}"')
    found += [each.raw_info.SerializeToString() async for each in listed]
    return b"\n".join(found)


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's keys encrypt stores that are opened by their address."""
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", "k1:" + base64.b64encode(b"1" * 32).decode())


@pytest.mark.usefixtures("at_rest")
async def test_r18_no_canary_in_temporal_the_store_the_logs_traces_and_metrics(
    bench: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In prompt, arguments, results, error texts, decisions, state, metadata, keys: nowhere."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    meter = MeterProvider([reader]).get_meter("test")
    monkeypatch.setattr(metrics, "_duration", meter.create_histogram("duration"))
    monkeypatch.setattr(metrics, "_tokens", meter.create_histogram("tokens"))
    for name in ("OPENAI_API_KEY", "TILL_PASSWORD"):
        monkeypatch.setenv(name, f"{MARKER}-{name}")
    caplog.set_level(logging.DEBUG, logger="perdure")
    caplog.set_level(logging.INFO, logger="temporalio")
    model = bench.model(
        attempts(
            ProviderError(f"busy with {MARKER}", retryable=True, retry_after=0.01),
            [call("charge", {"amount": 5, "note": MARKER}), call("broken", {"note": MARKER})],
        ),
        [call("charge", {"amount": 500, "note": MARKER})],
        f"All of {MARKER} is paid.",
        [call("fatal", {"note": MARKER})],
    )
    agent = Agent(
        "till", provider=model, instructions=f"Keep {MARKER}.", tools=[charge, broken, fatal]
    )
    async with bench.serving(agent):
        paused = await bench.client.execute(
            "till",
            f"Pay for {MARKER}",
            session_id=bench.session,
            business_state={"customer": MARKER},
            metadata={"order": MARKER},
        )
        assert paused.approval_id is not None
        at_pause = await raw(bench)
        result = await bench.client.approvals.resolve(
            paused.approval_id, approved=True, note=MARKER, by=f"{MARKER}@example.com"
        )
        assert MARKER in result.text
        finished = await raw(bench)
        with pytest.raises(PropagatingToolError, match=MARKER):
            await bench.client.execute("till", f"And {MARKER} again", session_id=bench.session)
        failed = await raw(bench)
        # The write-ahead log is there while the store is open.
        stored = [(tmp_path / f"perdure.db{end}").read_bytes() for end in ("", "-wal")]
    for seen in stored:
        assert MARKER.encode() not in seen
        assert MARKER.encode("utf-16-le") not in seen
    assert any(b"enc:1:k1:" in seen for seen in stored)
    for seen in (at_pause, finished, failed):
        assert MARKER.encode() not in seen
        assert b"binary/encrypted" in seen
        assert bench.session.encode() in seen
    assert b"Encoded failure" in failed
    assert MARKER not in caplog.text
    traced = "".join(span.to_json() for span in spans.get_finished_spans())
    measured = reader.get_metrics_data()
    assert measured is not None
    assert "execute_tool broken" in traced
    assert MARKER not in traced + measured.to_json()
    # The store has it all, and the log says what failed without saying what about.
    assert MARKER in str(await bench.record())
    assert "Tool broken failed: ValueError" in caplog.text


async def test_the_ui_is_told_no_content_when_payloads_are_encrypted(bench: Bench) -> None:
    model = bench.model([call("charge", {"amount": 500, "note": MARKER})], f"{MARKER} is paid.")
    async with bench.serving(Agent("till", provider=model, tools=[charge])):
        paused = await bench.client.execute("till", "Pay", session_id=bench.session)
        assert paused.approval_id is not None
        waiting = await details(bench)
        assert "(encrypted: see `perdure approvals`)" in waiting
        assert f"perdure approve {paused.approval_id}" in waiting
        await bench.client.approvals.resolve(paused.approval_id, approved=True)
        ended = await details(bench)
    assert MARKER not in waiting + ended


async def details(bench: Bench) -> str:
    metadata = await bench.workflow().query(
        "__temporal_workflow_metadata", result_type=WorkflowMetadata
    )
    return str(metadata.current_details)


async def test_a_decision_sent_in_clear_counts(bench: Bench, temporal_address: str) -> None:
    """Somebody without a codec server decides in the Temporal UI."""
    model = bench.model([call("charge", {"amount": 500, "note": "x"})], "Done.")
    plain = await Client.connect(temporal_address)
    async with bench.serving(Agent("till", provider=model, tools=[charge])):
        paused = await bench.client.execute("till", "Pay", session_id=bench.session)
        decision = {"id": paused.approval_id, "approved": True}
        await plain.get_workflow_handle(bench.session).signal("resolve_approval", decision)
        resumed = bench.client.handle(bench.session, paused.run_id)
        result = await resumed.result(after_approval=paused.approval_id)
    assert result.text == "Done."


async def test_a_run_goes_on_after_its_key_was_rotated(bench: Bench) -> None:
    model = bench.model([call("charge", {"amount": 500, "note": "x"})], "Done.")
    agent = Agent("till", provider=model, tools=[charge])
    async with bench.serving(agent):
        paused = await bench.client.execute("till", "Pay", session_id=bench.session)
    assert paused.approval_id is not None
    rotated = Keyring({"k2": b"2" * 32, "k1": b"1" * 32})
    plain = await Client.connect(bench.temporal.service_client.config.target_host)
    async with (
        connect(
            bench.store_url, temporal=plain, task_queue=bench.queue, encryption=rotated
        ) as client,
        serving(client.temporal, [agent], client.store, task_queue=bench.queue),
    ):
        result = await client.approvals.resolve(paused.approval_id, approved=True)
        assert result.text == "Done."
        bytes_now = await raw(bench)
        bench.temporal = client.temporal  # it reads both, for the replay
    assert b"k1" in bytes_now
    assert b"k2" in bytes_now


@pytest.mark.parametrize("keys", [None, Keyring({"k9": b"9" * 32}), Keyring({"k1": b"9" * 32})])
async def test_a_wrong_or_missing_key_is_one_clear_line(
    bench: Bench, temporal_address: str, keys: Keyring | None
) -> None:
    async with bench.serving(Agent("till", provider=bench.model("Done."))):
        result = await bench.client.execute("till", "Pay", session_id=bench.session)
    other = await connect_temporal(temporal_address, encryption=keys or False)
    with pytest.raises(EncryptionKeyError, match="'k1'") as caught:
        await other.get_workflow_handle(bench.session, run_id=result.run_id).result()
    assert "\n" not in caught.value.message


async def test_a_worker_without_the_key_says_so_and_the_run_waits(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("till", provider=bench.model("Done."))
    plain = await Client.connect(bench.temporal.service_client.config.target_host)
    wrong = encrypting(plain, Keyring({"k9": b"9" * 32}))
    async with serving(wrong, [agent], bench.store, task_queue=bench.queue):
        handle = await bench.client.start("till", "Pay", session_id=bench.session)
        line = "This was encrypted with the key 'k1'; the keys here are: k9. [PERDURE_ENCRYPTION"
        await bench.until(lambda: line in caplog.text)
    async with bench.serving(agent):
        assert (await handle.result()).text == "Done."


class Shrinking(PayloadCodec):
    """A user's own codec."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(
                metadata={"encoding": b"binary/zlib"},
                data=zlib.compress(payload.SerializeToString()),
            )
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(zlib.decompress(payload.data))
            if payload.metadata["encoding"] == b"binary/zlib"
            else payload
            for payload in payloads
        ]


class OwnFailures(DefaultFailureConverter):
    """A user's failure converter that leaves messages in clear."""


OWN = dataclasses.replace(pydantic_data_converter, payload_codec=Shrinking())


@pytest.mark.parametrize("encryption", [KEYS, False])
async def test_r19_a_users_codec_stays_also_around_ours(
    temporal_address: str, store_url: str, bench: Bench, encryption: Any
) -> None:
    """Their codec and converter work on every payload, with our encryption around or without."""
    theirs = await Client.connect(temporal_address, data_converter=OWN)
    model = bench.model([call("charge", {"amount": 5, "note": MARKER})], "Done.")
    agent = Agent("till", provider=model, tools=[charge])
    async with (
        connect(
            store_url, temporal=theirs, task_queue=bench.queue, encryption=encryption
        ) as client,
        serving(client.temporal, [agent], client.store, task_queue=bench.queue),
    ):
        bench.temporal = client.temporal
        await client.execute("till", f"Pay {MARKER}", session_id=bench.session)
        assert client.temporal.data_converter.payload_converter_class is (
            pydantic_data_converter.payload_converter_class
        )
        seen = await raw(bench)
    assert MARKER.encode() not in seen
    payload = (await bench.histories())[0].events[0].workflow_execution_started_event_attributes
    first = payload.input.payloads[0]
    if encryption:
        first = (await EncryptionCodec(KEYS).decode([first]))[0]
    assert first.metadata["encoding"] == b"binary/zlib"


async def test_r19_a_converter_that_cannot_be_kept_private_fails_the_start(
    temporal_address: str, store_url: str
) -> None:
    own = dataclasses.replace(DataConverter.default, failure_converter_class=OwnFailures)
    theirs = await Client.connect(temporal_address, data_converter=own)
    with pytest.raises(ConfigurationError, match="OwnFailures leaves messages of errors"):
        await connect(store_url, temporal=theirs, encryption=KEYS)


async def test_the_environments_keys_are_used(
    temporal_address: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", "k1:" + "MTEx" * 10 + "MTE=")
    async with connect(store_url, temporal=temporal_address) as client:
        assert isinstance(client.temporal.data_converter.payload_codec, EncryptionCodec)
    async with connect("sqlite://", temporal=temporal_address, encryption=False) as client:
        assert client.temporal.data_converter.payload_codec is None
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", "k1:short")
    with pytest.raises(PerdureError, match="key"):
        await connect(store_url, temporal=temporal_address)


def test_encryption_is_put_around_a_converter_once() -> None:
    once = with_encryption(DataConverter.default, KEYS)
    assert with_encryption(once, KEYS) is once
