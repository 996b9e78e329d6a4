"""Waits for a run, tells people what it waits for, and notices when nobody serves it."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.checkpoint_bridge.errors import PerdureError, StorageError
from perdure.cli.output import note, progress
from perdure.cli.text import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from temporalio.client import WorkflowExecutionDescription

    from perdure.cli.options import Where
    from perdure.client import Client

T = TypeVar("T")

WAIT_TIMEOUT = "PERDURE_WAIT_TIMEOUT"
"""The code of the error when the time to wait is over."""

QUIET = 0.5
"""Seconds of waiting that nobody needs to be told about."""

LOOK_EVERY = 5.0
"""Seconds after which, again and again, we look whether a worker is there."""

_STUCK = timedelta(seconds=4)
"""So long a task lies in its queue only when nobody takes it."""

NOBODY = "No worker seems to serve task queue"

_REASON = 200
"""Characters of a failure that are shown while its call is tried again."""

_FAILING = 3
"""A workflow task of so many attempts fails because of the worker's code."""

_LAST_SEEN = timedelta(seconds=75)
"""Temporal lists workers for minutes; one that lives asks for work at least every minute."""


async def wait_for(
    work: Awaitable[T],
    client: Client,
    session_id: str | None,
    where: Where,
    *,
    text: str,
    timeout: float | None = None,  # noqa: ASYNC109 - the run goes on when it passes
    advice: str = "",
) -> T:
    """Wait for a result with a progress line.

    Args:
        work: gives the result.
        client: to look at the run with, meanwhile.
        session_id: whose run it is, if that is known.
        where: for the commands that messages name.
        text: what is waited for.
        timeout: seconds until this gives up.
        advice: what to tell people when no worker takes the run's work.

    Raises:
        PerdureError: what ``work`` raises; or the time is over, or the worker of the run
            writes to another store.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_watch(client, session_id, advice))
    try:
        await _until_first({task, watch}, text, timeout)
        if not task.done() and watch.done():
            watch.result()
        if not task.done():
            msg = f"No end after {timeout:g} s; the run goes on."
            hint = None
            if session_id is not None:
                hint = f"Wait for it again: {where.command('resume', session_id)}"
            raise PerdureError(msg, code=WAIT_TIMEOUT, hint=hint)
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await each


async def _until_first(
    tasks: set[asyncio.Future[Any]],
    text: str,
    timeout: float | None,  # noqa: ASYNC109 - as above
) -> None:
    """Wait for the first end; what ends at once needs no word about it."""
    at_once = QUIET if timeout is None else min(QUIET, timeout)
    done, _ = await asyncio.wait(tasks, timeout=at_once, return_when=asyncio.FIRST_COMPLETED)
    if done or timeout == at_once:
        return
    with progress(text):
        await asyncio.wait(
            tasks,
            timeout=None if timeout is None else timeout - at_once,
            return_when=asyncio.FIRST_COMPLETED,
        )


async def _watch(client: Client, session_id: str | None, advice: str) -> None:
    """Look every few seconds; ends only with an error."""
    told = ""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        trouble = ""
        # Looking must never be what ends the wait: Temporal may be away for a moment.
        with contextlib.suppress(Exception):
            trouble = await _trouble(client, session_id)
        if trouble and trouble != told:
            note(f"{trouble}; waiting.")
            if advice and trouble.startswith(NOBODY):
                note(advice)
        if told and not trouble:
            note("It goes on.")
        told = trouble
        if session_id is not None and not trouble:
            await _check_store(client, session_id)


async def _trouble(client: Client, session_id: str | None) -> str:
    """Why the run does not go on: nobody takes its work, its code fails, or its calls do."""
    found = None if session_id is None else await _described(client, session_id)
    # A run stays on the task queue that it was started on, whatever ours is.
    queue = client.task_queue if found is None else found.task_queue
    nobody = f"{NOBODY} {queue!r}"
    if not await has_worker(client, queue):
        return nobody
    if found is None:
        return ""
    if _lies_around(found):
        return nobody
    raw: Any = found.raw_description
    if raw.HasField("pending_workflow_task") and raw.pending_workflow_task.attempt >= _FAILING:
        return "The worker fails to go on with the run, see its log"
    return _failing_call(raw.pending_activities)


async def _described(client: Client, session_id: str) -> WorkflowExecutionDescription | None:
    """The session's open run, or ``None``: it has not begun, or it has ended."""
    from temporalio.service import RPCError, RPCStatusCode

    handle = client.temporal.get_workflow_handle(client.workflow_id_prefix + session_id)
    try:
        found = await handle.describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise
    return found if found.status is not None and found.status.name == "RUNNING" else None


def _failing_call(pending: Any) -> str:
    """Which call is tried again and again, and why."""
    from perdure.activities.wire import ACTIVITY_MODEL

    for call in pending:
        if call.attempt > 1 and call.HasField("last_failure"):
            what = "The model call" if call.activity_type.name == ACTIVITY_MODEL else "A call"
            why = one_line(call.last_failure.message, _REASON)
            return f"{what} is tried again (attempt {call.attempt}): {why}"
    return ""


async def has_worker(client: Client, queue: str) -> bool:
    """Whether a worker asked for work of a task queue in the last minute."""
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    response = await client.temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.temporal.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    now = datetime.now(UTC)
    seen = (poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in response.pollers)
    return any(now - moment < _LAST_SEEN for moment in seen)


def _lies_around(found: WorkflowExecutionDescription) -> bool:
    """Whether the run's workflow task was scheduled a while ago and nobody took it."""
    from temporalio.api.enums.v1 import PendingWorkflowTaskState

    raw: Any = found.raw_description
    if not raw.HasField("pending_workflow_task"):
        return False
    task = raw.pending_workflow_task
    scheduled = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
    if task.state != scheduled:
        return False
    return bool(datetime.now(UTC) - task.scheduled_time.ToDatetime(tzinfo=UTC) > _STUCK)


async def _check_store(client: Client, session_id: str) -> None:
    """Notice a worker with another store: its pauses would never show in ours.

    Raises:
        StorageError: the run is under way, and our store does not hold its session.
    """
    if await client.store.session(session_id) is not None:
        return
    running = await client.running(session_id)
    if running is None:
        return
    try:
        async with asyncio.timeout(LOOK_EVERY):
            state = await running.state()
    except (PerdureError, TimeoutError):
        return
    if state.get("status") != "opening" and await client.store.session(session_id) is None:
        raise other_store(client, session_id)


def other_store(client: Client, session_id: str) -> StorageError:
    """The error for a worker that writes to another store than the one we read."""
    msg = (
        f"The store {client.store.database} does not hold session {session_id!r}, which a "
        "worker runs: the worker uses another store, where the run goes on."
    )
    hint = "Read it there: give this command the --store of the worker."
    return StorageError(msg, hint=hint)
