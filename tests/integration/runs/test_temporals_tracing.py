"""Our traces beside those of temporalio's own plugin and interceptor."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client
from temporalio.contrib.opentelemetry import (
    OpenTelemetryPlugin,
    TracingInterceptor,
    create_tracer_provider,
)

from perdure import Agent, tool
from perdure.client import connect
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


@tool(read_only=True)
async def weather(city: str) -> str:
    with trace.get_tracer("service").start_as_current_span("GET /weather"):
        return f"sun in {city}"


PLUGIN = {
    "StartWorkflow:AgentWorkflow": 1,
    "RunWorkflow:AgentWorkflow": 1,
    "StartActivity:call_model": 2,
    "RunActivity:call_model": 2,
    "StartActivity:run_tool": 1,
    "RunActivity:run_tool": 1,
}
INTERCEPTOR = PLUGIN | {"CompleteWorkflow:AgentWorkflow": 1}
QUIET: dict[str, int] = {}
"""The plugin as it is by default: it hands the context on, and makes no spans."""


@pytest.mark.parametrize("called", [True, False])
@pytest.mark.parametrize("theirs", [PLUGIN, INTERCEPTOR, QUIET])
async def test_one_trace_with_temporals_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, theirs: dict[str, int], *, called: bool
) -> None:
    """On client and worker, while every workflow task replays: each span is there once."""
    exporter = InMemorySpanExporter()
    options: dict[str, Any]
    provider: Any
    if theirs is INTERCEPTOR:
        provider = TracerProvider()
        options = {"interceptors": [TracingInterceptor(provider.get_tracer("temporal"))]}
    else:
        provider = create_tracer_provider()
        options = {"plugins": [OpenTelemetryPlugin(add_temporal_spans=bool(theirs))]}
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    bench.temporal = await Client.connect(
        bench.temporal.service_client.config.target_host, **options
    )
    model = bench.model([call("weather", {"city": "Rome"})], "Done.")
    agent = Agent("trip", model="scripted-1", provider=model, tools=[weather])
    service = provider.get_tracer("service").start_as_current_span("POST /trips")
    async with (
        connect(bench.store_url, temporal=bench.temporal, task_queue=bench.queue) as client,
        bench.serving(agent, max_cached_workflows=0),
    ):
        with service if called else contextlib.nullcontext():
            await client.execute("trip", "To Rome", session_id=bench.session)

    spans = exporter.get_finished_spans()
    names = Counter(span.name for span in spans)
    ours = {
        "invoke_agent trip": 1,
        "chat scripted-1": 2,
        "execute_tool weather": 1,
        "GET /weather": 1,
    }
    if called:
        ours["POST /trips"] = 1
    # Theirs are also about activities that are an inner matter of ours.
    assert {name: names[name] for name in (ours | theirs)} == ours | theirs
    assert all(theirs or name in ours for name in names)
    assert len({_context(span).span_id for span in spans}) == len(spans)
    assert len({_context(span).trace_id for span in spans}) == 1

    # Ours hang together, below who called: the service, or the activity that opens runs.
    assert _parent(spans, "GET /weather") == "execute_tool weather"
    assert _parent(spans, "execute_tool weather") == "invoke_agent trip"
    above = "POST /trips" if called else "RunActivity:open_run" if theirs else ""
    assert _parent(spans, "invoke_agent trip") == above


def _context(span: ReadableSpan) -> trace.SpanContext:
    context: trace.SpanContext | None = span.context
    assert context is not None
    return context


def _parent(spans: tuple[ReadableSpan, ...], name: str) -> str:
    (found,) = (span for span in spans if span.name == name)
    if found.parent is None:
        return ""
    (above,) = (span for span in spans if _context(span).span_id == found.parent.span_id)
    return above.name
