"""Sub-agents of a run: child workflows, what they wait for, and their answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio import workflow
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

from perdure.activities.wire import (
    ACTIVITY_CHILD,
    PREVIEW_LENGTH,
    SIGNAL_REPORT,
    SIGNAL_RESOLVE,
    AnswerTask,
    CallPlace,
    Content,
    Delegation,
    Report,
    RunOutcome,
    ToolOutcome,
)
from perdure.checkpoint_bridge.format.tool_errors import (
    CANCELLED,
    EXECUTION,
    NOT_RUN,
    UNKNOWN_OUTCOME,
    tool_error_result,
)
from perdure.checkpoint_bridge.format.tool_results import child_result, error_result
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import INLINE_LIMIT, NewEvent, NewSave
from perdure.checkpoint_bridge.log.lineage import ID_LIMIT, child_session_id, is_within
from perdure.workflows.child_run import run_child
from perdure.workflows.options import CLEANUP, HEARTBEAT, STORE_RETRY, STORE_TIMEOUT
from perdure.workflows.session_log import now_ms
from perdure.workflows.turn_ends import is_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.activities.wire import CallPlan, RunFacts, RunRequest
    from perdure.workflows.session_log import SessionLog

_SUMMARY_LENGTH = 60
_SHOWN_ARGUMENTS = 500
_FIRST_WAIT = timedelta(milliseconds=200)
_LONGEST_WAIT = timedelta(minutes=1)
_A_MOMENT = timedelta(milliseconds=1)


class Upward:
    """Tells the workflow that started a run what the run waits for."""

    def __init__(self, asked: RunRequest) -> None:
        self._session_id = asked.session_id
        self._delegated = asked.delegated or Delegation()
        self.path = [*self._delegated.path, asked.agent]
        """The agents from the top one down to this run's own."""

    async def asks(self, plan: CallPlan) -> None:
        """A call of this run waits for a decision."""
        arguments = plan.arguments
        if plan.shown is not None:
            arguments = json.dumps(plan.shown, ensure_ascii=False)
        report = Report(
            id=plan.approval_id or "",
            session_id=self._session_id,
            waiting=True,
            path=self.path,
            tool_name=plan.tool,
            tool_call_id=plan.call_id,
            arguments=None if arguments is None else arguments[:_SHOWN_ARGUMENTS],
        )
        await self.send(report)

    async def decided(self, approval_id: str) -> None:
        """A decision was taken, so the run goes on."""
        await self.send(Report(id=approval_id, session_id=self._session_id, waiting=False))

    async def send(self, report: Report) -> None:
        """Send a report of this run's own or of one below it; nobody may be there to hear it."""
        if not self._delegated.report_to:
            return
        above = workflow.get_external_workflow_handle(self._delegated.report_to)
        try:
            await above.signal(self._delegated.report_as, asdict(report))
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.info("Nobody above hears of approval %s: %s", report.id, error)


class Children:
    """The sub-agents that a run has started and that have not answered yet."""

    def __init__(
        self,
        asked: RunRequest,
        facts: RunFacts,
        log: SessionLog,
        on_change: Callable[[], None],
    ) -> None:
        self._facts = facts
        self._log = log
        self._prefix = asked.workflow_id_prefix
        self._on_change = on_change
        self.upward = Upward(asked)
        self.waiting: dict[str, Report] = {}
        """What they wait for, by approval, in order of arrival."""
        self.forwarding: set[str] = set()
        """Of these, the decided ones whose decision is on its way down."""
        self._running: set[str] = set()
        self._saved = ""
        """The approval that the newest save names."""
        self._heard = False
        self._since_ms = 0

    # -- calls -------------------------------------------------------------------------------

    async def run(self, plan: CallPlan) -> ToolOutcome:
        """Run the agent that a call asks for, and give its answer as the call's result.

        The session's id follows from the call, so a run that is opened again finds the agent's
        session: it goes on where it was, or gives the answer that it came to.

        Raises:
            ChildWorkflowError: the run was cancelled, and with it this one.
        """
        facts = self._facts
        agent = plan.child or ""
        if facts.depth >= facts.max_depth:
            text = (
                f"The agent {agent} was not called: agents may call each other at most "
                f"{facts.max_depth} deep. Do it without."
            )
            return _error(plan, NOT_RUN, text, "DelegationDepthExceeded")
        place = CallPlace(self._log.log_id, facts.call_seq, plan.index)
        session_id = child_session_id(self._log.session_id, **asdict(place))
        if len(session_id) > ID_LIMIT:
            text = (
                f"The agent {agent} was not called: its session id would be longer than "
                f"{ID_LIMIT} characters."
            )
            return _error(plan, NOT_RUN, text, "SessionIdInvalidError")
        self._running.add(session_id)
        try:
            outcome = await self._answer(plan, session_id, self._request(plan, session_id, place))
        except (ChildWorkflowError, asyncio.CancelledError) as error:
            # Not in a `finally`: a worker that forgets a run throws its coroutines away, and then
            # there is no workflow to tell.
            self._settled(session_id)
            if isinstance(error, asyncio.CancelledError):
                raise
            if is_cancelled_exception(error) and is_cancelled():
                raise
            return _failed(plan, error.cause)
        self._settled(session_id)
        return await self._result(plan, session_id, outcome)

    def _request(self, plan: CallPlan, session_id: str, place: CallPlace) -> dict[str, Any]:
        delegated = Delegation(
            report_to=workflow.info().workflow_id,
            report_as=SIGNAL_REPORT,
            path=self.upward.path,
            max_depth=self._facts.max_depth,
            call=place if plan.arguments is None else None,
            once=True,
        )
        request: dict[str, Any] = {
            "agent": plan.child,
            "session_id": session_id,
            "store": self._facts.store,
        }
        if plan.arguments is not None:
            request["input"] = json.loads(plan.arguments)["input"]
        if self._prefix:
            request["workflow_id_prefix"] = self._prefix
        if self._facts.trace:
            request["traceparent"] = self._facts.trace
        request["delegated"] = asdict(delegated)
        return request

    async def _answer(self, plan: CallPlan, session_id: str, request: dict[str, Any]) -> RunOutcome:
        wait = _FIRST_WAIT
        while True:
            try:
                outcome = await run_child(
                    request,
                    id=self._prefix + session_id,
                    # It ends as we do, and stays as open as our own session does: an approval
                    # that it waits for can still be decided. A cancel is passed on and awaited.
                    parent_close_policy=workflow.ParentClosePolicy.TERMINATE,
                    static_summary=f"{plan.child}: {plan.call_id}"[:_SUMMARY_LENGTH],
                )
            except WorkflowAlreadyStartedError:
                # Left over from an execution of ours that was terminated just now, or somebody
                # runs the session by hand: its end is awaited, and then it says what it answered.
                if is_cancelled():
                    raise asyncio.CancelledError from None
                await workflow.sleep(wait, summary=f"{plan.child} runs already")
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                return outcome

    async def _result(self, plan: CallPlan, session_id: str, outcome: RunOutcome) -> ToolOutcome:
        if _is_whole(outcome.text):
            message = child_result(
                plan.call_id, plan.tool, plan.child or "", outcome.finish_reason, outcome.text
            )
            return ToolOutcome(content=Content(message=message), is_error="isError" in message)
        found: ToolOutcome = await workflow.execute_activity(
            ACTIVITY_CHILD,
            AnswerTask(child_session=session_id, call_id=plan.call_id, tool=plan.tool),
            result_type=ToolOutcome,
            start_to_close_timeout=STORE_TIMEOUT,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=STORE_RETRY,
            summary=f"answer of {plan.child}"[:_SUMMARY_LENGTH],
        )
        return found

    @property
    def patience(self) -> timedelta:
        """How long a cancelled run waits for its calls: those below wait for theirs."""
        below = self._facts.max_depth - self._facts.depth if self._running else 0
        return CLEANUP * (1 + below)

    # -- what they wait for ------------------------------------------------------------------

    async def take(self, report: Report) -> bool:
        """Take a report of a sub-agent, or of one below it; returns whether it is one of ours."""
        if not any(is_within(report.session_id, each) for each in self._running):
            return False
        if report.waiting:
            self._heard = False
            if not self.waiting:
                self._since_ms = now_ms()
            self.waiting[report.id] = report
            self._on_change()
        else:
            self._drop([report.id])
        await self.upward.send(report)
        return True

    async def forward(self, approval_id: str, decision: dict[str, Any]) -> bool:
        """Send a decision on to the run that waits for it; returns whether there is one."""
        report = self.waiting.get(approval_id)
        if report is None:
            return False
        below = workflow.get_external_workflow_handle(self._prefix + report.session_id)
        self.forwarding.add(approval_id)
        try:
            await below.signal(SIGNAL_RESOLVE, decision)
        finally:
            self.forwarding.discard(approval_id)
        return True

    @property
    def must_save(self) -> bool:
        """Whether a save has to say that the run waits for what a sub-agent waits for."""
        return next(iter(self.waiting), self._saved) != self._saved

    def saved_results(self) -> None:
        """The newest save says that the run goes on; what still waits is to be said again."""
        self._saved = ""

    async def save_pause(self) -> None:
        """Go one step towards the save of a pause; call it again while :attr:`must_save`.

        What a report brings may not be written before the history holds the report, and what
        the history held before has its place in the log before it (docs/decisions/0004). So the
        first step only lets the history catch up, and the loop then writes what is there.
        """
        if not self._heard:
            await workflow.sleep(_A_MOMENT, summary="a sub-agent waits")
            self._heard = True
            return
        report = next(iter(self.waiting.values()))
        self._saved = report.id
        data = {
            "id": report.id,
            "session": report.session_id,
            "path": report.path,
            "toolName": report.tool_name,
        }
        await self._log.append(
            [NewEvent(ev.SUBAGENT_PAUSED, data)],
            [NewSave(1, ev.AWAITING_APPROVAL, ev.AWAITING_APPROVAL, report.id)],
            ordinary=True,
        )

    def _settled(self, session_id: str) -> None:
        self._running.discard(session_id)
        reports = self.waiting.values()
        self._drop([each.id for each in reports if is_within(each.session_id, session_id)])

    def _drop(self, approval_ids: list[str]) -> None:
        waited = bool(self.waiting)
        for approval_id in approval_ids:
            self.waiting.pop(approval_id, None)
        if waited and not self.waiting and self._facts.deadline_ms:
            # A turn's time stands still while people think.
            self._facts.deadline_ms += now_ms() - self._since_ms
        if approval_ids:
            self._on_change()


def _is_whole(text: str) -> bool:
    """Whether an outcome surely has all of the answer; a look into the store is harmless."""
    is_preview = len(text) == PREVIEW_LENGTH and text.endswith("…")
    return len(text) < INLINE_LIMIT and not is_preview


def _failed(plan: CallPlan, cause: BaseException | None) -> ToolOutcome:
    """The error result of a call whose agent gave no answer."""
    agent = plan.child
    if isinstance(cause, ApplicationError):
        wire = cause.details[0] if cause.details else None
        message = wire.get("message") if isinstance(wire, dict) else None
        text = f"The agent {agent} failed: {message or cause.message}"
        return _error(plan, EXECUTION, text, cause.type or "RunFailedError")
    if isinstance(cause, CancelledError):
        text = f"The agent {agent} was cancelled before it answered; it may have had effects."
        return _error(plan, CANCELLED, text, "SubagentCancelledError")
    text = f"The agent {agent} was ended before it answered; it may have had effects."
    return _error(plan, UNKNOWN_OUTCOME, text, "SubagentEndedError")


def _error(plan: CallPlan, kind: str, text: str, name: str) -> ToolOutcome:
    error = tool_error_result(kind, plan.tool, text, error=name)
    message = error_result(plan.call_id, plan.tool, error)
    return ToolOutcome(content=Content(message=message), is_error=True)
