"""What a run tells the person who looks at it in the Temporal UI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.activities.wire import CallPlan, Report, RunFacts

_SHOWN_ARGUMENTS = 500
_SHOWN_TEXT = 500


def details(
    workflow_id: str,
    facts: RunFacts,
    waiting: CallPlan | None,
    below: Collection[Report] = (),
    *,
    problem: str = "",
    finish_reason: str,
    text: str,
) -> str:
    """Markdown for the run's current details: its state, and how to decide when it waits.

    It is kept small, since the UI puts it into a URL, which logs may keep; so a run whose payloads
    are encrypted shows no content here.
    """
    status = _status(waiting, below, finish_reason)
    lines = [
        f"**{status}** at step {facts.step} of at most {facts.max_steps}",
        "",
        f"Tokens: {facts.input_tokens:,} in, {facts.output_tokens:,} out",
    ]
    if problem and not facts.private:
        lines += ["", "The last decision was not taken:", "", _block(problem[:_SHOWN_TEXT])]
    if waiting is not None:
        arguments = waiting.arguments
        lines += _decision(workflow_id, waiting.approval_id or "", arguments, private=facts.private)
    elif below:
        for report in below:
            lines += ["", f"{' > '.join(report.path)} asks for approval of {report.tool_name}."]
            lines += _decision(workflow_id, report.id, report.arguments, private=facts.private)
    elif text and not facts.private:
        lines += ["", "Last answer:", "", _block(text[:_SHOWN_TEXT])]
    # The UI takes {namespace} and {workflowId} in braces for its own; none of these is ours.
    return "\n".join(lines)


def _status(waiting: CallPlan | None, below: Collection[Report], finish_reason: str) -> str:
    if finish_reason:
        return f"Finished ({finish_reason})"
    if waiting is not None:
        return f"Waits for approval of {waiting.tool}"
    return f"Waits for {len(below)} of a sub-agent's calls" if below else "Running"


def _decision(
    workflow_id: str, approval_id: str, arguments: str | None, *, private: bool
) -> list[str]:
    shown = "(large: see `perdure approvals`)" if arguments is None else arguments
    if private:
        shown = "(encrypted: see `perdure approvals`)"
    approve = json.dumps({"id": approval_id, "approved": True})
    reject = json.dumps({"id": approval_id, "approved": False, "note": "why"})
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
            f"perdure approve {approval_id}\n"
            f"temporal workflow signal --workflow-id {workflow_id} "
            f"--name resolve_approval --input '{approve}'"
        ),
    ]


def _block(text: str) -> str:
    """Code, whatever the text holds: an indented block ends only where the indentation does."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
