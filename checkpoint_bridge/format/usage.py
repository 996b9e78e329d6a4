"""Counting tokens and money (format page, "Usage"). All functions give new dictionaries."""

from __future__ import annotations

from typing import Any

from perdure.checkpoint_bridge.format._record import Record, member, plain
from perdure.checkpoint_bridge.format.stable_json import Json, JsonObject, copy_json

__all__ = ["add_model_call", "empty_usage", "restore_usage", "step_usage_entry"]

OPTIONAL_COUNTS = ("cachedInputTokens", "cacheWriteTokens", "reasoningTokens")
"""Counts that are present only when a provider gives them."""

LIMIT = 2**63

UNKNOWN_MODEL = "unknown"
"""The model under which the tokens of an older record are filed."""


def empty_usage() -> JsonObject:
    """A RunUsage of a run that has called no model: nothing used, at no cost."""
    return {
        "inputTokens": 0,
        "outputTokens": 0,
        "totalTokens": 0,
        "costUsd": 0,
        "modelCalls": 0,
        "estimated": False,
        "byModel": {},
        "promptTokens": 0,
        "completionTokens": 0,
    }


def add_model_call(
    usage: JsonObject | Record,
    *,
    model: str,
    usage_of_call: JsonObject | None,
    cost_usd: float | None,
    estimated: bool,
) -> JsonObject:
    """Add one answer of a model to a run's usage.

    ``cost_usd`` is ``None`` when the model's price is unknown; then the run's cost is unknown
    from here on and its key is left out, since a partial sum would read as the whole.
    """
    added = restore_usage(usage)
    call = _call_counts(usage_of_call)
    for key, count in call.items():
        added[key] = _count(added, key) + count
    added["modelCalls"] = _count(added, "modelCalls") + 1
    added["estimated"] = bool(added.get("estimated")) or estimated
    added["promptTokens"] = added["inputTokens"]
    added["completionTokens"] = added["outputTokens"]
    _add_cost(added, cost_usd)

    by_model: JsonObject = added["byModel"]
    fresh = {"inputTokens": 0, "outputTokens": 0, "costUsd": 0, "calls": 0}
    entry = by_model.get(model)
    entry = entry if isinstance(entry, dict) else fresh
    entry["inputTokens"] = _count(entry, "inputTokens") + call["inputTokens"]
    entry["outputTokens"] = _count(entry, "outputTokens") + call["outputTokens"]
    entry["calls"] = _count(entry, "calls") + 1
    _add_cost(entry, cost_usd)
    by_model[model] = entry
    return added


def step_usage_entry(
    step: int,
    model: str,
    usage_of_call: JsonObject | None,
    *,
    estimated: bool,
    cost_usd: float | None,
) -> JsonObject:
    """A StepUsage: what the answer of step ``step`` (from 1) used."""
    entry: JsonObject = {
        "step": step,
        "model": model,
        "usage": _call_counts(usage_of_call),
        "estimated": estimated,
    }
    if cost_usd is not None:
        entry["costUsd"] = cost_usd
    return entry


def restore_usage(old: JsonObject | Record | None) -> JsonObject:
    """Read a stored usage as a full RunUsage; nothing stored is an empty one.

    An older record holds only ``promptTokens``, ``completionTokens`` and ``totalTokens``. Nobody
    knows which models they are of, so they are filed under ``unknown`` and the cost is unknown.
    """
    stored = plain(old)
    if not isinstance(stored, dict) or not stored:
        return empty_usage()
    if "inputTokens" in stored or "byModel" in stored:
        kept: JsonObject = copy_json(stored)
        full = empty_usage()
        del full["costUsd"]
        full.update({key: value for key, value in kept.items() if value is not None})
        if not isinstance(full["byModel"], dict):
            full["byModel"] = {}
        full["promptTokens"] = full["inputTokens"]
        full["completionTokens"] = full["outputTokens"]
        return full
    tokens_in = _count(stored, "promptTokens")
    tokens_out = _count(stored, "completionTokens")
    restored: JsonObject = empty_usage() | copy_json(stored)
    del restored["costUsd"]
    restored["inputTokens"] = tokens_in
    restored["outputTokens"] = tokens_out
    restored["promptTokens"], restored["completionTokens"] = tokens_in, tokens_out
    restored["totalTokens"] = _count(stored, "totalTokens") or tokens_in + tokens_out
    restored["byModel"] = {
        UNKNOWN_MODEL: {"inputTokens": tokens_in, "outputTokens": tokens_out, "calls": 0}
    }
    return restored


def _call_counts(usage_of_call: JsonObject | None) -> dict[str, Any]:
    call = plain(usage_of_call)
    tokens_in = _count(call, "inputTokens")
    tokens_out = _count(call, "outputTokens")
    total = _count(call, "totalTokens") or tokens_in + tokens_out
    counts = {"inputTokens": tokens_in, "outputTokens": tokens_out, "totalTokens": total}
    for key in OPTIONAL_COUNTS:
        if member(call, key) is not None:
            counts[key] = _count(call, key)
    return counts


def _add_cost(total: JsonObject, cost_usd: float | None) -> None:
    """Add to a cost that is known; a cost that is unknown stays so."""
    known = total.pop("costUsd", None)
    if _is_number(known) and cost_usd is not None:
        total["costUsd"] = known + cost_usd


def _count(value: Json, key: str) -> Any:
    """A number of tokens, or 0 when it is missing or no number."""
    count = member(value, key)
    return count if _is_number(count) else 0


def _is_number(value: Json) -> bool:
    """Whether a stored value can be added to: no boolean, no NaN, nothing beyond all counting."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -LIMIT < value < LIMIT
