"""Dispatches one tool call until it has its one result."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    TimeoutError as TemporalTimeoutError,
    is_cancelled_exception,
)

from perdure.activities.failures import STORAGE_FAILED
from perdure.activities.packing import unpacked
from perdure.activities.wire import ACTIVITY_TOOL, CallPlan, Content, ToolOutcome, ToolTask
from perdure.checkpoint_bridge.format.tool_errors import TIMEOUT, tool_error_result
from perdure.checkpoint_bridge.format.tool_results import error_result, unknown_outcome
from perdure.workflows.options import HEARTBEAT, MAX_RERUNS, ONCE, TOOL_GRACE
from perdure.workflows.sending import sent
from perdure.workflows.turn_ends import end_if_not_continued, is_cancelled, is_lost

if TYPE_CHECKING:
    from perdure.activities.wire import ToolPolicy

_SUMMARY_LENGTH = 60
_STORE_PAUSE = timedelta(seconds=2)


async def run_call(
    plan: CallPlan,
    task: ToolTask,
    policy: ToolPolicy,
    activity_id: str,
    *,
    on_crash: str,
) -> ToolOutcome:
    """Give a call's result: its own, or an error result when it cannot be known.

    A lost worker does not say whether the call ran. So the call is dispatched again, and the
    ledger decides there: a stored outcome is given, a call that never began runs, and one
    that had begun runs again or not as the tool's ``recovery`` says.

    Raises:
        ActivityError: the call was cancelled, or failed the run.
        TurnEndError: a worker died during it, and ``on_crash`` ends the turn then.
    """
    while True:
        try:
            outcome = await _dispatch(plan, task, policy, activity_id)
        except ActivityError as error:
            if is_cancelled_exception(error) or is_cancelled():
                raise
            cause = error.cause
            if is_lost(cause):
                end_if_not_continued(on_crash, f"a call of {plan.tool}")
                if task.attempt > MAX_RERUNS:
                    return _error(plan, unknown_outcome(plan.tool))
                task.confirmed = False  # it was for one more time
            elif isinstance(cause, TemporalTimeoutError):
                text = "The tool did not finish in time; it may have had effects."
                return _error(plan, tool_error_result(TIMEOUT, plan.tool, text))
            elif isinstance(cause, ApplicationError) and cause.type == STORAGE_FAILED:
                # The store was away before the call began.
                await workflow.sleep(_STORE_PAUSE)
            else:
                raise
            task.attempt += 1
        else:
            return outcome


async def _dispatch(
    plan: CallPlan, task: ToolTask, policy: ToolPolicy, activity_id: str
) -> ToolOutcome:
    outcome = await workflow.execute_activity(
        ACTIVITY_TOOL,
        sent(task),
        result_type=dict,
        activity_id=activity_id if task.attempt == 1 else f"{activity_id}.{task.attempt}",
        start_to_close_timeout=timedelta(seconds=policy.timeout) + TOOL_GRACE,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=ONCE,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"{plan.tool} {plan.call_id}"[:_SUMMARY_LENGTH],
    )
    return unpacked(ToolOutcome, outcome)


def _error(plan: CallPlan, error: dict[str, Any]) -> ToolOutcome:
    message = error_result(plan.call_id, plan.tool, error)
    return ToolOutcome(content=Content(message=message), is_error=True)
