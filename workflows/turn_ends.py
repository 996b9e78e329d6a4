"""What ends a turn before the model gives its answer: limits, and a worker that is gone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from temporalio import workflow
from temporalio.exceptions import (
    ApplicationError,
    TimeoutError as TemporalTimeoutError,
    TimeoutType,
)

from perdure.activities.failures import WORKER_SHUTDOWN
from perdure.checkpoint_bridge.errors import LimitReachedError, TurnInterruptedError
from perdure.workflows.session_log import now_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from perdure.activities.wire import RunFacts
    from perdure.checkpoint_bridge.errors import PerdureError
    from perdure.workflows.run_loop import RunLoop

CONTINUE = "continue"
INTERRUPT = "interrupt"


class TurnEndError(Exception):
    """The turn ends here, as failed; calls without a result get one, so nobody makes them."""

    def __init__(self, error: PerdureError, *, kind: str = "error", lost: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.kind = kind
        """Of the reason in the log: ``error`` or ``interrupted``."""
        self.lost = lost
        """What was in flight may have happened."""


def count_model_call(facts: RunFacts) -> None:
    """Count one more model call of the turn.

    Raises:
        TurnEndError: the turn has made all that it may.
    """
    if facts.max_model_calls and facts.model_calls >= facts.max_model_calls:
        msg = f"The turn may make no more model calls than {facts.max_model_calls}."
        raise TurnEndError(LimitReachedError(msg, code="model_call_limit"))
    facts.model_calls += 1


def is_cancelled() -> bool:
    """Whether the task that asks was told to stop. What it awaits can end otherwise first.

    Nothing begins behind that, whatever became of what was in flight.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_lost(cause: BaseException | None) -> bool:
    """Whether the worker died, or gave up because it was told to stop."""
    if isinstance(cause, TemporalTimeoutError):
        return cause.type == TimeoutType.HEARTBEAT
    return isinstance(cause, ApplicationError) and cause.type == WORKER_SHUTDOWN


def end_if_not_continued(on_crash: str, what: str) -> None:
    """After the loss of a worker: go on, or end the turn, as the agent says (``on_crash``).

    Raises:
        TurnEndError: it ends.
    """
    if on_crash == CONTINUE:
        return
    kind = "interrupted" if on_crash == INTERRUPT else "error"
    msg = f"The worker died during {what}; its outcome is unknown, and the turn does not go on."
    raise TurnEndError(TurnInterruptedError(msg), kind=kind, lost=True)


async def within_time(loop: RunLoop, run: Awaitable[None]) -> None:
    """Run the loop until its end, or until the turn's time is over.

    The time stands still while an approval waits: :class:`.Approvals`, and :class:`.Children` for
    those of sub-agents, put the deadline off by what the wait took.

    Raises:
        TurnEndError: the time was over first; what was in flight has been told to stop.
    """
    if not loop.facts.deadline_ms:
        await run
        return
    running = asyncio.ensure_future(run)
    try:
        while not running.done():
            if loop.waiting_id is not None:
                await workflow.wait_condition(lambda: running.done() or loop.waiting_id is None)
                continue
            left = (loop.facts.deadline_ms - now_ms()) / 1000
            if left <= 0:
                break
            await _first(running, left)
    except asyncio.CancelledError:
        await _stop(running)
        raise
    if running.done():
        running.result()
        return
    await _stop(running)
    msg = "The turn took longer than its agent allows (max_turn_seconds)."
    raise TurnEndError(LimitReachedError(msg, code="turn_time_limit"))


async def _first(running: asyncio.Future[None], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await workflow.wait_condition(
            running.done, timeout=seconds, timeout_summary="the turn's time is over"
        )


async def _stop(running: asyncio.Future[None]) -> None:
    running.cancel()
    with contextlib.suppress(BaseException):
        await running
