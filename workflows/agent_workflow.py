"""``AgentWorkflow``: one run of a session, and the messages that it answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from perdure.activities.failures import to_failure
from perdure.activities.packing import packed, unpacked
from perdure.activities.wire import (
    ACTIVITY_CLOSE,
    ACTIVITY_OPEN,
    INPUT_REF,
    OPENING,
    QUERY_STATE,
    SIGNAL_REPORT,
    SIGNAL_RESOLVE,
    UPDATE_INPUT,
    UPDATE_RESOLVE,
    WORKFLOW,
    Carry,
    CloseResult,
    CloseTask,
    OpenRun,
    RunFacts,
    RunOutcome,
    RunRequest,
)
from perdure.checkpoint_bridge.errors import (
    ApprovalNotFoundError,
    PerdureError,
    SessionAwaitingApprovalError,
    SessionConflictError,
)
from perdure.checkpoint_bridge.log.events import ABORTED, AWAITING_APPROVAL, FINISHED, INLINE_LIMIT
from perdure.workflows.options import CLEANUP, HEARTBEAT, STORE_RETRY, STORE_TIMEOUT
from perdure.workflows.requests import (
    check_input,
    check_joining,
    input_digest,
    read_carry,
    read_decision,
    read_joining,
    read_report,
    read_request,
    to_json,
)
from perdure.workflows.run_loop import RollOverError, RunLoop
from perdure.workflows.session_log import now_ms
from perdure.workflows.turn_ends import TurnEndError
from perdure.workflows.turn_stopping import turn_stopping

_SHOWN_TEXT = 500
_SHOWN_ARGUMENTS = 500


@workflow.defn(name=WORKFLOW, sandboxed=False)
class AgentWorkflow:
    """One run of a session: workflow id = session id, so Temporal keeps it to one at a time."""

    def __init__(self) -> None:
        self._loop: RunLoop | None = None
        self._asked: RunRequest | None = None
        self._ended = False
        self._problem = ""

    @workflow.run
    async def run(self, request: Any = None, handed: Any = None, *more: Any) -> RunOutcome:
        """Run the agent.

        Args:
            request: ``{agent, session_id?, input, business_state?, metadata?, max_steps?}``.
            handed: by an earlier execution of the same run (a :class:`Carry`); not for clients.
            more: nothing; taken only to be refused with one clear message.
        """
        info = workflow.info()
        try:
            asked = read_request(request, info.workflow_id)
            carry = read_carry(handed, *more)
        except PerdureError as error:
            raise to_failure(error) from error
        self._asked = asked
        # The same for all executions of one run: they are one writer.
        run_id = info.first_execution_run_id
        stopped: asyncio.CancelledError | None = None
        if carry is None:
            facts, stopped = await self._opened(asked, run_id)
            finish = (facts.finish_reason or "stop") if facts.nothing_to_do else ""
            given = asked.input if asked.input_ref is None else {INPUT_REF: asked.input_ref}
            inputs = [input_digest(given)] if given else []
            carry = Carry(facts=facts, inputs=inputs, text=facts.text, finish_reason=finish)
        loop = self._loop = RunLoop(asked, run_id, carry)
        try:
            if stopped is not None and not carry.facts.nothing_to_do:
                raise stopped
            await loop.run()
            await turn_stopping(loop)
        except RollOverError:
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new(args=[request, loop.carry()])
        except (asyncio.CancelledError, ActivityError, TurnEndError) as error:
            await self._stop(loop, error)
        self._ended = True
        try:
            leftover = await self._leftover(loop)
        except (asyncio.CancelledError, ActivityError) as error:
            if not is_cancelled_exception(error):
                raise
            # It came when there was nothing left to cancel; and it comes only once.
            leftover = await self._leftover(loop)
        if leftover is not None:
            next_request = {"agent": asked.agent, INPUT_REF: leftover, "store": loop.facts.store}
            if asked.workflow_id_prefix:
                next_request["workflow_id_prefix"] = asked.workflow_id_prefix
            workflow.continue_as_new(args=[next_request])
        return RunOutcome(
            session_id=asked.session_id,
            run_id=run_id,
            status=FINISHED,
            finish_reason=loop.finish_reason,
            steps=loop.facts.step,
            text=loop.text[:INLINE_LIMIT],
            input_tokens=loop.facts.input_tokens,
            output_tokens=loop.facts.output_tokens,
        )

    async def _opened(
        self, asked: RunRequest, run_id: str
    ) -> tuple[RunFacts, asyncio.CancelledError | None]:
        """Open the run, also one that is cancelled by then: so it is closed as such.

        A worker can have died when it had opened the run and could not say so.
        """
        opening = asyncio.create_task(self._open(asked, run_id))
        try:
            return await asyncio.shield(opening), None
        except asyncio.CancelledError as stopped:
            await workflow.wait([opening], timeout=CLEANUP.total_seconds())
            if not opening.done():
                opening.cancel()  # the store is away, and nobody waits for it any more
                raise
            if opening.exception() is not None:
                raise
            return opening.result(), stopped

    async def _open(self, asked: RunRequest, run_id: str) -> RunFacts:
        try:
            facts = await workflow.execute_local_activity(
                ACTIVITY_OPEN,
                packed(
                    OpenRun(
                        session_id=asked.session_id,
                        run_id=run_id,
                        agent=asked.agent,
                        input=asked.input,
                        time_ms=now_ms(),
                        input_ref=asked.input_ref,
                        business_state=asked.business_state,
                        has_business_state=asked.has_business_state,
                        metadata=asked.metadata,
                        max_steps=asked.max_steps,
                        claim=asked.claim,
                        store=asked.store,
                        traceparent=asked.traceparent,
                        attempt=_attempt(),
                        delegated=asked.delegated,
                    )
                ),
                result_type=dict,
                start_to_close_timeout=STORE_TIMEOUT,
                retry_policy=STORE_RETRY,
            )
        except ActivityError as error:
            raise _failure(error) from error
        return unpacked(RunFacts, facts)

    async def _leftover(self, loop: RunLoop) -> str | None:
        await workflow.wait_condition(workflow.all_handlers_finished)
        return await loop.leftover()

    async def _stop(self, loop: RunLoop, error: BaseException) -> None:
        """Close what is open after a cancel or a failure, then end as what it was.

        Returns only when the log says that the run had finished before.
        """
        cancelled = is_cancelled_exception(error)
        loop.closing = True
        tasks = await loop.cancel_calls()
        if tasks:
            await workflow.wait(tasks, timeout=loop.children.patience.total_seconds())
        failure = None if cancelled else _failure(error)
        ended = error if isinstance(error, TurnEndError) else None
        interrupted = ended is not None and ended.kind == "interrupted"
        result: CloseResult = await workflow.execute_activity(
            ACTIVITY_CLOSE,
            CloseTask(
                session_id=loop.log.session_id,
                log_id=loop.log.log_id,
                run_id=loop.log.run_id,
                time_ms=now_ms(),
                reason=ABORTED if cancelled else ended.kind if ended else "error",
                error=None if failure is None or interrupted else _facts_of(failure),
                queued=loop.queue,
                answer_calls=cancelled or ended is not None,
                lost=ended is not None and ended.lost,
            ),
            result_type=CloseResult,
            start_to_close_timeout=STORE_TIMEOUT,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=STORE_RETRY,
        )
        if not result.finished:
            loop.attributes.tell(ABORTED if cancelled else "failed", [])
            raise error if failure is None else failure
        loop.finish_reason = result.finish_reason

    # -- messages ----------------------------------------------------------------------------

    @workflow.signal(
        name=SIGNAL_RESOLVE,
        description='Approve or reject: {"id": "…", "approved": true, "note": "…", "by": "…"}',
    )
    async def resolve_approval(self, decision: Any = None) -> None:
        """Take a decision; what is wrong with one is shown by the ``state`` query and the log."""
        await workflow.wait_condition(lambda: self._loop is not None)
        assert self._loop is not None
        try:
            read = read_decision(decision)
            if await self._loop.children.forward(read.id, decision):
                self._note("")
                return
            try:
                self._loop.approvals.check(read.id)
            except PerdureError:
                self._loop.approvals.keep_early(read)
                raise
            await self._loop.approvals.decide(read, self._loop.log, self._loop.agent)
            self._note("")
        except PerdureError as error:
            self._note(error.message)
            workflow.logger.warning("A decision was not taken: %s", error.message)

    @workflow.signal(
        name=SIGNAL_REPORT,
        description="Sent by the runs of sub-agents, not by people",
    )
    async def sub_agent_report(self, report: Any = None) -> None:
        """Hear what a sub-agent waits for."""
        await workflow.wait_condition(lambda: self._loop is not None)
        assert self._loop is not None
        try:
            read = read_report(report)
        except PerdureError as error:
            self._note(error.message)
            workflow.logger.warning("A report was not taken: %s", error.message)
            return
        if not await self._loop.children.take(read) or not read.waiting:
            return
        early = self._loop.approvals.early(read.id)
        if early is not None:
            await self._loop.children.forward(read.id, to_json(early))

    @workflow.update(
        name=UPDATE_RESOLVE,
        description='Approve or reject, and be told: {"id": "…", "approved": true}',
    )
    async def resolve_approval_now(self, decision: Any = None) -> dict[str, Any]:
        """Take a decision, or say why it cannot be taken."""
        assert self._loop is not None
        try:
            record = await self._loop.approvals.decide(
                read_decision(decision), self._loop.log, self._loop.agent
            )
        except PerdureError as error:
            raise to_failure(error) from error
        self._note("")
        return {"approved": record.approved, "note": record.note, "by": record.by}

    @resolve_approval_now.validator
    def _check_decision(self, decision: Any = None) -> None:
        try:
            loop, read = self._running(), read_decision(decision)
            below = loop.children.waiting.get(read.id)
            if below is not None:
                msg = f"Approval {read.id} waits in session {below.session_id!r}: decide it there."
                raise ApprovalNotFoundError(msg)
            loop.approvals.check(read.id)
        except PerdureError as error:
            raise to_failure(error) from error

    @workflow.update(
        name=UPDATE_INPUT,
        description="Send a text or messages to the run; they are queued behind pending calls",
    )
    async def send_input(self, value: Any = None) -> dict[str, Any]:
        """Queue input; input that the run has already is only acknowledged (a retry)."""
        loop = self._running()
        value, _ = read_joining(value)
        if not value:
            return {"queued": False}
        digest = input_digest(value)
        if digest in loop.inputs:
            return {"queued": False}
        loop.inputs.append(digest)
        loop.queue.append(value)
        return {"queued": True}

    @send_input.validator
    def _check_input(self, value: Any = None) -> None:
        try:
            loop = self._running()
            value, options = read_joining(value)
            if value or not options:
                check_input(value)
            retry = not value or input_digest(value) in loop.inputs
            assert self._asked is not None
            check_joining(self._asked, options, store=loop.facts.store, retry=retry)
            waiting = loop.waiting_id
            if waiting is not None and not retry:
                msg = f"The session waits for approval {waiting}; resolve it before new input."
                raise SessionAwaitingApprovalError(
                    msg, session_id=loop.log.session_id, approval_id=waiting
                )
        except PerdureError as error:
            raise to_failure(error) from error

    def _note(self, problem: str) -> None:
        """Show what was wrong with what was sent: a signal gives its sender no answer."""
        self._problem = problem
        if self._loop is not None:
            self._loop.problem = problem
            self._loop.show()

    def _running(self) -> RunLoop:
        if self._loop is None or self._ended:
            word = "ending" if self._ended else "opening"
            msg = f"The run of session {workflow.info().workflow_id!r} is {word}; try again."
            raise SessionConflictError(msg)
        return self._loop

    @workflow.query(name=QUERY_STATE, description="What the run is doing and waits for")
    def state(self) -> dict[str, Any]:
        """Status, step, what waits, usage and the last text; bounded in size."""
        loop = self._loop
        if loop is None:
            return {"status": OPENING, "problem": self._problem}
        status = "running"
        if loop.finish_reason:
            status = FINISHED
        elif loop.waiting_id is not None and not loop.closing:
            status = AWAITING_APPROVAL
        return {
            "status": status,
            "session_id": loop.log.session_id,
            "run_id": loop.log.run_id,
            "agent": loop.agent,
            "step": loop.facts.step,
            "max_steps": loop.facts.max_steps,
            "pending_approvals": [] if loop.closing else _pending(loop),
            "queued": len(loop.queue),
            "usage": {
                "inputTokens": loop.facts.input_tokens,
                "outputTokens": loop.facts.output_tokens,
            },
            "last_text": loop.text[:_SHOWN_TEXT],
            "finish_reason": loop.finish_reason,
            "problem": self._problem,
        }


def _pending(loop: RunLoop) -> list[dict[str, Any]]:
    """What waits for a person, here and in sub-agents, as the ``state`` query shows it."""
    waiting = loop.approvals.waiting
    pending: list[dict[str, Any]] = []
    if waiting is not None:
        arguments = waiting.arguments or ""
        if waiting.shown is not None:
            arguments = json.dumps(waiting.shown, ensure_ascii=False)
        pending.append(
            {
                "id": waiting.approval_id,
                "tool_call_id": waiting.call_id,
                "tool_name": waiting.tool,
                "arguments": arguments[:_SHOWN_ARGUMENTS],
                "deciding": loop.approvals.deciding == waiting.approval_id,
            }
        )
    pending += [
        {
            "id": each.id,
            "tool_call_id": each.tool_call_id,
            "tool_name": each.tool_name,
            "arguments": each.arguments or "",
            "session_id": each.session_id,
            "path": each.path,
            "deciding": each.id in loop.children.forwarding,
        }
        for each in loop.children.waiting.values()
    ]
    return pending


def _attempt() -> int:
    """How often Temporal has begun this: by a retry policy, or since somebody reset the run.

    Temporal's reset makes an execution of its own of a run's beginning, which continues none.
    """
    info = workflow.info()
    was_reset = info.run_id != info.first_execution_run_id and info.continued_run_id is None
    return info.attempt + was_reset


def _failure(error: BaseException) -> ApplicationError:
    """The run's own failure, made of the activity's: same message, type and facts."""
    if isinstance(error, TurnEndError):
        return to_failure(error.error)
    cause = error.cause if isinstance(error, ActivityError) else None
    if isinstance(cause, ApplicationError):
        return ApplicationError(cause.message, *cause.details, type=cause.type, non_retryable=True)
    return ApplicationError(str(cause or error), type="RunFailedError", non_retryable=True)


def _facts_of(failure: ApplicationError) -> dict[str, Any]:
    wire = failure.details[0] if failure.details else None
    if not isinstance(wire, dict):
        return {"code": failure.type, "message": failure.message}
    facts = {"code": wire.get("code"), "message": failure.message}
    retryable = (wire.get("facts") or {}).get("retryable")
    return facts if retryable is None else {**facts, "retryable": retryable}
