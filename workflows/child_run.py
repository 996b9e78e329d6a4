"""Runs an agent as a child workflow, to its end."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow

from perdure.activities.wire import WORKFLOW, RunOutcome


async def run_child(request: dict[str, Any], **options: Any) -> RunOutcome:
    """Start a run as a child, and wait for its end; a cancel is passed on and heard out.

    temporalio passes a cancel on to a child that has started. While one is about to start, it
    raises the cancel at once, and the child would go on until its parent's end terminates it.

    Args:
        request: the run request.
        options: of :func:`temporalio.workflow.start_child_workflow`.

    Raises:
        temporalio.exceptions.WorkflowAlreadyStartedError: the id is in use.
        temporalio.exceptions.ChildWorkflowError: the run failed or was cancelled.
    """
    starting = asyncio.create_task(
        workflow.start_child_workflow(WORKFLOW, request, result_type=RunOutcome, **options)
    )
    try:
        child = await asyncio.shield(starting)
    except asyncio.CancelledError:
        child = await asyncio.shield(starting)
        child.cancel()
    outcome: RunOutcome = await child
    return outcome
