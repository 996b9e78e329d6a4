"""Runs the local calls of an answer where it arrived: in the model's own activity.

So they need no dispatch of their own. Ledger, log, ``recovery`` and deadlines are those of other
calls. Only the activity's first attempt does this: what it leaves, because it died or because
nobody knows whether a call happened, the workflow dispatches as ordinary calls
(``docs/decisions/0016``).
"""

from __future__ import annotations

import asyncio
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from perdure.activities.liveness import until_stored
from perdure.activities.wire import Content, ModelTask, ToolOutcome, ToolTask
from perdure.checkpoint_bridge.log.answers import result_entry, step_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.activities.effect_time import EffectTime
    from perdure.activities.tool_call import ToolCall
    from perdure.activities.wire import CallPlan
    from perdure.agent import Agent

LOCAL_CALLS = 5
"""Local calls of one answer that run here; the others are ordinary activities. So the model's
activity ends within some seconds of the answer."""


class Answered:
    """An answer that is in the log, and the calls of it that have their results there, too."""

    def __init__(
        self, task: ModelTask, message: dict[str, Any], seq: int, head: int, calls: list[CallPlan]
    ) -> None:
        self.task = task
        self.message = message
        self.seq = seq
        """Its place in the log."""
        self.head = head
        """Length of the log with all that is known of it."""
        self.calls = calls
        """Those without a result."""
        self.results: list[Content] = []
        self.cancelled = False
        """The run was, so no further call begins."""

    def done(self, plan: CallPlan, content: Content) -> None:
        """A call has its result in the log."""
        self.calls.remove(plan)
        self.results.append(content)


async def run_local_calls(
    agent: Agent, tools: ToolCall, answered: Answered, time: EffectTime
) -> None:
    """Run the calls at the beginning of an answer that are local and wait for nobody.

    When the run is cancelled meanwhile, those that have begun may finish: they are quick, and what
    they did is known then.

    Raises:
        PropagatingToolError: a tool chose to fail the run.
    """
    plans = list(
        islice(takewhile(lambda plan: _is_local(agent, plan), answered.calls), LOCAL_CALLS)
    )
    if not plans:
        return
    running = asyncio.ensure_future(_run(agent, tools, answered, plans, time))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        answered.cancelled = True
        await asyncio.gather(running, return_exceptions=True)
        raise


def _is_local(agent: Agent, plan: CallPlan) -> bool:
    return plan.action == "run" and plan.child is None and agent.tools[plan.tool].local


async def _run(
    agent: Agent,
    tools: ToolCall,
    answered: Answered,
    plans: Sequence[CallPlan],
    time: EffectTime,
) -> None:
    alone = len(plans) == 1
    limit = asyncio.Semaphore(agent.tool_concurrency or len(plans))

    async def run(plan: CallPlan) -> ToolOutcome:
        async with limit:
            if answered.cancelled:
                return ToolOutcome(uncertain=True)
            return await tools.outcome(_task(agent, answered, plan, time, alone=alone))

    outcomes = await asyncio.gather(*map(run, plans), return_exceptions=True)
    known: list[tuple[CallPlan, ToolOutcome]] = []
    for plan, outcome in zip(plans, outcomes, strict=True):
        if isinstance(outcome, BaseException) or outcome.uncertain:
            break
        known.append((plan, outcome))
    if alone and known:
        # It has put itself into the log, unless the session is another run's by now.
        ((plan, outcome),) = known
        if outcome.head is not None:
            answered.head = outcome.head
            answered.done(plan, outcome.content)
    elif known:
        await _record(tools, answered, known, time)
    for each in outcomes:
        if isinstance(each, BaseException):
            raise each


def _task(
    agent: Agent, answered: Answered, plan: CallPlan, time: EffectTime, *, alone: bool
) -> ToolTask:
    task, tool = answered.task, agent.tools[plan.tool]
    function = answered.message["toolCalls"][plan.index].get("function") or {}
    return ToolTask(
        session_id=task.session_id,
        log_id=task.log_id,
        run_id=task.run_id,
        agent=task.agent,
        seq=answered.seq,
        index=plan.index,
        call_id=plan.call_id,
        tool=plan.tool,
        arguments=str(function.get("arguments") or ""),
        timeout=agent.limits.tool_seconds(tool.timeout),
        time_ms=time.now_ms(),
        head=answered.head if alone else None,
        turn=task.turn,
        step=task.step,
        ends_step=len(answered.calls) == 1,
        recovery=agent.recovery_of(tool),
        trace=task.trace,
    )


async def _record(
    tools: ToolCall,
    answered: Answered,
    known: Sequence[tuple[CallPlan, ToolOutcome]],
    time: EffectTime,
) -> None:
    """Put the results of several calls into the log, in call order."""
    task = answered.task
    last = step_end(task.turn, task.step) if len(known) == len(answered.calls) else None
    entry = result_entry(
        [
            (answered.seq, plan.index, outcome.content.message, outcome.content.ref)
            for plan, outcome in known
        ],
        last,
    )
    batch = time.batch(task, answered.head, entry)
    answered.head = await until_stored(lambda: tools.store.append(batch))
    for plan, outcome in known:
        answered.done(plan, outcome.content)
