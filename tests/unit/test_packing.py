"""Values that cross between workflows and activities, packed and read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.activities.packing import packed, unpacked
from perdure.activities.wire import (
    CallPlan,
    Content,
    ModelTurn,
    RunFacts,
    ToolOutcome,
    ToolPolicy,
)


@pytest.mark.parametrize(
    "value",
    [
        ToolOutcome(),
        ToolOutcome(content=Content(ref="d", size=3, preview="a"), is_error=True, head=7),
        ModelTurn(
            content=Content(message={"role": "assistant", "toolCalls": []}),
            model="m",
            head=4,
            call_seq=3,
            calls=[CallPlan(0), CallPlan(1, action="refuse", result=Content(message={"a": None}))],
            usage={"inputTokens": 1},
            finish_reason="stop",
        ),
        RunFacts(
            log_id=1,
            head=2,
            turn=1,
            step=0,
            max_steps=9,
            tool_concurrency=0,
            tools={"pay": ToolPolicy(timeout=60.0), "look": ToolPolicy(1.5, local=True)},
        ),
    ],
)
def test_what_is_packed_is_read_again(value: Any) -> None:
    assert unpacked(type(value), json.loads(json.dumps(packed(value)))) == value


def test_defaults_are_left_out() -> None:
    assert packed(ToolOutcome()) == {}
    assert packed(CallPlan(0, announced=True)) == {"index": 0, "announced": True}


def test_a_value_with_all_its_fields_is_read() -> None:
    """As Temporal's own converter has written it."""
    given = {"content": {"message": None, "ref": "d", "size": 2}, "is_error": False, "head": None}
    assert unpacked(ToolOutcome, given) == ToolOutcome(content=Content(ref="d", size=2))


def test_what_a_newer_version_adds_is_left_out() -> None:
    assert unpacked(ToolOutcome, {"uncertain": True, "more": 1}) == ToolOutcome(uncertain=True)
