"""What must hold for every history that Temporal keeps of a run, whatever happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.activities.wire import ACTIVITY_MODEL, ACTIVITY_TOOL

if TYPE_CHECKING:
    from temporalio.client import WorkflowHistory


def begun_behind_a_cancel(history: WorkflowHistory) -> list[str]:
    """What a run began when it had been told to stop: that may be nothing."""
    asked = told = 0
    found = []
    for event in history.events:
        if event.HasField("workflow_execution_cancel_requested_event_attributes"):
            asked = asked or event.event_id
        elif event.HasField("workflow_task_completed_event_attributes"):
            started = event.workflow_task_completed_event_attributes.started_event_id
            if asked and not told and started > asked:
                told = event.event_id
        elif event.HasField("activity_task_scheduled_event_attributes"):
            activity = event.activity_task_scheduled_event_attributes
            if told and activity.activity_type.name in (ACTIVITY_MODEL, ACTIVITY_TOOL):
                found.append(f"event {event.event_id} begins {activity.activity_id}")
        elif event.HasField("start_child_workflow_execution_initiated_event_attributes"):
            child = event.start_child_workflow_execution_initiated_event_attributes
            if told:
                found.append(f"event {event.event_id} begins {child.workflow_id}")
    return [f"{each}, though the run was cancelled at event {asked}" for each in found]
