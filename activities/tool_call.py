"""The activity that runs one tool call."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from temporalio import activity

from perdure.activities import tracing
from perdure.activities.content import NotJsonError, content_of, to_json_value
from perdure.activities.deps import Deps, received
from perdure.activities.effect_time import EffectTime
from perdure.activities.emitting import Emitter
from perdure.activities.failures import boundary
from perdure.activities.late_cancels import no_cancel_waits
from perdure.activities.liveness import heartbeats, until_stored
from perdure.activities.packing import packed
from perdure.activities.planning import arguments_digest, parse_arguments
from perdure.activities.session_kv import SessionKV
from perdure.activities.transport import is_named, is_transport
from perdure.activities.wire import ACTIVITY_TOOL, AMBIGUOUS, ASK, ToolOutcome, ToolTask
from perdure.checkpoint_bridge.errors import PropagatingToolError
from perdure.checkpoint_bridge.format import tool_errors
from perdure.checkpoint_bridge.format.tool_errors import tool_error_result
from perdure.checkpoint_bridge.format.tool_results import (
    TOOL_NOT_STARTED,
    cancelled_call,
    error_result,
    result,
    unknown_outcome,
)
from perdure.checkpoint_bridge.log.answers import result_entry, step_end
from perdure.checkpoint_bridge.redaction import redact, safe_text
from perdure.checkpoint_bridge.tables.ledger import EffectId, idempotency_key
from perdure.tools import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.checkpoint_bridge.tables.event_log import Batch
    from perdure.checkpoint_bridge.tables.ledger import Effect
    from perdure.tools import Tool

_TRANSPORT_TRIES = 3
_TRANSPORT_WAIT = 0.5

_log = logging.getLogger("perdure.tools")


class _Unsettled(Exception):  # noqa: N818 - a marker, never shown
    """A transport error that repeating the call did not settle."""


class _EscapeError(Exception):
    """What a tool raised (its cause) that is no Exception: an exit, a cancel of its own."""


class _DeadlineError(Exception):
    """The tool's own deadline passed."""


class _NotBegunError(_DeadlineError):
    """There was no free thread for a plain tool until then."""


class _Deadline:
    """When a call has to be over. Its time begins when it does, not while it waits for a thread."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._at = self._loop.time() + seconds
        self._begun = False
        self.limit: asyncio.Timeout
        """Of the current attempt."""

    def attempt(self) -> asyncio.Timeout:
        """The context of one attempt."""
        self.limit = asyncio.timeout_at(self._at)
        return self.limit

    def begin(self) -> None:
        """A thread has taken up the call."""
        if not self._begun:
            self._begun = True
            self._at = self._loop.time() + self._seconds
            with contextlib.suppress(RuntimeError):  # it is over already
                self.limit.reschedule(self._at)

    def has(self, seconds: float) -> bool:
        """Whether there is more than so much time left."""
        return self._at - self._loop.time() > seconds


class ToolCall(Deps):
    """Runs tool calls; the ledger remembers what each one gave."""

    @activity.defn(name=ACTIVITY_TOOL)
    @boundary
    async def run_tool(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take a :class:`ToolTask`, and give the one :class:`ToolOutcome` of the call.

        That is the stored one, if it has run already.

        Raises:
            PropagatingToolError: the tool chose to fail the run.
        """
        task = received(ToolTask, given)
        with heartbeats():
            if task.attempt > 1:
                await no_cancel_waits(task.session_id)
            result: dict[str, Any] = packed(await self.outcome(task))
        return result

    async def outcome(self, task: ToolTask) -> ToolOutcome:
        """Run a call inside the current activity, or give what it came to before.

        Raises:
            PropagatingToolError: as :meth:`run_tool`.
        """
        effect_id = EffectId(task.log_id, task.seq, task.index)
        time = EffectTime(task.time_ms)

        async def end(message: dict[str, Any]) -> Effect:
            return await until_stored(
                lambda: self.store.end_effect(
                    effect_id,
                    session_id=task.session_id,
                    name=task.tool,
                    outcome={},
                    message=message,
                    record=None if task.head is None else partial(_record, task, time),
                )
            )

        effect = await until_stored(
            lambda: self.store.begin_effect(
                effect_id, session_id=task.session_id, run_id=task.run_id, name=task.tool
            )
        )
        if not effect.done:
            if effect.starts > 1 and task.recovery == ASK and not task.confirmed:
                return ToolOutcome(uncertain=True)
            with tracing.execute_tool(self.agent(task.agent), task, effect) as span:
                try:
                    message = await self._result(task, effect)
                except _Unsettled:
                    return ToolOutcome(uncertain=True)
                effect = await end(message)
                span.returned(task.arguments or "", effect)
        elif task.head is not None and effect.message is not None:
            # Perhaps the log has it, perhaps the run that stored it could not write.
            effect = await end(effect.message)
        assert effect.message is not None
        return ToolOutcome(
            content=content_of(effect.message, effect.ref, effect.size),
            is_error=bool(effect.message.get("isError")),
            head=effect.head,
        )

    async def _result(self, task: ToolTask, effect: Effect) -> dict[str, Any]:
        """Run the call and make the message that answers it; every failure is a message too."""
        tool = self.agent(task.agent).tools.get(task.tool)
        if tool is None:
            names = list(self.agent(task.agent).tools)
            text = tool_errors.not_found_message(task.tool, names)
            return _failed(task, tool_error_result(tool_errors.NOT_FOUND, task.tool, text))
        if effect.starts > 1 and task.recovery == AMBIGUOUS:
            return _failed(task, unknown_outcome(task.tool))
        arguments = parse_arguments(tool, await self._arguments(task))
        if not isinstance(arguments, BaseModel):
            return _failed(task, arguments)
        if task.digest is not None and task.digest != arguments_digest(tool, arguments):
            text = (
                "The tool would run with other arguments than a person approved: its own checks "
                "have changed since. Call it again to have the new ones approved."
            )
            return _failed(task, tool_error_result(tool_errors.NOT_RUN, task.tool, text))
        return await self._call(tool, arguments, task, effect)

    async def _call(
        self, tool: Tool, arguments: BaseModel, task: ToolTask, effect: Effect
    ) -> dict[str, Any]:
        """Call the tool, and say how that went."""
        uid = await until_stored(lambda: self.store.log_uid(task.log_id))
        context = self._context(task, effect, uid)
        try:
            value = await self._run(tool, arguments, context, task)
            return result(task.call_id, task.tool, to_json_value(value))
        except PropagatingToolError as error:
            _log.warning("Tool %s fails the run", task.tool, exc_info=error)
            if self.agent(task.agent).tool_errors != "full":
                error.message = redact(error.message, os.environ)
            raise
        except _Unsettled as error:
            if task.recovery == ASK:
                raise
            return _failed(task, unknown_outcome(task.tool, error.__cause__))
        except _DeadlineError as error:
            return _failed(task, _too_late(task, error))
        except asyncio.CancelledError:
            # A plain tool goes on in its thread, whoever waits for it.
            if not tool.is_async or not _is_run_cancelled():
                raise
            return _failed(task, cancelled_call(task.tool))
        except NotJsonError as error:
            text = str(error)
            return _failed(task, tool_error_result(tool_errors.INVALID_OUTPUT, task.tool, text))
        except Exception as error:  # noqa: BLE001 - a tool may raise anything; the model reads it
            raised = error.__cause__ if isinstance(error, _EscapeError) else error
            _log.warning("Tool %s failed: %s", task.tool, type(raised).__name__, exc_info=raised)
            return _failed(task, self._raised(task, raised))

    def _raised(self, task: ToolTask, raised: BaseException | None) -> dict[str, Any]:
        """The error object of a call whose tool raised: as much as the operator lets out."""
        how = self.agent(task.agent).tool_errors
        if raised is None or how == "full":
            return tool_error_result(tool_errors.EXECUTION, task.tool, error=raised)
        text = safe_text(raised, os.environ) if how == "redacted" else ""
        name = type(raised).__name__
        return tool_error_result(tool_errors.EXECUTION, task.tool, text or None, error=name)

    async def _arguments(self, task: ToolTask) -> str:
        """The call's raw arguments; large ones come from the log."""
        if task.arguments is not None:
            return task.arguments
        state = await until_stored(lambda: self.store.state(task.log_id, task.seq + 1))
        return str(state.calls[task.index]["function"]["arguments"])

    def _context(self, task: ToolTask, effect: Effect, log_uid: str) -> ToolContext:
        logger = logging.LoggerAdapter(
            logging.getLogger(f"perdure.tools.{task.tool}"),
            {"session_id": task.session_id, "tool_call_id": task.call_id},
        )
        emitter = Emitter(self.store, task, effect.starts)
        return ToolContext(
            session_id=task.session_id,
            run_id=task.run_id,
            tool_call_id=task.call_id,
            idempotency_key=idempotency_key(task.session_id, log_uid, task.seq, task.index),
            attempt=effect.starts,
            logger=logger,
            beat=_beat_from_anywhere(),
            emitter=emitter,
            kv=SessionKV(self.store, task, emitter),
        )

    async def _run(
        self, tool: Tool, arguments: BaseModel, context: ToolContext, task: ToolTask
    ) -> Any:
        deadline = _Deadline(task.timeout)
        # A tool that is not to run twice by itself is not repeated for this reason, either.
        repeats = task.recovery not in (AMBIGUOUS, ASK)
        for tries in range(1, _TRANSPORT_TRIES + 1):
            try:
                async with deadline.attempt() as limit:
                    return await self._invoke(tool, tool.bind(arguments, context), deadline)
            except Exception as error:
                cause = error.__cause__ if isinstance(error, _EscapeError) else error
                if cause is None or not is_transport(cause, tool.retry_on):
                    raise
                if limit.expired():
                    raise _DeadlineError from cause
                wait = _TRANSPORT_WAIT * tries
                goes_on = tries < _TRANSPORT_TRIES and deadline.has(wait)
                if not goes_on or not (repeats or is_named(cause, tool.retry_on)):
                    raise _Unsettled from cause
                _log.warning("Tool %s: %r; the same call is repeated", tool.name, cause)
                tracing.note_repeat(cause)
                await asyncio.sleep(wait)
        raise AssertionError

    async def _invoke(self, tool: Tool, call: Callable[[], Any], deadline: _Deadline) -> Any:
        """Call the tool. Nothing that it raises may end the worker or look like a cancel of ours.

        Raises:
            _EscapeError: it raised something that is no Exception.
            _NotBegunError: its time was over before a thread was free.
        """
        if not tool.is_async:
            value, raised = await self._in_thread(call, deadline)
            if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                raise raised
            if raised is not None:
                raise _EscapeError from raised
            if not inspect.isawaitable(value):
                return value
            # An async function in a plain wrapper.
            call = partial(_itself, value)
        try:
            return await call()
        except (Exception, GeneratorExit):
            # An exit of the second kind may be this coroutine's own, at the end of its loop.
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise _EscapeError from error
        except BaseException as error:
            raise _EscapeError from error

    async def _in_thread(
        self, call: Callable[[], Any], deadline: _Deadline
    ) -> tuple[Any, BaseException | None]:
        loop = asyncio.get_running_loop()

        def run() -> tuple[Any, BaseException | None]:
            # The loop is gone where its worker is; nobody waits then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(deadline.begin)
            return _outcome_of(call)

        future = self.threads.submit(contextvars.copy_context().run, run)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancel() and deadline.limit.expired():
                raise _NotBegunError from None
            raise


def _outcome_of(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a function gives or raises, as a value: a future cannot carry every exception."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - it is raised again by whoever called
        return None, error


def _itself(value: Any) -> Any:
    return value


def _beat_from_anywhere() -> Callable[..., None]:
    """Heartbeats for tools in threads too; temporalio's own needs the event loop's thread."""
    loop = asyncio.get_running_loop()

    def beat(*details: Any) -> None:
        # A thread can outlive its worker's loop; nobody listens then.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(activity.heartbeat, *details)

    return beat


def _record(task: ToolTask, time: EffectTime, effect: Effect, _head: int) -> Batch:
    """The call's result as the log has it."""
    assert task.head is not None
    last = step_end(task.turn, task.step) if task.ends_step else None
    entry = result_entry([(task.seq, task.index, effect.message, effect.ref)], last)
    return time.batch(task, task.head, entry)


def _is_run_cancelled() -> bool:
    """Whether that is why the activity was cancelled, and not that its worker ends."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


def _too_late(task: ToolTask, error: _DeadlineError) -> dict[str, Any]:
    if isinstance(error, _NotBegunError):
        text = f"The call did not begin within its {task.timeout:g} s: no thread was free."
        kind = tool_errors.NOT_STARTED
        return tool_error_result(kind, task.tool, text, code=TOOL_NOT_STARTED)
    text = f"The tool did not finish within its {task.timeout:g} s; it may have had effects."
    return tool_error_result(tool_errors.TIMEOUT, task.tool, text)


def _failed(task: ToolTask, error: dict[str, Any]) -> dict[str, Any]:
    return error_result(task.call_id, task.tool, error)
