"""The result of a call that failed (format page, "Tool error object")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = [
    "ABORTED_MESSAGE",
    "CANCELLED",
    "EXECUTION",
    "INVALID_OUTPUT",
    "MCP",
    "NOT_FOUND",
    "NOT_REACHED_MESSAGE",
    "NOT_RUN",
    "NOT_STARTED",
    "REJECTED",
    "REJECTED_MESSAGE",
    "SANDBOX",
    "TIMEOUT",
    "UNKNOWN_OUTCOME",
    "VALIDATION",
    "not_found_message",
    "tool_error_result",
]

EXECUTION: Final = "execution"
"""The tool raised."""
VALIDATION: Final = "validation"
"""The arguments do not parse or validate; nothing ran. Extra: ``issues``."""
NOT_FOUND: Final = "not-found"
"""The agent has no tool of this name."""
REJECTED: Final = "rejected"
"""A reviewer said no. Extra: ``note`` when one was given."""
NOT_RUN: Final = "not-run"
"""The call was cancelled, or the run never reached it."""
MCP: Final = "mcp"
"""A tool of an MCP server failed."""
SANDBOX: Final = "sandbox"
"""The tool needs a sandbox that is not there."""
INVALID_OUTPUT: Final = "invalid-output"
"""Ours: the tool returned what JSON cannot hold; it has run."""
TIMEOUT: Final = "timeout"
"""Ours: the tool's own deadline passed."""
UNKNOWN_OUTCOME: Final = "unknown-outcome"
"""Ours: the effect may have happened, and nobody can tell."""
NOT_STARTED: Final = "not-started"
"""Ours: the call provably never started."""
CANCELLED: Final = "cancelled"
"""Ours: the run was cancelled, and the call stopped; it may have had effects before."""

_DEFAULT_ERRORS: Final = {
    EXECUTION: "Error",
    VALIDATION: "ToolArgumentsValidationError",
    NOT_FOUND: "ToolNotFoundError",
    REJECTED: "ToolRejectedError",
    NOT_RUN: "ToolNotRunError",
    MCP: "McpToolError",
    SANDBOX: "SandboxRequiredError",
    INVALID_OUTPUT: "ToolInvalidOutputError",
    TIMEOUT: "ToolTimeoutError",
    UNKNOWN_OUTCOME: "ToolUnknownOutcomeError",
    NOT_STARTED: "ToolNotStartedError",
    CANCELLED: "ToolCancelledError",
}

REJECTED_MESSAGE: Final = "Tool execution was rejected by the reviewer"
ABORTED_MESSAGE: Final = "Tool call was cancelled before it ran because the run was aborted"
NOT_REACHED_MESSAGE: Final = "Tool call was not run because the run paused before reaching it"
"""For the later calls of a snapshot that is too old to name them (no ``remainingToolCalls``)."""

_DEFAULT_MESSAGES: Final = {
    EXECUTION: "Tool execution failed",
    VALIDATION: "The arguments of the tool call are not valid",
    NOT_FOUND: "The tool does not exist",
    REJECTED: REJECTED_MESSAGE,
    NOT_RUN: ABORTED_MESSAGE,
    MCP: "The MCP server reported an error",
    SANDBOX: "The tool needs a sandbox",
    TIMEOUT: "The tool did not finish in time",
    UNKNOWN_OUTCOME: "The tool was interrupted; its effect may have happened",
    NOT_STARTED: "The tool call never started",
    CANCELLED: "The call was cancelled while it ran; it may have had effects",
}

MAX_MESSAGE: Final = 2000
TRUNCATED: Final = "... (truncated)"


def tool_error_result(
    kind: str,
    tool_name: str,
    message: str | None = None,
    *,
    error: BaseException | str | None = None,
    tool_call_id: str | None = None,
    **extras: Any,
) -> JsonObject:
    """Make the error object that the model reads as the call's result.

    ``error`` is the exception, or its class name; without one the kind's default stands. Without
    a ``message`` the exception's own is taken, else the kind's default. A message is at most
    2,000 characters and never a stack. Extras that are ``None`` are left out.
    """
    if isinstance(error, BaseException):
        name = type(error).__name__
        text = _text_of_error(error) if message is None else message
    else:
        name = error or _DEFAULT_ERRORS.get(kind, "Error")
        text = message or ""
    text = text or _DEFAULT_MESSAGES.get(kind, name)
    if len(text) > MAX_MESSAGE:
        text = text[:MAX_MESSAGE] + TRUNCATED
    result: JsonObject = {"error": name, "toolName": tool_name, "message": text, "kind": kind}
    if tool_call_id is not None:
        result["toolCallId"] = tool_call_id
    result.update({key: value for key, value in extras.items() if value is not None})
    return result


def _text_of_error(error: BaseException) -> str:
    """An exception's own message; one that cannot even be printed has none."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the tool's own class can do anything here
        return ""


def not_found_message(tool_name: str, available: list[str]) -> str:
    """Name the tool that the model asked for and the tools that there are."""
    there_are = ", ".join(available) if available else "none"
    return f"Tool '{tool_name}' was not found. Available tools: {there_are}"
