"""What a run tells the person who looks at it in the Temporal UI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.activities.wire import CallPlan, RunFacts

_SHOWN_ARGUMENTS = 500
_SHOWN_TEXT = 500


def details(
    workflow_id: str, facts: RunFacts, waiting: CallPlan | None, *, finish_reason: str, text: str
) -> str:
    """Markdown for the run's current details: its state, and how to decide when it waits.

    It is kept small, since the UI puts it into a URL, which logs may keep; so a run whose payloads
    are encrypted shows no content here.
    """
    lines = [
        f"**{_status(waiting, finish_reason)}** at step {facts.step} of at most {facts.max_steps}",
        "",
        f"Tokens: {facts.input_tokens:,} in, {facts.output_tokens:,} out",
    ]
    if waiting is not None:
        lines += _decision(workflow_id, waiting, private=facts.private)
    elif text and not facts.private:
        lines += ["", "Last answer:", "", _block(text[:_SHOWN_TEXT])]
    # The UI takes {namespace} and {workflowId} in braces for its own; none of these is ours.
    return "\n".join(lines)


def _status(waiting: CallPlan | None, finish_reason: str) -> str:
    if finish_reason:
        return f"Finished ({finish_reason})"
    return "Running" if waiting is None else f"Waits for approval of {waiting.tool}"


def _decision(workflow_id: str, waiting: CallPlan, *, private: bool) -> list[str]:
    arguments = waiting.arguments
    shown = "(large: see `perdure approvals`)" if arguments is None else arguments
    if private:
        shown = "(encrypted: see `perdure approvals`)"
    approve = json.dumps({"id": waiting.approval_id, "approved": True})
    reject = json.dumps({"id": waiting.approval_id, "approved": False, "note": "why"})
    return [
        "",
        "Arguments:",
        "",
        _block(shown[:_SHOWN_ARGUMENTS]),
        "",
        "Send the signal `resolve_approval` with one of:",
        "",
        _block(f"{approve}\n{reject}"),
        "",
        "or run:",
        "",
        _block(
            f"perdure approve {waiting.approval_id}\n"
            f"temporal workflow signal --workflow-id {workflow_id} "
            f"--name resolve_approval --input '{approve}'"
        ),
    ]


def _block(text: str) -> str:
    """Code, whatever the text holds: an indented block ends only where the indentation does."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
