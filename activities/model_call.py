"""The activity that asks the model for one turn."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import cached_property, partial
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Any

from temporalio import activity

from perdure.activities import tracing
from perdure.activities.content import content_of
from perdure.activities.deps import Deps, received
from perdure.activities.effect_time import EffectTime
from perdure.activities.failures import boundary, to_failure
from perdure.activities.late_cancels import no_cancel_waits
from perdure.activities.liveness import heartbeats, until_stored
from perdure.activities.local_calls import Answered, run_local_calls
from perdure.activities.packing import packed
from perdure.activities.planning import announce, plan_calls
from perdure.activities.providers.base import ModelRequest, ModelResponse, ToolSpec
from perdure.activities.tool_call import ToolCall
from perdure.activities.wire import ACTIVITY_MODEL, CallPlan, ModelTask, ModelTurn
from perdure.checkpoint_bridge.errors import (
    LogConflictError,
    PerdureError,
    ProviderError,
    RunFailedError,
)
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.answers import answer_entry
from perdure.checkpoint_bridge.log.events import dump
from perdure.checkpoint_bridge.log.request_messages import history_record, recorded_messages
from perdure.checkpoint_bridge.log.request_record import capped, config_text, request_config
from perdure.checkpoint_bridge.redaction import safe_text
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables.ledger import MODEL_CALL, Effect, EffectId

if TYPE_CHECKING:
    from perdure.agent import Agent
    from perdure.checkpoint_bridge.tables.event_log import Batch

PROVIDER_TRIES = 8
"""How often a provider may fail at one model call before the run does."""

_CHARACTERS_PER_TOKEN = 4

_MEANT = (ev.APPROVAL_AUTO, ev.TOOL_CALL, ev.TOOL_RESULT, ev.STEP_END, ev.TURN_END)
"""Types of events that this activity writes behind an answer."""


class _Answer:
    """What an answer means for the log."""

    def __init__(
        self, task: ModelTask, time: EffectTime, config: dict[str, Any], calls: list[CallPlan]
    ) -> None:
        self._task = task
        self._time = time
        self._config = config
        self.calls = calls
        self.seq = -1
        """Its place in the log, once that is known."""

    def batch(self, effect: Effect, head: int) -> Batch | None:
        """The events of an answer that is stored now, behind a log of the length ``head``."""
        if effect.late:
            return None  # it is in the log already
        task = self._task
        announced = [
            (each.index, each.call_id, each.tool, each.grant) for each in announce(self.calls)
        ]
        self.seq, entry = answer_entry(
            head, task.turn, task.step, effect, announced, config=self._config
        )
        return self._time.batch(task, task.through_seq, entry)


class ModelCall(Deps):
    """Asks the model, once for each place in the log."""

    @cached_property
    def _tools(self) -> ToolCall:
        return ToolCall(self.agents, self.store, self.threads, private=self.private)

    @activity.defn(name=ACTIVITY_MODEL)
    @boundary
    async def call_model(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take a :class:`ModelTask`, and give the :class:`ModelTurn`.

        That is the stored one, if this call was made already. The answer, and what it means for
        the log, are stored together. Then its local calls run (:mod:`.local_calls`).

        Raises:
            LogConflictError: the session belongs to another run by now.
            PropagatingToolError: a local tool chose to fail the run.
            ProviderError: the provider failed; Temporal asks again when that can help.
        """
        task = received(ModelTask, given)
        agent = self.agent(task.agent)
        with heartbeats():
            turn = await self._ask(agent, task)
            if not turn.calls and not turn.results:
                await tracing.tell_ends(self.store, task.session_id, task.log_id, task.through_seq)
        result: dict[str, Any] = packed(turn)
        return result

    async def _ask(self, agent: Agent, task: ModelTask) -> ModelTurn:
        time = EffectTime(task.time_ms)
        effect = await self._begin(agent, task)
        if effect.done:
            return await self._found(agent, task)
        if activity.info().attempt > 1:
            await no_cancel_waits(task.session_id)
        with tracing.chat(agent, task, effect) as span:
            request, config, record = await self._request(agent, task)
            response = await self._generate(agent, request, task)
            message = response.message()
            answer = _Answer(task, time, config, await self._plans(agent, task, message))
            outcome = {**_outcome(agent, request, response), **record}
            effect = await until_stored(
                lambda: self.store.end_effect(
                    _effect_id(task),
                    session_id=task.session_id,
                    name=agent.model or "",
                    outcome=outcome,
                    message=message,
                    record=answer.batch,
                )
            )
            span.answered(request, outcome, effect)
        if effect.late:
            return await self._found(agent, task)
        if effect.head is None:
            raise LogConflictError.of(task.session_id, kept=True)
        answered = Answered(task, message, answer.seq, effect.head, answer.calls)
        if activity.info().attempt == 1:
            # A later one may follow a cancel, and does not know of it yet.
            await run_local_calls(agent, self._tools, answered, time)
        return _turn(effect, answered)

    async def _begin(self, agent: Agent, task: ModelTask) -> Effect:
        """The call in the ledger; when it is not done there, it may be made.

        By default nothing is marked before a call: an answer that is lost is asked for again in
        any case.

        Raises:
            LogConflictError: the session belongs to another run by now.
            RunFailedError: the call was begun before, and is to be sent once.
        """
        effect_id, name = _effect_id(task), agent.model or ""
        if not task.marked:
            row = await until_stored(lambda: self.store.session(task.session_id))
            if row is None or row.log_id != task.log_id or row.writer != task.run_id:
                raise LogConflictError.of(task.session_id, kept=row is not None)
            found = None
            if row.head > task.through_seq or activity.info().attempt > 1:
                found = await until_stored(lambda: self.store.effect(effect_id))
            effect = found or Effect(name, started_at=now_ms())
            effect.starts = len(effect.attempts) + 1
            return effect
        effect = await until_stored(
            lambda: self.store.begin_effect(
                effect_id, session_id=task.session_id, run_id=task.run_id, name=name
            )
        )
        if task.once and effect.starts > 1 and not effect.done:
            msg = "The model call was sent, and its worker died: its outcome is unknown."
            lost = RunFailedError(msg, code="MODEL_OUTCOME_UNKNOWN")
            await self._note(effect_id, lost, agent.model or "unknown")
            raise lost
        return effect

    async def _found(self, agent: Agent, task: ModelTask) -> ModelTurn:
        """What another attempt has stored; only its report to Temporal was lost."""
        effect = await until_stored(lambda: self.store.effect(_effect_id(task)))
        written = await until_stored(
            lambda: self.store.events(task.session_id, after=task.through_seq)
        )
        own = dropwhile(
            lambda event: event.type != ev.ASSISTANT_MESSAGE,
            (event for event in written if not event.ignorable),
        )
        answer = next(own, None)
        if effect is None or effect.message is None or answer is None:
            raise LogConflictError.of(task.session_id, kept=True)
        # By the agent of today: a call that it would ask about is asked about.
        calls = await self._plans(agent, task, effect.message)
        plans = {plan.index: plan for plan in calls}
        answered = Answered(task, effect.message, answer.seq, answer.seq + 1, calls)
        for event in takewhile(lambda event: event.type in _MEANT, own):
            answered.head = event.seq + 1
            if event.type == ev.TOOL_CALL:
                plans[event.data["index"]].announced = True
            elif event.type == ev.TOOL_RESULT:
                message = event.data["message"]
                content = content_of(message, None, len(dump(message)))
                answered.done(plans[event.data["index"]], content)
        return _turn(effect, answered)

    async def _plans(
        self, agent: Agent, task: ModelTask, message: dict[str, Any]
    ) -> list[CallPlan]:
        state = await until_stored(lambda: self.store.state(task.log_id, task.through_seq))
        return plan_calls(agent, message, state.grants)

    async def _request(
        self, agent: Agent, task: ModelTask
    ) -> tuple[ModelRequest, dict[str, Any], dict[str, Any]]:
        """The request, and what the log has to say of it, so that it can be built again.

        That is what the agent brought to it, and what is for the answer's own record.
        """
        state = await until_stored(lambda: self.store.state(task.log_id, task.through_seq))
        config = _config(agent)
        record: dict[str, Any] = {}
        if state.request_text != config_text(agent, config):
            reason = "initial" if state.request_config is None else "change"
            record["header"] = {"reason": reason}
        cap = partial(capped, config)
        history = history_record(state, agent.history_policy, agent.history_budget, shown=cap)
        if history["places"] is not None:
            record["history"] = history
        if state.cut:
            record["cut"] = True
        request = ModelRequest(
            model=agent.request_model,
            messages=recorded_messages(state.messages, history, shown=cap),
            tools=[
                ToolSpec(tool.name, tool.description, tool.input_schema)
                for tool in agent.tools.values()
            ],
            settings=dict(agent.settings),
            session_id=task.session_id,
            run_id=task.run_id,
            step=task.step,
        )
        return request, config, record

    async def _generate(
        self, agent: Agent, request: ModelRequest, task: ModelTask
    ) -> ModelResponse:
        try:
            answer: object = await agent.provider.generate(request)
            if not isinstance(answer, ModelResponse):
                msg = f"it gave {type(answer).__name__}, not a ModelResponse"
                raise TypeError(msg)
            return answer
        except PerdureError as error:
            failure = error
        except GeneratorExit:
            raise
        except BaseException as error:
            # A provider of one's own may raise anything; only a cancel of ours goes on as one.
            current = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (
                current is None or current.cancelling()
            ):
                raise
            activity.logger.exception("The provider of %s failed", agent.name)
            text = safe_text(error, os.environ)
            failure = ProviderError(
                f"The provider of {agent.name} raised {type(error).__name__}: {text}"
            )
        failed = await self._note(_effect_id(task), failure, agent.model or "unknown")
        raise to_failure(failure, final=failed >= PROVIDER_TRIES)

    async def _note(self, effect_id: EffectId, error: PerdureError, name: str) -> int:
        """Record a failed attempt; returns how many there are. Deaths of workers are none."""
        attempt: dict[str, Any] = {"error": {"code": error.code, "message": error.message}}
        usage = error.usage if isinstance(error, ProviderError) else None
        if usage is not None:
            attempt.update(usage=usage, model=name)
        return len(
            await until_stored(lambda: self.store.note_attempt(effect_id, attempt, name=name))
        )


def _effect_id(task: ModelTask) -> EffectId:
    return EffectId(task.log_id, task.through_seq, MODEL_CALL)


def _outcome(agent: Agent, request: ModelRequest, response: ModelResponse) -> dict[str, Any]:
    usage = response.usage
    if usage is None:
        usage = _estimate(request, response)
    finish = response.finish_reason
    if not response.tool_calls and finish == "tool_calls":
        finish = "stop"
    return {
        "model": response.model or agent.model or "unknown",
        "finishReason": finish,
        "usage": usage,
        "responseId": response.response_id,
    }


def _config(agent: Agent) -> dict[str, Any]:
    tools = list(agent.tools.values())
    return request_config(
        model=agent.request_model,
        settings=agent.settings,
        tools=[(tool.name, tool.description, tool.input_schema) for tool in tools],
        max_result_chars=agent.max_result_chars,
        tool_result_chars={
            tool.name: tool.max_result_chars for tool in tools if tool.max_result_chars
        },
    )


def _estimate(request: ModelRequest, response: ModelResponse) -> dict[str, Any]:
    """A guess, marked as one, where the provider did not count."""
    asked = len(dump(request.messages)) // _CHARACTERS_PER_TOKEN
    answered = len(dump(response.message())) // _CHARACTERS_PER_TOKEN
    return {
        "inputTokens": asked,
        "outputTokens": answered,
        "totalTokens": asked + answered,
        "estimated": True,
    }


def _turn(effect: Effect, answered: Answered) -> ModelTurn:
    assert effect.outcome is not None
    assert effect.message is not None
    content = content_of(effect.message, effect.ref, effect.size)
    calls = answered.calls
    if content.message is not None:
        calls = [replace(plan, call_id="", tool="") for plan in calls]
    usage = effect.outcome["usage"]
    return ModelTurn(
        content=content,
        finish_reason=effect.outcome["finishReason"],
        model=effect.outcome["model"],
        head=answered.head,
        call_seq=answered.seq,
        calls=calls,
        results=answered.results,
        usage={key: usage[key] for key in ("inputTokens", "outputTokens") if key in usage},
    )
