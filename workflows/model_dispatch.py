"""Dispatches one model call until there is its answer, as the agent's policies allow."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from perdure.activities.packing import unpacked
from perdure.activities.wire import ACTIVITY_MODEL, ModelTurn
from perdure.workflows.options import HEARTBEAT, MODEL_RETRY, MODEL_TIMEOUT, ONCE
from perdure.workflows.sending import sent
from perdure.workflows.turn_ends import CONTINUE, end_if_not_continued, is_cancelled, is_lost

if TYPE_CHECKING:
    from temporalio.common import RetryPolicy

    from perdure.activities.wire import ModelTask, RunFacts


async def ask(task: ModelTask, facts: RunFacts) -> ModelTurn:
    """Give the model's turn.

    By default Temporal asks again after failures and deaths of workers alike. Where the agent
    tells the two apart (``on_crash``), or sends a call once (``model_recovery``), each attempt is
    dispatched from here.

    Raises:
        ActivityError: the call was cancelled, or failed the run.
        TurnEndError: a worker died during it, and the turn is not to go on.
    """
    has_local = any(policy.local for policy in facts.tools.values())
    if facts.on_crash == CONTINUE and not facts.model_once:
        return await _dispatch(task, f"model-{task.step}", MODEL_RETRY, wait=has_local)
    attempt = 1
    task = replace(task, marked=True, once=facts.model_once)
    while True:
        name = f"model-{task.step}" if attempt == 1 else f"model-{task.step}.{attempt}"
        try:
            return await _dispatch(task, name, ONCE, wait=has_local)
        except ActivityError as error:
            if is_cancelled_exception(error) or is_cancelled():
                raise
            if is_lost(error.cause):
                end_if_not_continued(facts.on_crash, "a model call")
                # The ledger knows whether it had begun; one that had is refused there.
                pause: timedelta | None = timedelta(0)
            else:
                pause = _pause(error.cause, attempt)
                if facts.model_once or pause is None:
                    raise
            if attempt >= MODEL_RETRY.maximum_attempts:
                raise
        if pause:
            await workflow.sleep(pause)
        attempt += 1


def _pause(cause: BaseException | None, attempt: int) -> timedelta | None:
    """How long to wait before the next attempt; ``None``: there is none."""
    if not isinstance(cause, ApplicationError) or cause.non_retryable:
        return None
    if cause.next_retry_delay:
        return cause.next_retry_delay
    assert MODEL_RETRY.maximum_interval is not None
    backoff = MODEL_RETRY.initial_interval * MODEL_RETRY.backoff_coefficient ** (attempt - 1)
    return min(backoff, MODEL_RETRY.maximum_interval)


async def _dispatch(task: ModelTask, name: str, retry: RetryPolicy, *, wait: bool) -> ModelTurn:
    """One activity; ``wait``: a cancelled one is heard out, since a local call may be in it."""
    cancel = workflow.ActivityCancellationType
    turn = await workflow.execute_activity(
        ACTIVITY_MODEL,
        sent(task),
        result_type=dict,
        activity_id=name,
        start_to_close_timeout=MODEL_TIMEOUT,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=retry,
        cancellation_type=cancel.WAIT_CANCELLATION_COMPLETED if wait else cancel.TRY_CANCEL,
    )
    return unpacked(ModelTurn, turn)
