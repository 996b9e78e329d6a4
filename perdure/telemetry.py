"""Where traces and metrics go to, and the metrics of a worker's store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation

from perdure.activities.spans import SCHEMA, SCOPE, VERSION, is_on
from perdure.checkpoint_bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

    from perdure.checkpoint_bridge.mirrors.mirror import Mirror
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_OF_SIGNALS = {
    "traces": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "metrics": "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
}
_PROTOCOL = "http/protobuf"
_PATIENCE = 2.0
"""Seconds that a collection of metrics waits for the store."""


def export_from_environment() -> dict[str, str]:
    """Send traces and metrics over OTLP where OpenTelemetry's own variables say so.

    For programs of ours. A program that embeds us, or ``opentelemetry-instrument``, has set
    providers already, and then this does nothing. What is left is sent when the process ends.

    Returns:
        Where ``traces`` and ``metrics`` go to now, each if it goes anywhere.

    Raises:
        ConfigurationError: an endpoint is set and the exporter is not installed, or the protocol
            is another one.
    """
    asked = {
        kind: os.environ.get(name) or os.environ.get(_ENDPOINT, "")
        for kind, name in _OF_SIGNALS.items()
    }
    asked = {kind: endpoint for kind, endpoint in asked.items() if endpoint}
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not asked or off or is_on():
        return {}
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOL
    if protocol != _PROTOCOL:
        msg = f"OTEL_EXPORTER_OTLP_PROTOCOL is {_PROTOCOL} here, not {protocol!r}."
        hint = "For another one run the command under opentelemetry-instrument."
        raise ConfigurationError(msg, field="OTEL_EXPORTER_OTLP_PROTOCOL", hint=hint)
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        msg = "An OTLP endpoint is set, and OpenTelemetry's exporter is not installed."
        hint = "Install it with: pip install 'perdure[otel]'"
        raise ConfigurationError(msg, field=_ENDPOINT, hint=hint) from error
    # The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": SCOPE}
    resource = Resource.create(name)
    if "traces" in asked:
        tracer_provider = TracerProvider(resource=resource)
        tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(tracer_provider)
    if "metrics" in asked:
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())]
        metrics.set_meter_provider(MeterProvider(readers, resource=resource))
    return asked


@contextlib.contextmanager
def observing(store: SqlStore, mirrors: Sequence[Mirror]) -> Iterator[None]:
    """While entered, whoever collects metrics finds the store's; nobody else asks the store."""
    source = _Source(store, mirrors)
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


class _Source:
    """A worker's store, asked from the thread that collects metrics."""

    def __init__(self, store: SqlStore, mirrors: Sequence[Mirror]) -> None:
        self._store = store
        self._mirrors = mirrors
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def waiting(self) -> list[Observation]:
        found = self._ask(self._waiting())
        return [] if found is None else [Observation(found)]

    def lag(self) -> list[Observation]:
        found = []
        for mirror in self._mirrors:
            behind = self._ask(mirror.lag())
            if behind is not None:
                found.append(Observation(behind, {"perdure.mirror.name": mirror.name}))
        return found

    async def _waiting(self) -> int:
        return len(await self._store.approvals())

    def _ask(self, question: Coroutine[Any, Any, int]) -> int | None:
        """The answer, or ``None`` when the store does not give one in time."""
        if threading.get_ident() == self._thread or self._loop.is_closed():
            question.close()  # the loop cannot answer while it waits for the answer
            return None
        asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return asked.result(_PATIENCE)
        except Exception:  # noqa: BLE001 - metrics of a store that is down are left out
            asked.cancel()
            return None


_sources: list[_Source] = []


def _observe(
    of: Callable[[_Source], list[Observation]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [each for source in list(_sources) for each in of(source)]

    return observe


def create_gauges(meter: metrics.Meter) -> None:
    """The metrics of the store: every worker of a store reports the same ones."""
    meter.create_observable_gauge(
        "perdure.approvals.waiting",
        [_observe(_Source.waiting)],
        unit="{approval}",
        description="Approvals of the store that nobody has decided yet.",
    )
    meter.create_observable_gauge(
        "perdure.mirror.lag",
        [_observe(_Source.lag)],
        unit="{save}",
        description="Saves that a mirror does not have yet.",
    )


create_gauges(metrics.get_meter(SCOPE, VERSION, schema_url=SCHEMA))
