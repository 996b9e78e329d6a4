"""Transcript rules beyond the vectors: odd ids, repeated ids, and what a provider refuses."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.checkpoint_bridge import (
    Message,
    ToolCall,
    assert_valid,
    new_session_messages,
    split_pending_turn,
    text_of,
    with_tool_result,
)
from perdure.checkpoint_bridge.format.stable_json import parse_json
from perdure.checkpoint_bridge.format.transcript import INJECTED_BY, tool_message

SYSTEM = {"role": "system", "content": "p"}
USER = {"role": "user", "content": "hi"}
DEEP = parse_json("[" * 50_000 + "]" * 50_000)


def call(call_id: Any, name: str = "t") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def turn(*ids: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "toolCalls": [call(one) for one in ids]}


def result(call_id: Any, content: str = "1") -> dict[str, Any]:
    return tool_message(call(call_id), content)


def test_a_tool_message_names_the_tool_twice() -> None:
    assert tool_message(ToolCall.of("c", "t", "{}"), "null") == {
        "role": "tool",
        "content": "null",
        "name": "t",
        "toolCallId": "c",
        "toolName": "t",
    }
    assert tool_message(call("c"), "{}", is_error=True)["isError"] is True


def test_the_text_of_a_message_is_its_text_parts() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image", "image": "x"},
        {"type": "text"},
        {"type": "text", "text": 5},
        "odd",
        {"type": "text", "text": "b"},
    ]
    assert text_of({"role": "user", "content": parts}) == "ab"
    assert text_of(Message(role="user", content=parts)) == "ab"
    assert text_of({"role": "user"}) == text_of({"content": None}) == ""


def test_without_a_turn_nothing_is_pending() -> None:
    assert split_pending_turn([SYSTEM, USER]).to_json() == {
        "messages": [SYSTEM, USER],
        "pendingToolCalls": [],
        "queuedInput": [],
    }
    assert split_pending_turn([]).messages == []


def test_results_are_in_call_order_and_input_waits() -> None:
    split = split_pending_turn([turn("a", "b", "c"), USER, result("c"), result("a")])
    assert split.messages == [turn("a", "b", "c"), result("a"), result("c")]
    assert split.pending_tool_calls == [call("b")]
    assert split.queued_input == [USER]


def test_calls_of_one_id_get_their_results_in_order() -> None:
    one, two, three = result("x", "1"), result("x", "2"), result("x", "3")
    assert split_pending_turn([turn("x", "x"), one]).pending_tool_calls == [call("x")]
    assert split_pending_turn([turn("x", "x"), one, two]).messages[1:] == [one, two]
    assert split_pending_turn([turn("x"), one, two, three]).messages[1:] == [three]


def test_an_odd_id_is_no_string() -> None:
    split = split_pending_turn([turn(1, None, ["a"]), result("1"), result(["a"])])
    assert split.pending_tool_calls == [call(1), call(None)]
    assert split.queued_input == [result("1")]


def test_patching_a_repeated_id_means_its_last_turn() -> None:
    messages = [turn("x"), result("x", "1"), USER, turn("x")]
    assert with_tool_result(messages, "x", 5) == [*messages, result("x", "5")]
    messages.append(result("x", "2"))
    assert with_tool_result(messages, "x", 5) == [*messages[:-1], result("x", "5")]


def test_the_same_message_with_parts_in_another_order_of_keys_is_the_same() -> None:
    stored = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    again: dict[str, Any] = {"content": [{"text": "a", "type": "text"}], "role": "user", "x": 1}
    assert new_session_messages(stored, [again, USER], finished=True) == [USER]


def test_an_error_of_the_provider_is_no_user_turn() -> None:
    note = {"role": "user", "content": "[provider-error] {}"}
    stored = [USER, turn(), {"role": "user", "content": "b"}, note]
    again = [{"role": "user", "content": "b"}]
    assert new_session_messages(stored, "b", finished=False) == []
    assert new_session_messages(stored, again, finished=True) == again
    assert new_session_messages(stored, "[provider-error] {}", finished=False) == [note]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [SYSTEM, USER],
        [USER, turn("a", "b"), result("a"), result("b"), USER],
        [turn("a"), result("a"), turn("a"), result("a")],
        [turn()],
    ],
)
def test_a_valid_transcript(messages: list[dict[str, Any]]) -> None:
    assert_valid(messages)
    assert_valid([Message.from_json(message) for message in messages])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([turn("a")], "call 'a' has no result"),
        ([turn("a", "b"), result("a")], "call 'b' has no result"),
        ([turn("a"), USER, result("a")], "message 1: a 'user' message stands before"),
        ([turn("a"), turn("b")], "message 1: a 'assistant' message stands before"),
        ([turn("a", "b"), result("b")], "message 1: the result of 'b' stands where 'a' is due"),
        ([result("a")], "message 0: the result of 'a' answers no call"),
        ([turn("a"), result("a"), result("a")], "message 2: the result of 'a' answers no call"),
        ([turn("a", "a")], "message 0: two calls have the id 'a'"),
        ([turn("")], "message 0: a call's id is '', not"),
        ([turn(None)], "message 0: a call's id is null, not"),
        ([turn(7)], "message 0: a call's id is 7, not"),
        ([turn(DEEP)], "message 0: a call's id is"),
        ([{"role": DEEP}], "message 0: the role"),
        ([{"role": "function"}], "message 0: the role 'function' is unknown"),
        ([{}], "message 0: the role null is unknown"),
        ([None], "message 0: the role null is unknown"),
    ],
)
def test_what_a_provider_refuses(messages: list[Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        assert_valid(messages)


def test_f40_what_a_hook_put_there_is_no_input() -> None:
    memory: dict[str, Any] = {
        "role": "user",
        "content": "[Memory] x",
        "metadata": {INJECTED_BY: "memory"},
    }
    stored: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        memory,
    ]
    following = {"role": "user", "content": "next"}
    for again in (stored[:2], stored, [*stored[:2], {**memory, "metadata": {}}]):
        assert new_session_messages(stored, [*again, following], finished=True) == [following]
    assert new_session_messages(stored, "next", finished=True) == [following]
    asked = [*stored, following]
    assert new_session_messages([*asked, memory], "next", finished=False) == []
