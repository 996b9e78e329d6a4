"""The hook at the end of a turn, for agents that have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.activities.wire import ACTIVITY_STOPPING, StoppingTask
from perdure.workflows.options import HEARTBEAT, HOOK_RETRY, HOOK_TIMEOUT
from perdure.workflows.session_log import now_ms

if TYPE_CHECKING:
    from perdure.workflows.run_loop import RunLoop


async def turn_stopping(loop: RunLoop) -> None:
    """Run the agent's hook, if it has one. The turn has ended: nothing can fail it any more."""
    if not loop.facts.turn_hook or loop.facts.nothing_to_do:
        return
    try:
        loop.log.head = await workflow.execute_activity(
            ACTIVITY_STOPPING,
            StoppingTask(
                session_id=loop.log.session_id,
                log_id=loop.log.log_id,
                run_id=loop.log.run_id,
                agent=loop.agent,
                head=loop.log.head,
                turn=loop.facts.turn,
                finish_reason=loop.finish_reason,
                time_ms=now_ms(),
            ),
            result_type=int,
            start_to_close_timeout=HOOK_TIMEOUT,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=HOOK_RETRY,
            summary="on_turn_stopping",
            # A hook that was told to stop must not append when the run is over.
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning("The hook at the turn's end did not come to an end: %s", error)
