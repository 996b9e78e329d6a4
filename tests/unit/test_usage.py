"""Tokens and money."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from perdure.checkpoint_bridge.format.usage import (
    add_model_call,
    empty_usage,
    restore_usage,
    step_usage_entry,
)

CALL = {"inputTokens": 10, "outputTokens": 5}
OLD = {"promptTokens": 10, "completionTokens": 5, "totalTokens": 15}


def add(usage: dict[str, Any], model: str = "m", cost: float | None = 0.5, **call: int) -> Any:
    return add_model_call(
        usage, model=model, usage_of_call=CALL | call, cost_usd=cost, estimated=False
    )


def test_calls_are_added_up_by_model() -> None:
    first = add(empty_usage())
    before = copy.deepcopy(first)
    total = add(add(first, "other", 0.25, cachedInputTokens=3), totalTokens=20)
    assert total == {
        "inputTokens": 30,
        "outputTokens": 15,
        "totalTokens": 50,
        "costUsd": 1.25,
        "modelCalls": 3,
        "estimated": False,
        "byModel": {
            "m": {"inputTokens": 20, "outputTokens": 10, "costUsd": 1.0, "calls": 2},
            "other": {"inputTokens": 10, "outputTokens": 5, "costUsd": 0.25, "calls": 1},
        },
        "promptTokens": 30,
        "completionTokens": 15,
        "cachedInputTokens": 3,
    }
    assert first == before


def test_one_unknown_price_makes_the_cost_unknown_for_good() -> None:
    unknown = add(add(empty_usage()), "free", None)
    assert "costUsd" not in unknown
    assert "costUsd" not in unknown["byModel"]["free"]
    assert unknown["byModel"]["m"]["costUsd"] == 0.5
    assert "costUsd" not in add(unknown)
    assert "costUsd" not in add(add(unknown), "free")["byModel"]["free"]


def test_a_call_without_counts_is_still_a_call() -> None:
    usage = add_model_call(empty_usage(), model="m", usage_of_call=None, cost_usd=0, estimated=True)
    assert usage["modelCalls"] == usage["byModel"]["m"]["calls"] == 1
    assert usage["totalTokens"] == 0
    assert usage["estimated"] is True
    assert add(usage)["estimated"] is True


def test_an_older_record_is_filed_under_unknown() -> None:
    assert restore_usage(OLD) == {
        "inputTokens": 10,
        "outputTokens": 5,
        "totalTokens": 15,
        "modelCalls": 0,
        "estimated": False,
        "byModel": {"unknown": {"inputTokens": 10, "outputTokens": 5, "calls": 0}},
        "promptTokens": 10,
        "completionTokens": 5,
    }
    total = add(OLD)
    assert total["totalTokens"] == 30
    assert set(total["byModel"]) == {"unknown", "m"}
    assert "costUsd" not in total


def test_a_full_record_is_restored_as_it_is() -> None:
    full = add(empty_usage()) | {"delegated": {"runs": 1}, "own": 1}
    assert restore_usage(full) == full
    assert restore_usage(full) is not full
    assert add(full)["delegated"] == {"runs": 1}


@pytest.mark.parametrize("nothing", [None, {}])
def test_nothing_stored_is_nothing_used(nothing: Any) -> None:
    assert restore_usage(nothing) == empty_usage()


@pytest.mark.parametrize(
    "odd",
    [
        5,
        {"promptTokens": "x"},
        {"inputTokens": None, "byModel": None},
        {"inputTokens": 1, "byModel": {"m": 5}, "costUsd": "x"},
        {"byModel": {}, "modelCalls": True},
        {"byModel": {}, "costUsd": 10**400, "inputTokens": float("nan")},
    ],
)
def test_odd_records_are_counted_on(odd: Any) -> None:
    assert add(odd)["byModel"]["m"]["calls"] == 1


def test_a_step_has_its_own_counts() -> None:
    assert step_usage_entry(
        1, "m", CALL | {"reasoningTokens": 2}, estimated=False, cost_usd=0.5
    ) == {
        "step": 1,
        "model": "m",
        "usage": {
            "inputTokens": 10,
            "outputTokens": 5,
            "totalTokens": 15,
            "reasoningTokens": 2,
        },
        "estimated": False,
        "costUsd": 0.5,
    }
    assert "costUsd" not in step_usage_entry(1, "m", None, estimated=True, cost_usd=None)
