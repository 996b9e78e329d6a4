"""Records come back from loading and saving as they were."""

from __future__ import annotations

import copy
import json
import pickle
import time
from typing import Any

import pytest

from perdure.checkpoint_bridge import (
    AgentFingerprint,
    ApprovalDecision,
    Checkpoint,
    ExecutionSnapshot,
    HistoryEntry,
    Message,
    PendingApproval,
    RunUsage,
    StepUsage,
    ToolCall,
    decode_bytes,
    encode_bytes,
    text_of,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}
FULL: dict[str, Any] = {
    "x-first": {"kept": True},
    "agentId": "trip",
    "sessionId": "s",
    "stepIndex": 2,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "x-own": 1},
        {
            "role": "assistant",
            "content": "",
            "toolCalls": [CALL],
            "reasoning": [{"text": "\ud800"}],
        },
        {
            "role": "tool",
            "content": "null",
            "name": "weather",
            "toolCallId": "c1",
            "toolName": "weather",
            "isError": True,
            "metadata": {"a": None},
        },
    ],
    "toolCalls": [CALL],
    "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3, "modelCalls": 1},
    "stepUsage": [{"step": 1, "model": "m", "usage": {"totalTokens": 3}, "estimated": False}],
    "finishReason": "awaiting-approval",
    "businessState": None,
    "status": "awaiting-approval",
    "approvalId": "a1",
    "agentFingerprint": {"version": 1, "hash": "h", "tools": {"weather": "w"}, "instructions": "i"},
    "runConfig": {"model": "m"},
    "x-last": [1.0, 2],
}
OLD: dict[str, Any] = {
    "agentId": "",
    "sessionId": "s",
    "stepIndex": 1,
    "messages": [],
    "toolCalls": [],
    "usage": {"promptTokens": 1, "completionTokens": 2, "totalTokens": 3},
}


@pytest.mark.parametrize("record", [FULL, OLD, {}], ids=["full", "older", "empty"])
def test_loading_and_saving_changes_nothing(record: dict[str, Any]) -> None:
    before = json.dumps(record)
    checkpoint = Checkpoint.from_json(record)
    assert json.dumps(checkpoint.to_json()) == before
    assert json.dumps(pickle.loads(pickle.dumps(checkpoint)).to_json()) == before
    assert json.dumps(copy.deepcopy(checkpoint).to_json()) == before


def test_what_is_given_out_is_a_copy() -> None:
    checkpoint = Checkpoint.from_json(copy.deepcopy(FULL))
    given = checkpoint.to_json()
    given["messages"][0]["content"][0]["text"] = "changed"
    assert checkpoint.to_json() == FULL


def test_a_full_record_is_read_by_attributes() -> None:
    checkpoint = Checkpoint.from_json(FULL)
    assert (checkpoint.agent_id, checkpoint.session_id, checkpoint.step_index) == ("trip", "s", 2)
    user, assistant, result = checkpoint.messages
    assert (user.role, user.text, text_of(user)) == ("user", "hi", "hi")
    [call] = assistant.tool_calls
    assert call == checkpoint.tool_calls[0]
    assert (call.id, call.type, call.name, call.arguments) == (
        "c1",
        "function",
        "weather",
        '{"a": 1}',
    )
    assert call == ToolCall.of("c1", "weather", '{"a": 1}')
    assert assistant.reasoning == [{"text": "\ud800"}]
    assert (result.tool_call_id, result.tool_name, result.name) == ("c1", "weather", "weather")
    assert result.is_error
    assert result.metadata == {"a": None}
    assert checkpoint.usage.total_tokens == 3
    assert checkpoint.usage.cost_usd is None
    assert checkpoint.step_usage[0].usage == {"totalTokens": 3}
    assert checkpoint.finish_reason == checkpoint.status == "awaiting-approval"
    assert checkpoint.approval_id == "a1"
    assert checkpoint.agent_fingerprint is not None
    assert checkpoint.agent_fingerprint.tools == {"weather": "w"}
    assert checkpoint.run_config == {"model": "m"}


def test_an_older_record_reads_as_unfinished() -> None:
    checkpoint = Checkpoint.from_json(OLD)
    assert checkpoint.status == "in-progress"
    assert checkpoint.step_usage == []
    assert checkpoint.agent_fingerprint is None
    assert checkpoint.usage.prompt_tokens == 1
    assert "status" not in checkpoint


def test_a_state_that_was_cleared_is_not_one_that_was_never_set() -> None:
    cleared, never = Checkpoint.from_json(FULL), Checkpoint.from_json(OLD)
    assert cleared.business_state is never.business_state is None
    assert cleared.has_business_state
    assert not never.has_business_state
    assert Checkpoint(business_state=None, approval_id=None).to_json() == {"businessState": None}


def test_a_changed_copy_leaves_the_record_alone() -> None:
    checkpoint = Checkpoint.from_json(FULL)
    changed = checkpoint.replace(
        status="finished", approval_id=None, messages=[Message(role="user", content="new")]
    )
    assert changed.to_json() == {
        key: value for key, value in FULL.items() if key != "approvalId"
    } | {"status": "finished", "messages": [{"role": "user", "content": "new"}]}
    assert checkpoint.to_json() == FULL
    with pytest.raises(AttributeError, match="read-only"):
        checkpoint.status = "finished"
    with pytest.raises(TypeError, match="no attribute 'state'"):
        checkpoint.replace(state=1)


def test_records_of_equal_json_are_equal() -> None:
    assert Message(role="user", content="a") == Message.from_json({"content": "a", "role": "user"})
    assert Message(role="user") != Message(role="user", content="a")
    assert Message() != ToolCall()
    assert repr(Message(role="user", tool_call_id="x")) == "Message(role='user', tool_call_id='x')"
    assert len(repr(Checkpoint.from_json(FULL | {"messages": FULL["messages"] * 1000}))) < 2000
    assert Message.from_json(Message(role="user")).role == "user"
    with pytest.raises(TypeError, match="Message is a JSON object, not list"):
        Message.from_json([])  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [None, 5, "text", [], {}, [None, 1, {}], {"a": 1}, True])
@pytest.mark.parametrize(
    "kind",
    [
        AgentFingerprint,
        ApprovalDecision,
        Checkpoint,
        ExecutionSnapshot,
        HistoryEntry,
        Message,
        PendingApproval,
        RunUsage,
        StepUsage,
        ToolCall,
    ],
)
def test_odd_values_raise_nowhere(kind: type[Checkpoint], odd: Any) -> None:
    names = [name for name in dir(kind) if not name.startswith("_")]
    keys = [field.key for field in kind._fields().values()]
    record = kind.from_json(dict.fromkeys(keys, odd))
    for name in names:
        getattr(record, name)
    assert record.to_json() == dict.fromkeys(keys, odd)
    for name in names:
        getattr(kind(), name, None)


def test_a_history_entry_holds_a_checkpoint() -> None:
    entry = HistoryEntry(
        step=1,
        saved_at="2026-01-01T00:00:00.000Z",
        status="finished",
        checkpoint=Checkpoint.from_json(OLD),
    )
    assert entry.to_json() == {
        "step": 1,
        "savedAt": "2026-01-01T00:00:00.000Z",
        "status": "finished",
        "checkpoint": OLD,
    }
    assert entry.checkpoint == Checkpoint.from_json(OLD)


def test_an_old_snapshot_does_not_know_the_remaining_calls() -> None:
    assert ExecutionSnapshot.from_json({}).remaining_tool_calls is None
    assert ExecutionSnapshot.from_json({"remainingToolCalls": []}).remaining_tool_calls == []
    assert ExecutionSnapshot.from_json({"pendingToolCall": CALL}).pending_tool_call.id == "c1"


def test_raw_bytes_go_both_ways() -> None:
    plain = {"image": b"\x00\xff", "parts": [{"data": bytearray(b"a")}, (b"",)], "n": None}
    stored = encode_bytes(plain)
    assert stored == {
        "image": {"$bytes": "AP8="},
        "parts": [{"data": {"$bytes": "YQ=="}}, [{"$bytes": ""}]],
        "n": None,
    }
    assert decode_bytes(stored) == {
        "image": b"\x00\xff",
        "parts": [{"data": b"a"}, [b""]],
        "n": None,
    }
    assert decode_bytes({"$bytes": "YQ=="}) == b"a"
    assert Message(content=[{"image": b"a"}]).content == [{"image": {"$bytes": "YQ=="}}]


@pytest.mark.parametrize(
    "value",
    [
        {"$bytes": "YQ==", "more": 1},
        {"$bytes": 1},
        {"$bytes": "YQ"},
        {"$bytes": "Y Q=="},
        {"$bytes": "YR=="},
        {"$bytes": "é"},
        {"$bytes": None},
    ],
)
def test_what_only_looks_like_bytes_stays(value: dict[str, Any]) -> None:
    assert decode_bytes([value]) == [value]


def test_a_long_conversation_is_cheap() -> None:
    messages = FULL["messages"] * 1700
    begin = time.process_time()
    checkpoint = Checkpoint.from_json({**FULL, "messages": messages})
    assert len(checkpoint.messages) == 5100
    checkpoint.to_json()
    assert time.process_time() - begin < 0.5
