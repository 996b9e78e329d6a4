"""Keeps what was lost with a worker from beginning again behind a cancel.

A cancel is taken by the run's next workflow task. When a worker dies with that task, Temporal
gives it to another one after ten seconds; what else that worker had is begun again after five.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.checkpoint_bridge.log.lineage import ancestors

if TYPE_CHECKING:
    from temporalio.client import Client

_LOOK_EVERY = 1.0


async def no_cancel_waits(session_id: str) -> None:
    """Return when Temporal has no cancel for the run, or one above it, that it is yet to take.

    Else the cancel comes, and ends the activity that waits here.
    """
    client = activity.client()
    prefix = str(activity.info().workflow_id).removesuffix(session_id)
    runs = [prefix + each for each in (session_id, *ancestors(session_id))]
    while any([await _is_cancelled(client, run) for run in runs]):  # noqa: ASYNC110 - no event says it
        await asyncio.sleep(_LOOK_EVERY)


async def _is_cancelled(client: Client, workflow_id: str) -> bool:
    try:
        found = await client.get_workflow_handle(workflow_id).describe()
    except RPCError:
        return False  # one that cannot be asked is not waited for
    asked = found.raw_description.workflow_extended_info.cancel_requested
    return asked and found.status == WorkflowExecutionStatus.RUNNING
