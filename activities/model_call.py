"""The activity that asks the model for one turn."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from temporalio import activity

from perdure.activities import tracing
from perdure.activities.content import content_of
from perdure.activities.deps import Deps
from perdure.activities.failures import boundary, to_failure
from perdure.activities.liveness import heartbeats, until_stored
from perdure.activities.planning import plan_call
from perdure.activities.providers.base import ModelRequest, ModelResponse, ToolSpec
from perdure.activities.wire import ACTIVITY_MODEL, CallPlan, ModelTask, ModelTurn
from perdure.checkpoint_bridge.errors import PerdureError, ProviderError, RunFailedError
from perdure.checkpoint_bridge.events import dump
from perdure.checkpoint_bridge.ledger import MODEL_CALL, EffectId
from perdure.checkpoint_bridge.redaction import safe_text
from perdure.checkpoint_bridge.request_messages import history_record, recorded_messages
from perdure.checkpoint_bridge.request_record import capped, request_config

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.agent import Agent
    from perdure.checkpoint_bridge.ledger import Effect

PROVIDER_TRIES = 8
"""How often a provider may fail at one model call before the run does."""

_CHARACTERS_PER_TOKEN = 4


class ModelCall(Deps):
    """Asks the model, once for each place in the log."""

    @activity.defn(name=ACTIVITY_MODEL)
    @boundary
    async def call_model(self, task: ModelTask) -> ModelTurn:
        """Give the model's turn: the one that was stored before, if this call was made already."""
        agent = self.agent(task.agent)
        effect_id = EffectId(task.log_id, task.through_seq, MODEL_CALL)
        async with heartbeats():
            effect = await until_stored(
                lambda: self.store.begin_effect(
                    effect_id,
                    session_id=task.session_id,
                    run_id=task.run_id,
                    name=agent.model or "",
                )
            )
            if not effect.done:
                if task.once and effect.starts > 1:
                    msg = "The model call was sent, and its worker died: its outcome is unknown."
                    lost = RunFailedError(msg, code="MODEL_OUTCOME_UNKNOWN")
                    await self._note(effect_id, lost, agent.model or "unknown")
                    raise lost
                with tracing.chat(agent, task, effect) as span:
                    request, record = await self._request(agent, task)
                    response = await self._generate(agent, request, effect_id)
                    outcome = {**_outcome(agent, request, response), **record}
                    message = response.message()
                    effect = await until_stored(
                        lambda: self.store.end_effect(effect_id, outcome=outcome, message=message)
                    )
                    span.answered(request, outcome, effect)
        state = await until_stored(lambda: self.store.state(task.log_id, task.through_seq))
        return _turn(agent, effect, state.grants)

    async def _request(self, agent: Agent, task: ModelTask) -> tuple[ModelRequest, dict[str, Any]]:
        """The request, and what the log has to say of it, so that it can be built again."""
        state = await until_stored(lambda: self.store.state(task.log_id, task.through_seq))
        config = _config(agent)
        record: dict[str, Any] = {}
        if state.request_config is None or dump(state.request_config) != dump(config):
            ref = await until_stored(lambda: self.store.put_content(config))
            reason = "initial" if state.request_config is None else "change"
            record["header"] = {"ref": ref, "reason": reason}
        cap = partial(capped, config)
        history = history_record(state, agent.history_policy, agent.history_budget, shown=cap)
        if history["places"] is not None:
            record["history"] = history
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
        return request, record

    async def _generate(
        self, agent: Agent, request: ModelRequest, effect_id: EffectId
    ) -> ModelResponse:
        try:
            return await agent.provider.generate(request)
        except PerdureError as error:
            failure = error
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            # A provider of one's own may raise anything; only a cancel of ours goes on as one.
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            activity.logger.exception("The provider of %s failed", agent.name)
            text = safe_text(error, os.environ)
            failure = ProviderError(
                f"The provider of {agent.name} raised {type(error).__name__}: {text}"
            )
        failed = await self._note(effect_id, failure, agent.model or "unknown")
        raise to_failure(failure, final=failed >= PROVIDER_TRIES)

    async def _note(self, effect_id: EffectId, error: PerdureError, name: str) -> int:
        """Record a failed attempt; returns how many there are. Deaths of workers are none."""
        attempt: dict[str, Any] = {"error": {"code": error.code, "message": error.message}}
        usage = error.usage if isinstance(error, ProviderError) else None
        if usage is not None:
            attempt.update(usage=usage, model=name)
        return len(await until_stored(lambda: self.store.note_attempt(effect_id, attempt)))


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


def _turn(agent: Agent, effect: Effect, grants: Collection[str]) -> ModelTurn:
    assert effect.outcome is not None
    assert effect.message is not None
    calls: list[CallPlan] = [
        plan_call(agent, index, call, grants)
        for index, call in enumerate(effect.message.get("toolCalls") or [])
    ]
    return ModelTurn(
        content=content_of(effect.message, effect.ref, effect.size),
        finish_reason=effect.outcome["finishReason"],
        model=effect.outcome["model"],
        calls=calls,
        usage=effect.outcome["usage"],
        response_id=effect.outcome["responseId"],
        header=effect.outcome.get("header"),
        history=effect.outcome.get("history"),
        attempts=effect.attempts,
    )
