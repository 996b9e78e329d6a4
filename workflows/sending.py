"""The inputs of a step's activities, as small as they can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temporalio import workflow

from perdure.activities.packing import packed

if TYPE_CHECKING:
    from perdure.activities.wire import ModelTask, ToolTask


def sent(task: ModelTask | ToolTask) -> dict[str, Any]:
    """A task without what Temporal tells every activity itself: whose it is."""
    value: dict[str, Any] = packed(task)
    info = workflow.info()
    if task.session_id == info.workflow_id:
        del value["session_id"]
    if task.run_id == info.run_id:
        del value["run_id"]
    return value
