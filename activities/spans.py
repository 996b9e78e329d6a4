"""Spans of calls that Temporal may run several times, each of them exported once.

A call of a run can be tried by one worker after the other, and a run's end can be written twice.
So a span's ids follow from the run and the call, its times from the record, and it is ended (which
exports it) by whoever makes the outcome known. What an attempt calls itself has this span as its
parent, whichever attempt it was. Spans are made in activities only, never in workflow code, so a
replay makes none.

With the API of OpenTelemetry alone (no SDK in the process) nothing is recorded, and the caller's
trace context still reaches tools.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Tracer

SCOPE = "perdure"
VERSION = importlib.metadata.version(SCOPE)
SCHEMA = "https://opentelemetry.io/schemas/1.37.0"

_PROPAGATOR = TraceContextTextMapPropagator()
_given: ContextVar[tuple[int, int] | None] = ContextVar("perdure_span_ids", default=None)
_tracers: weakref.WeakKeyDictionary[Any, Tracer] = weakref.WeakKeyDictionary()


def is_on() -> bool:
    """Whether somebody takes spans in this process."""
    nobody = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
    return not isinstance(trace.get_tracer_provider(), nobody)


def current_traceparent() -> str:
    """The W3C ``traceparent`` of the span that is current here, or an empty text."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent", "")


def root_of(key: str, parent: str, name: str) -> str:
    """The ``traceparent`` of a span that is not made yet: the same one for the same arguments.

    Args:
        key: what the span is about.
        parent: the ``traceparent`` of its parent; empty: it starts a trace of its own.
        name: the span's name, which a sampler may go by.
    """
    above = _span_context(parent)
    if above.is_valid:
        trace_id, flags = above.trace_id, int(above.trace_flags)
    else:
        trace_id = int.from_bytes(_digest(f"{key} trace")[:16], "big")
        flags = int(_is_sampled(trace_id, name))
    return f"00-{trace_id:032x}-{_span_id(key):016x}-{flags:02x}"


def start_root(traceparent: str, parent: str, name: str, kind: SpanKind, start_ms: int) -> Span:
    """Make the span that :func:`root_of` announced."""
    own, above = _span_context(traceparent), _span_context(parent)
    context = trace.set_span_in_context(trace.NonRecordingSpan(above), otel_context.Context())
    token = _given.set((own.trace_id, own.span_id))
    try:
        start = start_ms * 1_000_000
        return _tracer().start_span(name, context, kind=kind, start_time=start)
    finally:
        _given.reset(token)


def start_child(parent: str, key: str, name: str, kind: SpanKind, start_ms: int) -> Span:
    """Start the span of a call: with the same ids at every attempt.

    Args:
        parent: the ``traceparent`` of the run's span; empty: whatever is current here.
        key: names the call among those of its parent.
        name: the span's name.
        kind: the span's kind.
        start_ms: when the call was begun first, in Unix milliseconds.
    """
    start = start_ms * 1_000_000
    above = _span_context(parent)
    if not is_on():
        # OpenTelemetry's own tracer for nobody loses the caller's context in older versions.
        here = above if above.is_valid else trace.get_current_span().get_span_context()
        return trace.NonRecordingSpan(here)
    if not above.is_valid:
        return _tracer().start_span(name, kind=kind, start_time=start)
    token = _given.set((above.trace_id, _span_id(f"{parent} {key}")))
    try:
        return _tracer().start_span(name, _context_of(above), kind=kind, start_time=start)
    finally:
        _given.reset(token)


class _GivenIds:
    """An id generator that gives the ids asked for, and otherwise what the provider's own gives."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def generate_trace_id(self) -> int:
        given = _given.get()
        return int(self._own.generate_trace_id()) if given is None else given[0]

    def generate_span_id(self) -> int:
        given = _given.get()
        return int(self._own.generate_span_id()) if given is None else given[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _tracer() -> Tracer:
    """Our tracer of the provider that is set now, with ids of ours where it lets us."""
    provider = trace.get_tracer_provider()
    tracer = _tracers.get(provider)
    if tracer is None:
        tracer = provider.get_tracer(SCOPE, VERSION, SCHEMA)
        # temporalio wraps the SDK's tracer to keep replays silent; here nothing is replayed.
        tracer = getattr(tracer, "_tracer", tracer)
        if hasattr(tracer, "id_generator"):
            tracer.id_generator = _GivenIds(tracer.id_generator)
        _tracers[provider] = tracer
    return tracer


def _is_sampled(trace_id: int, name: str) -> bool:
    provider: Any = trace.get_tracer_provider()
    sampler = getattr(getattr(provider, "_tracer_provider", provider), "sampler", None)
    if sampler is None:
        return is_on()
    return bool(sampler.should_sample(None, trace_id, name).decision.is_sampled())


@functools.lru_cache(maxsize=1_000)  # each call of a run asks for the same one
def _span_context(traceparent: str) -> trace.SpanContext:
    carrier = {"traceparent": traceparent}
    context = _PROPAGATOR.extract(carrier, otel_context.Context())
    return trace.get_current_span(context).get_span_context()


def _context_of(above: trace.SpanContext) -> Context:
    """What is current here (baggage, say) below another span."""
    return trace.set_span_in_context(trace.NonRecordingSpan(above))


def _span_id(key: str) -> int:
    return int.from_bytes(_digest(f"{key} span")[:8], "big") or 1


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
