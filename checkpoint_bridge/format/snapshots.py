"""Approval records of the TypeScript SDK: made from a paused checkpoint, and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format._record import member, plain, plain_list
from perdure.checkpoint_bridge.format.checkpoint import ExecutionSnapshot, PendingApproval
from perdure.checkpoint_bridge.format.stable_json import copy_json, parse_json
from perdure.checkpoint_bridge.format.transcript import calls_of
from perdure.checkpoint_bridge.stores.stored import StoredApproval

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = ["around", "last_calls", "stored_approval"]


def stored_approval(
    record: JsonObject, pending: JsonObject, call_index: int
) -> StoredApproval | None:
    """The documented record of a pause (format page, *Approval records*).

    Args:
        record: the checkpoint that was saved at the pause.
        pending: the PendingApproval; large arguments may be missing from it.
        call_index: which call of the last turn waits.

    Returns:
        ``None`` when the checkpoint does not have the call.
    """
    snapshot = _snapshot(record, call_index)
    if snapshot is None:
        return None
    if "args" not in pending:
        pending = {**pending, "args": _arguments(snapshot["pendingToolCall"])}
    return StoredApproval(
        PendingApproval.from_json(copy_json(pending)),
        ExecutionSnapshot.from_json(copy_json(snapshot)),
    )


def around(record: JsonObject, inner: StoredApproval, call_index: int) -> StoredApproval | None:
    """A sub-agent's pause as the run above it has it: its snapshot, with the other one in it.

    Args:
        record: the checkpoint of the run above.
        inner: the pause of the sub-agent.
        call_index: which call of the last turn runs the sub-agent.
    """
    snapshot = _snapshot(record, call_index)
    if snapshot is None:
        return None
    call = snapshot["pendingToolCall"]
    below = plain(inner.snapshot)
    snapshot["subagent"] = {
        "toolCallId": member(call, "id"),
        "toolName": member(member(call, "function"), "name"),
        "args": _arguments(call),
        "agentName": below.get("agent", ""),
        "snapshot": below,
    }
    return StoredApproval(inner.pending, ExecutionSnapshot.from_json(copy_json(snapshot)))


def _snapshot(record: JsonObject, call_index: int) -> dict[str, Any] | None:
    calls = last_calls(record)
    if call_index >= len(calls):
        return None
    call = calls[call_index]
    snapshot: dict[str, Any] = {
        "agent": record.get("agentId", ""),
        "currentMessages": record.get("messages", []),
        "pendingToolCall": call,
        "steps": record.get("stepIndex", 0),
        "sessionId": record.get("sessionId"),
        "remainingToolCalls": calls[call_index + 1 :],
    }
    for key in ("usage", "agentFingerprint"):
        if key in record:
            snapshot[key] = record[key]
    return snapshot


def last_calls(record: JsonObject) -> list[Any]:
    """The calls of a checkpoint's last turn."""
    for message in reversed(plain_list(record.get("messages"))):
        if member(message, "role") == "assistant":
            return calls_of(message)
    return []


def _arguments(call: Any) -> Any:
    raw = member(member(call, "function"), "arguments")
    try:
        return parse_json(raw) if isinstance(raw, str) and raw.strip() else {}
    except ValueError:
        return raw
