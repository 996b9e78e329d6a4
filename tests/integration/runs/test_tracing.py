"""Traces and metrics of runs, as whoever collects them gets them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler

from perdure import Agent, ToolContext, tool
from perdure.activities import metrics as ours
from perdure.checkpoint_bridge.errors import ProviderError, RunFailedError
from perdure.telemetry import create_gauges
from perdure.testing import attempts, call

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.runs.conftest import Bench

MARKER = "zebra-7731"


class Collected:
    """The spans and metrics of one test."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, self.names()
        return found[0]


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Collected:
    collected = Collected()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", collected.provider)
    return collected


@tool(read_only=True)
async def weather(city: str) -> str:
    return f"sun in {city}"


@tool(idempotent=True, needs_approval=True)
async def book(city: str) -> str:
    return f"booked {city}"


def trip(bench: Bench) -> Agent:
    model = bench.model(
        attempts(
            ProviderError(f"busy with {MARKER}", retryable=True, retry_after=0.01),
            [call("weather", {"city": MARKER}), call("book", {"city": MARKER})],
        ),
        f"{MARKER} is booked.",
    )
    return Agent("trip", model="scripted-1", provider=model, tools=[weather, book])


NAMES = [
    "invoke_agent trip",
    "chat scripted-1",
    "execute_tool weather",
    "execute_tool book",
    "chat scripted-1",
]


async def test_r33_one_span_for_each_call_over_restarts_and_without_a_cache(
    bench: Bench, collected: Collected
) -> None:
    """Two tools and an approval; another worker goes on; every workflow task replays."""
    agent = trip(bench)
    async with bench.serving(agent, max_cached_workflows=0):
        paused = await bench.client.execute("trip", f"To {MARKER}", session_id=bench.session)
    assert paused.approval_id is not None
    # Nothing of the run is told twice, and the run itself not before its end.
    assert collected.names() == NAMES[1:3]
    async with bench.serving(agent, max_cached_workflows=0):
        await bench.client.approvals.resolve(paused.approval_id, approved=True)
        await bench.replay(bench.session)
    assert sorted(collected.names()) == sorted(NAMES)
    run = collected.one("invoke_agent trip")
    assert run.parent is None
    assert run.context is not None
    for span in collected.spans:
        assert span.context is not None
        assert span.context.trace_id == run.context.trace_id
        if span is not run:
            assert span.parent is not None
            assert span.parent.span_id == run.context.span_id
    # The retried call is one span that says so.
    first, second = (span for span in collected.spans if span.name.startswith("chat"))
    assert facts(first)["perdure.attempts"] == 2
    assert facts(first)["perdure.failed_attempts"] == ("LOUSHO_PROVIDER_REQUEST_FAILED",)
    assert "perdure.attempts" not in facts(second)


async def test_spans_say_what_the_conventions_name(bench: Bench, collected: Collected) -> None:
    agent = trip(bench)
    agent.settings["temperature"] = 0.5
    async with bench.serving(agent):
        paused = await bench.client.execute("trip", f"To {MARKER}", session_id=bench.session)
        assert paused.approval_id is not None
        await bench.client.approvals.resolve(paused.approval_id, approved=True)
    common = {"gen_ai.agent.name": "trip", "gen_ai.conversation.id": bench.session}
    chat = facts(collected.spans[-1])
    usage = (await bench.record())["usage"]
    assert chat == common | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "Model",
        "gen_ai.request.model": "scripted-1",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": chat["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": chat["gen_ai.usage.output_tokens"],
    }
    assert collected.spans[-1].kind is trace.SpanKind.CLIENT
    assert facts(collected.one("execute_tool book")) == common | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "book",
        "gen_ai.tool.call.id": "call_1_2",
        "gen_ai.tool.type": "function",
    }
    run = collected.one("invoke_agent trip")
    assert facts(run) == common | {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": usage["inputTokens"],
        "gen_ai.usage.output_tokens": usage["outputTokens"],
        "perdure.run.id": paused.run_id,
    }
    assert run.end_time is not None
    assert run.start_time is not None
    assert run.end_time >= run.start_time
    # No content: neither in attributes nor in events nor in a status.
    assert MARKER not in "".join(span.to_json() for span in collected.spans)


async def test_content_is_captured_where_the_operator_asks(
    bench: Bench, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    model = bench.model([call("weather", {"city": MARKER})], "Sunny.")
    agent = Agent("trip", provider=model, instructions="Be brief.", tools=[weather])
    async with bench.serving(agent):
        await bench.client.execute("trip", "Weather?", session_id=bench.session)
    last = facts(collected.spans[-1])
    assert json.loads(last["gen_ai.system_instructions"]) == [
        {"type": "text", "content": "Be brief."}
    ]
    told = json.loads(last["gen_ai.input.messages"])
    assert told[0] == {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}
    assert told[1]["parts"][0]["type"] == "tool_call"
    assert told[2]["parts"][0]["response"] == f'"sun in {MARKER}"'
    assert "Sunny." in last["gen_ai.output.messages"]
    ran = facts(collected.one("execute_tool weather"))
    assert json.loads(ran["gen_ai.tool.call.arguments"]) == {"city": MARKER}
    assert ran["gen_ai.tool.call.result"] == f'"sun in {MARKER}"'


@pytest.mark.parametrize("traced", [True, False])
async def test_the_callers_trace_reaches_a_tools_own_requests(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, traced: bool
) -> None:
    """Also through a worker in which nobody collects spans."""
    collected = Collected()
    if traced:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", collected.provider)
    sent: list[str] = []

    @tool(idempotent=True)
    def fetch(ctx: ToolContext) -> int:
        headers: dict[str, str] = {}
        propagate.inject(headers)  # what instrumentation of any HTTP client does
        sent.append(headers["traceparent"])
        return ctx.attempt

    model = bench.model([call("fetch")], "Done.")
    caller = collected.provider.get_tracer("service")
    async with bench.serving(Agent("trip", provider=model, tools=[fetch])):
        with caller.start_as_current_span("POST /trips") as request:
            await bench.client.execute("trip", "Go", session_id=bench.session)
    trace_id = request.get_span_context().trace_id
    assert sent[0].split("-")[1] == f"{trace_id:032x}"
    if traced:
        run, ran = collected.one("invoke_agent trip"), collected.one("execute_tool fetch")
        assert run.parent is not None
        assert run.parent.span_id == request.get_span_context().span_id
        assert ran.context is not None
        assert sent[0].split("-")[2] == f"{ran.context.span_id:016x}"
    else:
        assert collected.names() == ["POST /trips"]


async def test_any_client_may_give_a_traceparent(bench: Bench, collected: Collected) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with bench.serving(Agent("trip", provider=bench.model("Done."))):
        run = await bench.start_plain({"agent": "trip", "input": "Go", "traceparent": given})
        await run.result()
    for span in collected.spans:
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == given.split("-")[1]


async def test_an_unsampled_trace_has_no_spans(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = Collected(ParentBased(ALWAYS_OFF))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", collected.provider)
    async with bench.serving(trip(bench)):
        await bench.client.execute("trip", "Go", session_id=bench.session)
    assert collected.names() == []


async def test_errors_are_told_by_their_types(bench: Bench, collected: Collected) -> None:
    @tool(read_only=True)
    async def broken() -> str:
        raise ValueError(MARKER)

    @tool(read_only=True)
    async def flaky(ctx: ToolContext) -> str:
        if len(seen) < 1:
            seen.append(ctx.attempt)
            raise httpx.ConnectError(MARKER)
        return "fine"

    seen: list[int] = []
    model = bench.model([call("broken"), call("flaky")], ProviderError(f"no {MARKER}"))
    async with bench.serving(Agent("trip", provider=model, tools=[broken, flaky])):
        with pytest.raises((ProviderError, RunFailedError)):
            await bench.client.execute("trip", "Go", session_id=bench.session)
    failed = collected.one("execute_tool broken")
    assert facts(failed)["error.type"] == "ValueError"
    assert failed.status.status_code is trace.StatusCode.ERROR
    # A call that was made again within its activity says when and why.
    repeated = collected.one("execute_tool flaky")
    assert [(event.name, dict(event.attributes or {})) for event in repeated.events] == [
        ("perdure.attempt.failed", {"error.type": "ConnectError"})
    ]
    last = collected.spans[-1]
    run = collected.one("invoke_agent trip")
    for span in (last, run):
        assert facts(span)["error.type"] == "LOUSHO_PROVIDER_REQUEST_FAILED"
        assert span.status.status_code is trace.StatusCode.ERROR
    assert len(collected.names()) == 5
    assert MARKER not in "".join(span.to_json() for span in collected.spans)


async def test_a_lost_run_is_told_by_the_one_after_it(bench: Bench, collected: Collected) -> None:
    model = bench.model([call("book", {"city": "x"})], "Booked.")
    agent = Agent("trip", provider=model, tools=[book])
    async with bench.serving(agent):
        await bench.client.execute("trip", "Go", session_id=bench.session)
        await bench.workflow().terminate()
        assert "invoke_agent trip" not in collected.names()
        pending = await bench.pending()
        await bench.client.approvals.resolve(pending, approved=True)
    lost, last = (span for span in collected.spans if span.name == "invoke_agent trip")
    assert facts(lost)["error.type"] == "interrupted"
    assert "error.type" not in facts(last)


async def test_metrics_count_tokens_and_times(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("perdure")
    for name in ("_tokens", "_duration"):
        instrument = getattr(ours, name)
        monkeypatch.setattr(ours, name, meter.create_histogram(instrument._name))
    async with bench.serving(trip(bench)):
        paused = await bench.client.execute("trip", f"To {MARKER}", session_id=bench.session)
        assert paused.approval_id is not None
        await bench.client.approvals.resolve(paused.approval_id, approved=True)
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, list[Any]] = {
        metric.name: list(metric.data.data_points)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    usage = (await bench.record())["usage"]
    tokens = {
        dict(point.attributes or {})["gen_ai.token.type"]: point.sum
        for point in found["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": usage["inputTokens"], "output": usage["outputTokens"]}
    counted = {
        (
            dict(point.attributes or {})["gen_ai.operation.name"],
            dict(point.attributes or {}).get("error.type"),
        ): point.count
        for point in found["gen_ai.client.operation.duration"]
    }
    assert counted[("chat", "LOUSHO_PROVIDER_REQUEST_FAILED")] == 1
    assert counted[("chat", None)] == 2
    assert MARKER not in str(data.to_json())


async def test_gauges_tell_what_waits_and_how_far_mirrors_are(bench: Bench, tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    create_gauges(MeterProvider([reader]).get_meter("test"))
    model = bench.model([call("book", {"city": "x"})], "Booked.")
    agent = Agent("trip", provider=model, tools=[book])
    mirror = f"lousho-files:{tmp_path / 'mirror'}"

    async def gauges() -> dict[str, Any]:
        # As an exporter does, from a thread of its own.
        data: Any = await asyncio.to_thread(reader.get_metrics_data)
        scopes = data.resource_metrics[0].scope_metrics if data else []
        return {
            metric.name: [point.value for point in metric.data.data_points]
            for scope in scopes
            for metric in scope.metrics
        }

    async with bench.serving(agent, mirrors=[mirror]):
        paused = await bench.client.execute("trip", "Go", session_id=bench.session)
        assert paused.approval_id is not None

        async def is_caught_up() -> bool:
            return bool((await gauges())["perdure.mirror.lag"] == [0])

        await bench.until(is_caught_up)
        assert (await gauges())["perdure.approvals.waiting"] == [1]
        await bench.client.approvals.resolve(paused.approval_id, approved=True)
        assert (await gauges())["perdure.approvals.waiting"] == [0]
        # Collected on the loop itself, they are left out rather than waited for.
        assert reader.get_metrics_data() is None
    assert await gauges() == {}
