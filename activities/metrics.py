"""The metrics of model and tool calls, by OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import metrics

from perdure.activities.spans import SCHEMA, SCOPE, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN_BUCKETS = [4.0**power for power in range(14)]
_SECOND_BUCKETS = [0.01 * 2**power for power in range(14)]

# A provider that is set later is used from then on.
_meter = metrics.get_meter(SCOPE, VERSION, schema_url=SCHEMA)
_tokens = _meter.create_histogram(
    "gen_ai.client.token.usage",
    unit="{token}",
    description="Input and output tokens of model calls.",
    explicit_bucket_boundaries_advisory=_TOKEN_BUCKETS,
)
_duration = _meter.create_histogram(
    "gen_ai.client.operation.duration",
    unit="s",
    description="How long one attempt of a model call or tool call took.",
    explicit_bucket_boundaries_advisory=_SECOND_BUCKETS,
)


def note_tokens(usage: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    """Count the tokens of an answer."""
    for kind, key in (("input", "inputTokens"), ("output", "outputTokens")):
        if usage.get(key) is not None:
            _tokens.record(int(usage[key]), {**attributes, "gen_ai.token.type": kind})


def note_operation(seconds: float, attributes: Mapping[str, Any], error: str) -> None:
    """Count an attempt, with the type of its error if it failed."""
    _duration.record(seconds, {**attributes, "error.type": error} if error else {**attributes})
