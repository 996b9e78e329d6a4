"""Token counts in the documented format's names, the same meaning for every provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = ["count_of", "usage_of"]


def usage_of(
    *,
    input_tokens: Any,
    output_tokens: Any,
    cached: Any = None,
    cache_write: Any = None,
    reasoning: Any = None,
) -> JsonObject | None:
    """One call's usage, or ``None`` when the provider gave neither of the two counts.

    Args:
        input_tokens: the whole prompt, cache reads and writes included. Services that count those
            apart are summed by their provider, so that runs on different services compare.
        output_tokens: everything generated, reasoning included.
        cached: the part of the input that was read from a cache.
        cache_write: the part of the input that was written to a cache.
        reasoning: the part of the output that was reasoning.
    """
    if count_of(input_tokens) is None and count_of(output_tokens) is None:
        return None
    into, out = count_of(input_tokens) or 0, count_of(output_tokens) or 0
    usage: JsonObject = {"inputTokens": into, "outputTokens": out, "totalTokens": into + out}
    optional = {
        "cachedInputTokens": cached,
        "cacheWriteTokens": cache_write,
        "reasoningTokens": reasoning,
    }
    for name, value in optional.items():
        if count_of(value):
            usage[name] = count_of(value)
    return usage


def count_of(value: Any) -> int | None:
    """A count as a service may write it, or ``None`` for anything that is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return int(value) if value >= 0 else None
    except (ValueError, OverflowError):
        return None
