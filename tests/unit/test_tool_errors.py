"""What the model reads of a call that failed."""

from __future__ import annotations

import pytest

from perdure.checkpoint_bridge import tool_error_result
from perdure.checkpoint_bridge.format.tool_errors import (
    ABORTED_MESSAGE,
    NOT_REACHED_MESSAGE,
    not_found_message,
)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("execution", "Error"),
        ("validation", "ToolArgumentsValidationError"),
        ("not-found", "ToolNotFoundError"),
        ("rejected", "ToolRejectedError"),
        ("not-run", "ToolNotRunError"),
        ("mcp", "McpToolError"),
        ("sandbox", "SandboxRequiredError"),
        ("of-tomorrow", "Error"),
    ],
)
def test_each_kind_has_its_error(kind: str, error: str) -> None:
    result = tool_error_result(kind, "t")
    assert (result["kind"], result["error"], result["toolName"]) == (kind, error, "t")
    assert result["message"]


def test_the_order_of_the_keys_is_the_formats() -> None:
    result = tool_error_result("validation", "t", "bad", tool_call_id="c", issues=[1], note=None)
    assert list(result.items()) == [
        ("error", "ToolArgumentsValidationError"),
        ("toolName", "t"),
        ("message", "bad"),
        ("kind", "validation"),
        ("toolCallId", "c"),
        ("issues", [1]),
    ]


def test_an_exception_gives_its_class_and_its_message() -> None:
    result = tool_error_result("execution", "t", error=ValueError("no such city"))
    assert (result["error"], result["message"]) == ("ValueError", "no such city")
    assert tool_error_result("execution", "t", "said", error=ValueError("x"))["message"] == "said"
    assert tool_error_result("execution", "t", error="HttpError")["error"] == "HttpError"
    assert tool_error_result("execution", "t", error=ValueError())["message"]


def test_an_exception_that_cannot_be_printed_is_named() -> None:
    class Broken(Exception):  # noqa: N818 - as a user may name it
        def __str__(self) -> str:
            raise RuntimeError

    assert tool_error_result("execution", "t", error=Broken())["error"] == "Broken"


def test_a_long_message_is_cut() -> None:
    assert tool_error_result("execution", "t", "x" * 2000)["message"] == "x" * 2000
    cut = tool_error_result("execution", "t", error=ValueError("x" * 2001))["message"]
    assert cut == "x" * 2000 + "... (truncated)"


def test_the_messages_of_the_format() -> None:
    assert tool_error_result("rejected", "t", note="too much") == {
        "error": "ToolRejectedError",
        "toolName": "t",
        "message": "Tool execution was rejected by the reviewer",
        "kind": "rejected",
        "note": "too much",
    }
    assert tool_error_result("not-run", "t")["message"] == ABORTED_MESSAGE
    assert ABORTED_MESSAGE == "Tool call was cancelled before it ran because the run was aborted"
    assert "paused before reaching it" in NOT_REACHED_MESSAGE
    assert "'x'" in not_found_message("x", ["a", "b"])
    assert "a, b" in not_found_message("x", ["a", "b"])
    assert "none" in not_found_message("x", [])
