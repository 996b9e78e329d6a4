"""The documented format's own inputs and outputs: every vector, every section."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint_bridge import (
    Checkpoint,
    Message,
    compare_trajectories,
    fingerprint,
    new_session_messages,
    normalize_arguments,
    split_pending_turn,
    with_tool_result,
)
from perdure.checkpoint_bridge.errors import ConfigurationError

VECTORS = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text("utf-8"))


def cases(section: str) -> pytest.MarkDecorator:
    numbered = [pytest.param(case, id=str(n)) for n, case in enumerate(VECTORS[section])]
    return pytest.mark.parametrize("case", numbered)


def models(value: Any) -> Any:
    """The same input as models instead of plain JSON."""
    if isinstance(value, dict):
        return Checkpoint.from_json(value)
    if isinstance(value, list):
        return [Message.from_json(message) for message in value]
    return value


def test_no_section_is_without_a_test() -> None:
    assert set(VECTORS) == {
        "compare_trajectories",
        "fingerprint",
        "new_session_messages",
        "normalize_args",
        "split_pending_turn",
        "with_tool_result",
    }


@cases("normalize_args")
def test_normalize_arguments(case: dict[str, Any]) -> None:
    assert normalize_arguments(case["raw"]) == case["expected"]


@cases("compare_trajectories")
def test_compare_trajectories(case: dict[str, Any]) -> None:
    given = copy.deepcopy(case)
    assert compare_trajectories(case["a"], case["b"]).to_json() == case["expected"]
    assert compare_trajectories(models(case["a"]), models(case["b"])).to_json() == case["expected"]
    assert case == given


@cases("split_pending_turn")
def test_split_pending_turn(case: dict[str, Any]) -> None:
    given = copy.deepcopy(case)
    assert split_pending_turn(case["messages"]).to_json() == case["expected"]
    assert split_pending_turn(models(case["messages"])).to_json() == case["expected"]
    assert case == given


@cases("new_session_messages")
def test_new_session_messages(case: dict[str, Any]) -> None:
    given = copy.deepcopy(case)
    stored, incoming, finished = case["stored"], case["input"], case["finished"]
    assert new_session_messages(stored, incoming, finished) == case["expected"]
    assert new_session_messages(models(stored), models(incoming), finished) == case["expected"]
    assert case == given


@cases("with_tool_result")
def test_with_tool_result(case: dict[str, Any]) -> None:
    given = copy.deepcopy(case)
    for messages in (case["messages"], models(case["messages"])):
        if "error" in case:
            with pytest.raises(ConfigurationError) as caught:
                with_tool_result(messages, case["toolCallId"], case["result"])
            assert (caught.value.code, str(caught.value)) == (case["error"], case["message"])
            assert caught.value.field == "patch.toolResult"
        else:
            patched = with_tool_result(messages, case["toolCallId"], case["result"])
            assert patched == case["expected"]
    assert case == given


@cases("fingerprint")
def test_fingerprint(case: dict[str, Any]) -> None:
    agent = case["input"]
    made = fingerprint(agent.get("model"), agent["tools"], agent["prompt"])
    assert made.to_json() == case["expected"]
