"""What a fork changes, in the documented order."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from perdure.checkpoint_bridge import (
    UNSET,
    Checkpoint,
    ForkPatch,
    Message,
    apply_patch,
    split_pending_turn,
)
from perdure.checkpoint_bridge.errors import ConfigurationError

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
SOURCE: dict[str, Any] = {
    "agentId": "trip",
    "sessionId": "s",
    "stepIndex": 1,
    "messages": [
        {"role": "user", "content": "Plan"},
        {"role": "assistant", "content": "", "toolCalls": [CALL]},
    ],
    "usage": {"totalTokens": 3},
    "status": "awaiting-approval",
    "approvalId": "a1",
    "own": [1],
}
RESULT = {
    "role": "tool",
    "content": '{"forecast":"rain"}',
    "name": "weather",
    "toolCallId": "c1",
    "toolName": "weather",
}


@pytest.fixture(autouse=True)
def _source_is_never_changed():
    before = copy.deepcopy(SOURCE)
    yield
    assert before == SOURCE


def test_a_fork_is_unfinished_and_asks_again() -> None:
    expected = {key: value for key, value in SOURCE.items() if key != "approvalId"}
    expected |= {"sessionId": "s.fork-1", "status": "in-progress"}
    for source in (SOURCE, Checkpoint.from_json(SOURCE)):
        forked = apply_patch(source, session_id="s.fork-1")
        assert forked == expected
        assert list(forked)[:2] == ["agentId", "sessionId"]
    forked["messages"].append({})
    assert apply_patch(SOURCE, ForkPatch())["sessionId"] == "s"


def test_the_patch_is_applied_in_order() -> None:
    def rewrite(messages: list[Any]) -> list[Any]:
        messages[0]["content"] = "Plan a picnic"
        return [Message(role="user", content="First"), *messages]

    patch = ForkPatch(
        append_input="It will rain",
        tool_result=("c1", {"forecast": "rain"}),
        business_state={"a": 1},
        messages=rewrite,
    )
    forked = apply_patch(SOURCE, patch)
    assert forked["messages"] == [
        {"role": "user", "content": "First"},
        {"role": "user", "content": "Plan a picnic"},
        SOURCE["messages"][1],
        RESULT,
        {"role": "user", "content": "It will rain"},
    ]
    assert forked["businessState"] == {"a": 1}


def test_input_queues_behind_the_pending_calls() -> None:
    forked = apply_patch(SOURCE, ForkPatch(append_input="Hurry"))
    split = split_pending_turn(forked["messages"])
    assert split.pending_tool_calls == [CALL]
    assert split.queued_input == [{"role": "user", "content": "Hurry"}]


def test_a_result_is_replaced_in_place() -> None:
    old = RESULT | {"content": "1", "isError": True}
    source = SOURCE | {"messages": [*SOURCE["messages"], old, {"role": "user", "content": "x"}]}
    patch = ForkPatch(tool_result={"toolCallId": "c1", "result": {"forecast": "rain"}})
    assert apply_patch(source, patch)["messages"][2:] == [RESULT, {"role": "user", "content": "x"}]


def test_the_state_is_kept_replaced_or_cleared() -> None:
    source = SOURCE | {"businessState": {"a": 1}}
    assert apply_patch(source, ForkPatch())["businessState"] == {"a": 1}
    assert apply_patch(source, ForkPatch(business_state=None))["businessState"] is None
    assert "businessState" not in apply_patch(SOURCE, ForkPatch(business_state=UNSET))


@pytest.mark.parametrize(
    ("patch", "field", "message"),
    [
        (
            ForkPatch(tool_result=("nope", 1)),
            "patch.toolResult",
            "fork: the kept transcript has no tool call 'nope'.",
        ),
        (
            ForkPatch(messages=lambda messages: messages[:1], tool_result=("c1", 1)),
            "patch.toolResult",
            "fork: the kept transcript has no tool call 'c1'.",
        ),
        (ForkPatch(tool_result=5), "patch.toolResult", "a pair"),  # type: ignore[arg-type]
        (ForkPatch(tool_result=(5, 1)), "patch.toolResult", "a pair"),  # type: ignore[arg-type]
        (ForkPatch(messages=lambda _: None), "patch.messages", "NoneType"),  # type: ignore[arg-type,return-value]
        (ForkPatch(messages=lambda _: ["x"]), "patch.messages", "a list of messages"),
        (ForkPatch(append_input=5), "patch.appendInput", "not int"),  # type: ignore[arg-type]
    ],
)
def test_a_patch_that_does_not_fit(patch: ForkPatch, field: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        apply_patch(SOURCE, patch)
    assert caught.value.field == field
    assert caught.value.code == "LOUSHO_CONFIG_INVALID"


def test_an_empty_record_can_be_forked() -> None:
    assert apply_patch({}, ForkPatch(append_input="x"), session_id="f") == {
        "messages": [{"role": "user", "content": "x"}],
        "sessionId": "f",
        "status": "in-progress",
    }
