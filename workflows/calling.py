"""``run_agent``: an agent as a step of a workflow of one's own."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from perdure.activities.wire import SIGNAL_RESOLVE, Delegation, RunOutcome
from perdure.workflows.child_run import run_child
from perdure.workflows.requests import read_report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.activities.wire import Report

    OnApproval = Callable[
        [Report], bool | dict[str, Any] | Awaitable[bool | dict[str, Any] | None] | None
    ]

_SUMMARY_LENGTH = 60


async def run_agent(
    agent: str,
    input: str | list[dict[str, Any]],  # noqa: A002 - the format's word
    *,
    session_id: str | None = None,
    metadata: dict[str, Any] | None = None,
    max_steps: int | None = None,
    task_queue: str | None = None,
    on_approval: OnApproval | None = None,
) -> RunOutcome:
    """Run an agent as a child workflow of the workflow that calls this, and wait for its end.

    The child is ended when this workflow is, and a cancel is passed on to it. Anyone can decide
    the approvals that it waits for, as with any run; ``on_approval`` hears of them.

    Args:
        agent: the name of an agent that a worker of the task queue serves.
        input: a text, or messages of the documented format.
        session_id: of the conversation; default: a new one. A session that exists goes on.
        metadata: a JSON object to record with the run.
        max_steps: model responses that the run may have; default: the agent's.
        task_queue: where the agent is served; default: this workflow's.
        on_approval: called with each pending approval (``id``, ``session_id``, ``tool_name``,
            ``arguments`` and more); what it returns decides: true or false, or
            ``{"approved": …, "note": …, "by": …}``; ``None`` leaves it to somebody else.

    Returns:
        How the run ended; ``text`` is its last answer, cut after 4 KiB (all of it is in the
        session).

    Raises:
        temporalio.exceptions.ChildWorkflowError: the run failed or was cancelled.
    """
    session_id = session_id or f"run-{workflow.uuid4().hex}"
    request: dict[str, Any] = {"agent": agent, "session_id": session_id, "input": input}
    if metadata is not None:
        request["metadata"] = metadata
    if max_steps is not None:
        request["max_steps"] = max_steps
    signal = f"approvals_of_{session_id}"
    if on_approval is not None:
        request["delegated"] = asdict(
            Delegation(report_to=workflow.info().workflow_id, report_as=signal)
        )
        workflow.set_signal_handler(signal, _Handler(on_approval).hear)
    try:
        outcome = await run_child(
            request,
            id=session_id,
            task_queue=task_queue,
            static_summary=f"{agent}: {session_id}"[:_SUMMARY_LENGTH],
        )
    except (FailureError, asyncio.CancelledError):
        # Not in a `finally`, which also runs where a worker forgets the workflow: outside of it.
        _stop_hearing(signal, on_approval)
        raise
    _stop_hearing(signal, on_approval)
    return outcome


def _stop_hearing(signal: str, on_approval: OnApproval | None) -> None:
    if on_approval is not None:
        workflow.set_signal_handler(signal, None)


class _Handler:
    """Asks ``on_approval`` once about each approval, and sends what it says to the run."""

    def __init__(self, on_approval: OnApproval) -> None:
        self._on_approval = on_approval
        self._asked: set[str] = set()

    async def hear(self, value: Any) -> None:
        """Handle the signal of a run that waits, or that waits no more."""
        report = read_report(value)
        if not report.waiting or report.id in self._asked:
            return
        self._asked.add(report.id)
        said = self._on_approval(report)
        if inspect.isawaitable(said):
            said = await said
        if said is None:
            return
        decision = said if isinstance(said, dict) else {"approved": said}
        run = workflow.get_external_workflow_handle(report.session_id)
        await run.signal(SIGNAL_RESOLVE, {**decision, "id": report.id})
