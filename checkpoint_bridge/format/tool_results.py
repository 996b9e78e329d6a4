"""Tool messages: the one result of a call, also where the tool did not give it itself."""

from __future__ import annotations

import json
from typing import Any

from perdure.checkpoint_bridge.format.stable_json import well_formed
from perdure.checkpoint_bridge.format.tool_errors import (
    CANCELLED,
    EXECUTION,
    REJECTED,
    UNKNOWN_OUTCOME,
    tool_error_result,
)
from perdure.checkpoint_bridge.format.transcript import tool_message

__all__ = [
    "TOOL_CANCELLED",
    "TOOL_NOT_STARTED",
    "TOOL_OUTCOME_UNKNOWN",
    "cancelled_call",
    "child_result",
    "decided_result",
    "error_result",
    "result",
    "result_text",
    "unknown_outcome",
]

TOOL_NOT_STARTED = "TOOL_NOT_STARTED"
"""Code of a call that provably never ran: calling it again is safe."""
TOOL_OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
"""Code of a call that may have had its effect."""
TOOL_CANCELLED = "TOOL_CANCELLED"
"""Code of a call that stopped because its run was cancelled; it may have had effects before."""


def result_text(value: Any) -> str:
    """A tool message's content: the JSON text of a result, no spaces, non-ASCII unescaped.

    Integers keep all their digits, unlike where the format compares values as JavaScript does.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if well_formed(text) == text:
        return text
    # A lone surrogate cannot be stored as UTF-8; escaped it can.
    return json.dumps(value, separators=(",", ":"))


def result(call_id: str, tool: str, value: Any) -> dict[str, Any]:
    """The message of a call that gave ``value`` (plain JSON)."""
    return tool_message(_call(call_id, tool), result_text(value))


def error_result(call_id: str, tool: str, error: dict[str, Any]) -> dict[str, Any]:
    """The message of a call that failed with an error object (format page, *Tool error object*)."""
    content = result_text({**error, "toolCallId": call_id})
    return tool_message(_call(call_id, tool), content, is_error=True)


def unknown_outcome(
    tool: str, cause: BaseException | None = None, note: str | None = None
) -> dict[str, Any]:
    """The error object of a call that may have had its effect."""
    why = f" ({type(cause).__name__})" if cause else ""
    text = (
        f"The outcome of this call is unknown{why}: it may have happened. "
        "Check before you call it again."
    )
    return tool_error_result(UNKNOWN_OUTCOME, tool, text, note=note, code=TOOL_OUTCOME_UNKNOWN)


def cancelled_call(tool: str) -> dict[str, Any]:
    """The error object of a call that was stopped, and whose function has ended."""
    text = (
        "The call was cancelled while it ran; it may have had effects. "
        "Check before you call it again."
    )
    return tool_error_result(CANCELLED, tool, text, code=TOOL_CANCELLED)


def decided_result(
    call_id: str, tool: str, decision: dict[str, Any], reason: str | None
) -> dict[str, Any] | None:
    """What a decision makes of a call: its message, or ``None`` when the call is to run.

    Args:
        call_id: the model's id of the call.
        tool: the tool's name.
        decision: ``{approved, note?, result?}``.
        reason: why a person was asked: ``None`` for the tool's gate, else ``unknown-outcome``.
    """
    if "result" in decision:
        return result(call_id, tool, decision["result"])
    if decision["approved"]:
        return None
    note = decision.get("note")
    if reason == UNKNOWN_OUTCOME:
        return error_result(call_id, tool, unknown_outcome(tool, note=note))
    return error_result(call_id, tool, tool_error_result(REJECTED, tool, note=note))


def child_result(
    call_id: str, tool: str, agent: str, finish_reason: str, text: str
) -> dict[str, Any]:
    """The message of a call that an agent answered: its text, or that it had none to give."""
    if finish_reason == "max-steps":
        message = f"The agent {agent} used up its steps without an answer."
    elif not text and finish_reason != "stop":
        message = f"The agent {agent} gave no answer ({finish_reason})."
    else:
        return result(call_id, tool, text)
    error = tool_error_result(EXECUTION, tool, message, error="SubagentAnswerError")
    return error_result(call_id, tool, error)


def _call(call_id: str, tool: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": tool}}
