"""What traces and metrics say of runs, by OpenTelemetry's conventions for generative AI.

``invoke_agent`` for a run, ``chat`` for a model call, ``execute_tool`` for a tool call: each one
once, whatever was tried how often. Content is left out unless the operator asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from temporalio.exceptions import ApplicationError

from perdure.activities import genai, spans
from perdure.activities.failures import is_cancel_requested, is_retryable
from perdure.activities.metrics import note_operation, note_tokens
from perdure.checkpoint_bridge.errors import PerdureError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.turn_states import FAILED, turn_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

    from perdure.activities.providers.base import ModelRequest
    from perdure.activities.wire import ModelTask, OpenRun, ToolTask
    from perdure.agent import Agent
    from perdure.checkpoint_bridge.log.events import Event
    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.ledger import Effect

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The conventions' variable: ``true`` (or ``SPAN_ONLY``, ``SPAN_AND_EVENT``) records content."""

TRACE = "trace"
"""In the data of ``turn/start``, when the run is traced: ``{span, parent, startMs}``."""


class CallSpan:
    """The span of one model or tool call, current while an attempt of it runs."""

    def __init__(self, span: Span, attributes: dict[str, Any]) -> None:
        self.span = span
        self.attributes = attributes
        """What spans and metrics of the call have in common."""
        self.is_over = False
        """Whether its outcome is known, so that the span is to be exported."""
        self.error = ""
        if span.is_recording():
            span.set_attributes(attributes)

    def answered(self, request: ModelRequest, outcome: Mapping[str, Any], effect: Effect) -> None:
        """Note what a model answered."""
        self.is_over = True
        usage = outcome.get("usage") or {}
        self.attributes |= _known({"gen_ai.response.model": outcome.get("model")})
        note_tokens(usage, self.attributes)
        if not self.span.is_recording():
            return
        response = {
            "gen_ai.response.model": outcome.get("model"),
            "gen_ai.response.id": outcome.get("responseId"),
            "gen_ai.response.finish_reasons": [str(outcome.get("finishReason"))],
            "gen_ai.usage.input_tokens": usage.get("inputTokens"),
            "gen_ai.usage.output_tokens": usage.get("outputTokens"),
        }
        self.span.set_attributes(_known(response))
        if effect.attempts:
            codes = [str((each.get("error") or {}).get("code")) for each in effect.attempts]
            self.span.set_attribute("perdure.failed_attempts", codes)
        if captures():
            self.span.set_attributes(genai.chat_content(request, effect.message or {}))

    def returned(self, arguments: str, effect: Effect) -> None:
        """Note what a tool gave, or why it gave nothing."""
        self.is_over = True
        message = effect.message or {}
        if message.get("isError"):
            self.error = genai.error_of(message)
        if self.span.is_recording() and captures():
            self.span.set_attributes(genai.tool_content(arguments, message))


def chat(agent: Agent, task: ModelTask, effect: Effect) -> AbstractContextManager[CallSpan]:
    """The span of a model call, around one attempt to make it."""
    model = agent.request_model
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _provider_name(agent),
        **_known({"gen_ai.request.model": model}),
    }
    name = f"chat {model}".rstrip()
    key = f"{task.log_id}.{task.through_seq} chat"
    span = spans.start_child(task.trace, key, name, SpanKind.CLIENT, effect.started_at)
    if span.is_recording():
        span.set_attributes(genai.request_settings(agent.settings))
    return _calling(span, attributes, agent.name, task.session_id, effect)


def execute_tool(agent: Agent, task: ToolTask, effect: Effect) -> AbstractContextManager[CallSpan]:
    """The span of a tool call, around one attempt to run it."""
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": task.tool}
    name = f"execute_tool {task.tool}"
    key = f"{task.log_id}.{task.seq}.{task.index} tool"
    span = spans.start_child(task.trace, key, name, SpanKind.INTERNAL, effect.started_at)
    if span.is_recording():
        tool = agent.tools.get(task.tool)
        description = tool.description if tool else None
        given = {"gen_ai.tool.call.id": task.call_id, "gen_ai.tool.type": "function"}
        span.set_attributes(_known({**given, "gen_ai.tool.description": description}))
    return _calling(span, attributes, agent.name, task.session_id, effect)


@contextlib.contextmanager
def _calling(
    span: Span, attributes: dict[str, Any], agent: str, session_id: str, effect: Effect
) -> Iterator[CallSpan]:
    call = CallSpan(span, attributes)
    if span.is_recording():
        span.set_attributes({"gen_ai.agent.name": agent, "gen_ai.conversation.id": session_id})
        if effect.starts > 1:
            # The times that it was begun; those in which a worker died are among them.
            span.set_attribute("perdure.attempts", effect.starts)
    began = time.perf_counter()
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield call
    except BaseException as error:
        call.error = _error_type(error)
        call.is_over = _is_final(error)
        raise
    finally:
        if call.error:
            # The type alone: a message may quote content.
            span.set_attribute("error.type", call.error)
            span.set_status(Status(StatusCode.ERROR))
        note_operation(time.perf_counter() - began, call.attributes, call.error)
        if call.is_over:
            span.end()


def note_repeat(error: BaseException) -> None:
    """Note on the current call's span that the same call is made again."""
    attributes = {"error.type": type(error).__name__}
    trace.get_current_span().add_event("perdure.attempt.failed", attributes)


# -- runs --------------------------------------------------------------------------------------


def run_trace(agent: str, task: OpenRun, turn: int) -> dict[str, Any]:
    """What the log keeps of a run that is traced; ``{}`` where nobody traces.

    The span that the run belongs to is the one of its request; without one, what is current here,
    as temporalio's own interceptors set it.
    """
    above = task.traceparent or spans.current_traceparent()
    if not above and not spans.is_on():
        return {}
    # One execution's run may have several turns.
    span = spans.root_of(f"{task.run_id} {turn}", above, f"invoke_agent {agent}")
    return {"span": span, "parent": above, "startMs": task.time_ms}


async def tell_ends(store: SqlStore, session_id: str, log_id: int, since: int) -> None:
    """Make the ``invoke_agent`` spans of runs whose ends were just written, behind ``since``.

    All of it is in the log: so whoever ends a run can tell it, also the next run when this one
    was lost; and telling it twice, after a crash in between, gives the same span again.
    """
    if not spans.is_on():
        return
    for event in await store.events(session_id, after=since):
        if event.type == ev.TURN_END:
            before = await store.state(log_id, event.seq)
            if before.open_turn is not None:
                _tell_end(session_id, before, event)


def _tell_end(session_id: str, before: SessionState, event: Event) -> None:
    turn, end, usage = before.open_turn or {}, event.data, before.usage
    kept = turn.get(TRACE)
    if not kept:
        return
    name = f"invoke_agent {turn['agent']}"
    start = kept["startMs"]
    span = spans.start_root(kept["span"], kept["parent"], name, SpanKind.INTERNAL, start)
    finish = end.get("finishReason")
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": turn["agent"],
        "gen_ai.conversation.id": session_id,
        "gen_ai.response.finish_reasons": None if finish is None else [str(finish)],
        "gen_ai.usage.input_tokens": usage.get("inputTokens"),
        "gen_ai.usage.output_tokens": usage.get("outputTokens"),
        "perdure.run.id": turn["runId"],
    }
    span.set_attributes(_known(attributes))
    reason = end.get("reason") or {}
    if turn_state(reason) == FAILED:
        error = (reason.get("error") or {}).get("code") or reason.get("kind")
        span.set_attribute("error.type", str(error))
        span.set_status(Status(StatusCode.ERROR))
    span.end(end_time=max(event.time_ms, start) * 1_000_000)


# -- what to say ---------------------------------------------------------------------------------


def captures() -> bool:
    """Whether the operator wants content in spans."""
    return os.environ.get(CAPTURE, "").lower() in ("true", "span_only", "span_and_event")


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value not in (None, "")}


def _provider_name(agent: Agent) -> str:
    prefix, slash, _ = (agent.model or "").partition("/")
    return prefix if slash and not agent.has_own_provider else type(agent.provider).__name__


def _is_final(error: BaseException) -> bool:
    """Whether nobody will try the call again."""
    if isinstance(error, asyncio.CancelledError):
        return is_cancel_requested()
    if isinstance(error, ApplicationError):
        return error.non_retryable
    return not isinstance(error, PerdureError) or not is_retryable(error)


def _error_type(error: BaseException) -> str:
    if isinstance(error, ApplicationError):
        wire = error.details[0] if error.details else None
        return str(wire["code"] if isinstance(wire, dict) and "code" in wire else error.type)
    return error.code if isinstance(error, PerdureError) else type(error).__name__
