"""A worker as a process sends its traces and metrics to a collector, over OTLP."""

from __future__ import annotations

import asyncio
import http.server
import signal
import threading
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


class Collector(http.server.ThreadingHTTPServer):
    """Takes what is exported, as any OTLP receiver does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.bodies: list[tuple[str, bytes]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Any]:
        return [
            span
            for path, body in self.bodies
            if path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> set[str]:
        return {
            metric.name
            for path, body in self.bodies
            if path == "/v1/metrics"
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


class _Receiver(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = zlib.decompress(body, wbits=31)
        self.server.bodies.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_r33_a_trace_over_two_workers_is_whole(
    program: Any, wait_for_line: Any, collector: Collector
) -> None:
    """Two tools and an approval; a second worker finishes what the first one began."""
    telemetry = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
        "OTEL_SERVICE_NAME": "trips",
    }

    async def serve(*command: str) -> Any:
        worker = await program.start("worker", "app.py:trip", **telemetry)
        for kind in ("traces", "metrics"):
            await wait_for_line(worker.stderr, f"Sending {kind} to {collector.endpoint}")
        await wait_for_line(worker.stderr, "Serving trip")
        run = await program(*command)
        async with asyncio.timeout(120):
            while "perdure.approvals.waiting" not in collector.metrics():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0
        return run

    paused = await serve("run", "trip", "Rome", "--session-id", "traced", "--json")
    assert paused.code == 3, paused.errors
    done = await serve("approve", paused.json["approvalId"])
    assert done.code == 0, done.errors
    spans = collector.spans()
    names = sorted(span.name for span in spans)
    assert names == [
        *["chat scripted"] * 3,
        "execute_tool book",
        "execute_tool weather",
        "invoke_agent trip",
    ]
    assert len({span.trace_id for span in spans}) == 1
    run = next(span for span in spans if span.name == "invoke_agent trip")
    assert {span.parent_span_id for span in spans} == {b"", run.span_id}
    assert run.start_time_unix_nano <= min(span.start_time_unix_nano for span in spans)
    assert collector.metrics() >= {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
    }
    assert b"service.name" in collector.bodies[0][1]
    assert b"trips" in collector.bodies[0][1]
