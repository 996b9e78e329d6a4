"""Approvals inside a run: what waits, and the first decision that counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio import workflow

from perdure.activities.wire import ACTIVITY_DECIDE, Decision, DecisionRecord, DecisionTask
from perdure.checkpoint_bridge.errors import (
    ApprovalDecidedError,
    ApprovalNotFoundError,
    ConfigurationError,
    error_from_wire,
)
from perdure.checkpoint_bridge.format import ids
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.answers import grant_of
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.workflows.options import HEARTBEAT, STORE_RETRY, STORE_TIMEOUT
from perdure.workflows.session_log import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.activities.wire import CallPlan, RunFacts
    from perdure.workflows.children import Upward
    from perdure.workflows.session_log import SessionLog

    IsLong = Callable[[], bool]

_EARLY_LIMIT = 20
_SUMMARY_LENGTH = 60

EXPIRED_NOTE = "Nobody decided in time."
UNKNOWN_QUESTION = (
    "This call was cut short, and it may have happened. Approve to run it again "
    "with the same idempotency key, reject to give up, or supply the verified result."
)


class Approvals:
    """Takes decisions for a run, one at a time."""

    def __init__(
        self,
        decided: dict[str, DecisionRecord],
        on_change: Callable[[], None],
        upward: Upward,
    ) -> None:
        self.decided = decided
        self._on_change = on_change
        self._upward = upward
        self.waiting: CallPlan | None = None
        """The call that waits; its ``approval_id`` is set."""
        self.deciding: str | None = None
        """The approval that somebody decided, while the store is not known to have it."""
        self._early: dict[str, Decision] = {}
        self._lock = asyncio.Lock()

    @property
    def waiting_id(self) -> str | None:
        """The id of the approval that waits."""
        return self.waiting.approval_id if self.waiting else None

    def check(self, approval_id: str) -> None:
        """Whether a decision on this approval can still be taken.

        Raises:
            ApprovalDecidedError: another decision came first.
            ApprovalNotFoundError: nothing of this id waits here.
        """
        record = self.decided.get(approval_id)
        if record is not None:
            raise ApprovalDecidedError.of(approval_id, decision_of(record))
        if approval_id != self.waiting_id:
            msg = f"No approval {approval_id!r} waits in session {workflow.info().workflow_id!r}."
            raise ApprovalNotFoundError(msg)

    def keep_early(self, decision: Decision) -> None:
        """Keep a decision whose approval is not announced yet: it can be visible before that."""
        if len(self._early) < _EARLY_LIMIT:
            self._early.setdefault(decision.id, decision)

    def early(self, approval_id: str) -> Decision | None:
        """The decision that came before its approval was announced, if one did."""
        return self._early.pop(approval_id, None)

    async def decide(self, decision: Decision, log: SessionLog, agent: str) -> DecisionRecord:
        """Take a decision. The store remembers the first one, whichever way it came.

        It is an ordinary activity on purpose: when it runs, the signal or update that brought
        the decision is in the history, so no lost workflow task can turn it into another.

        Raises:
            ApprovalError: it cannot be taken, or another one counts.
            PerdureError: the agent that would act on it is not the right one.
        """
        async with self._lock:
            self.check(decision.id)
            if decision.has_result and (self.waiting is None or self.waiting.reason is None):
                msg = "A result can only be supplied for a call whose outcome is unknown."
                raise ConfigurationError(msg, field="result")
            if decision.scope is not None and self.waiting and self.waiting.reason is not None:
                msg = "A call whose outcome is unknown is decided on its own, not for the session."
                raise ConfigurationError(msg, field="scope")
            self.deciding = decision.id
            try:
                record = await self._record(decision, log, agent)
            finally:
                self.deciding = None
            if record.error is not None:
                raise error_from_wire(record.error)
            self.decided[decision.id] = record
        if not record.mine:
            raise ApprovalDecidedError.of(decision.id, decision_of(record))
        return record

    async def _record(self, decision: Decision, log: SessionLog, agent: str) -> DecisionRecord:
        record: DecisionRecord = await workflow.execute_activity(
            ACTIVITY_DECIDE,
            DecisionTask(
                session_id=log.session_id,
                log_id=log.log_id,
                run_id=log.run_id,
                agent=agent,
                approval_id=decision.id,
                approved=decision.approved,
                time_ms=now_ms(),
                note=decision.note,
                by=decision.by,
                result=decision.result,
                has_result=decision.has_result,
                scope=decision.scope,
            ),
            result_type=DecisionRecord,
            start_to_close_timeout=STORE_TIMEOUT,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=STORE_RETRY,
            summary="approve" if decision.approved else "reject",
        )
        return record

    async def ask(
        self, plan: CallPlan, facts: RunFacts, log: SessionLog, agent: str, is_long: IsLong
    ) -> DecisionRecord | None:
        """Wait for the decision on a call, and write it into the log.

        Returns:
            The decision that counts; ``None`` when the history became too long to wait on. The
            plan keeps its ``approval_id`` then, and is asked about again where the run goes on.
        """
        asked, began = plan.approval_id is not None, now_ms()
        approval_id = plan.approval_id or ids.approval_id(log.run_id, log.log_id, log.head)
        plan.approval_id = approval_id
        self.waiting = plan
        if not asked:
            await self._request(plan, approval_id, facts, log, agent)
        self._on_change()
        await self._upward.asks(plan)
        early = self.early(approval_id)
        if early is not None:
            await self.decide(early, log, agent)
        await self._wait(plan, log, agent, is_long)
        if facts.deadline_ms:
            # The turn's time stands still while a person thinks.
            facts.deadline_ms += now_ms() - began
        record = self.decided.get(approval_id)
        if record is None:
            return None
        self.waiting = plan.approval_id = plan.expires_ms = None
        self._on_change()
        await self._upward.decided(approval_id)
        data: dict[str, Any] = {"id": approval_id, **decision_of(record)}
        if plan.reason is not None:
            data["reason"] = plan.reason
        if plan.digest is not None:
            data["digest"] = plan.digest
        events = [NewEvent(ev.APPROVAL_DECIDED, data)]
        if record.drift is not None:
            events.append(NewEvent(ev.AGENT_DRIFT, record.drift))
        await log.append([*events, *grant_of(plan.tool, data)])
        return record

    async def _wait(self, plan: CallPlan, log: SessionLog, agent: str, is_long: IsLong) -> None:
        approval_id = plan.approval_id or ""
        left = None
        if plan.expires_ms is not None:
            left = timedelta(milliseconds=max(0, plan.expires_ms - now_ms()))
        try:
            await workflow.wait_condition(
                lambda: approval_id in self.decided or is_long(),
                timeout=left,
                timeout_summary=f"approval of {plan.tool} expires"[:_SUMMARY_LENGTH],
            )
        except TimeoutError:
            expired = Decision(approval_id, approved=False, note=EXPIRED_NOTE, by="expiry")
            with contextlib.suppress(ApprovalDecidedError):
                await self.decide(expired, log, agent)

    async def _request(
        self, plan: CallPlan, approval_id: str, facts: RunFacts, log: SessionLog, agent: str
    ) -> None:
        pending: dict[str, Any] = {
            "id": approval_id,
            "toolCallId": plan.call_id,
            "toolName": plan.tool,
            "agentId": agent,
        }
        if len(self._upward.path) > 1:
            pending["subagentPath"] = self._upward.path
        if plan.shown is not None:
            pending["args"] = plan.shown
        elif plan.arguments is not None:
            pending["args"] = json.loads(plan.arguments) if plan.arguments.strip() else {}
        if plan.reason is not None:
            pending["kind"] = plan.reason
            pending["question"] = UNKNOWN_QUESTION
        data = {
            "id": approval_id,
            "seq": facts.call_seq,
            "index": plan.index,
            "pending": pending,
        }
        if plan.digest is not None:
            data["digest"] = plan.digest
        if facts.approval_ttl:
            plan.expires_ms = now_ms() + int(facts.approval_ttl * 1000)
        await log.append(
            [NewEvent(ev.APPROVAL_REQUESTED, data)],
            [NewSave(1, ev.AWAITING_APPROVAL, ev.AWAITING_APPROVAL, approval_id)],
        )


def decision_of(record: DecisionRecord) -> dict[str, Any]:
    """A decision as events and results have it: ``{approved, note?, by?, result?, scope?}``."""
    decision: dict[str, Any] = {"approved": record.approved}
    if record.note is not None:
        decision["note"] = record.note
    if record.by is not None:
        decision["by"] = record.by
    if record.has_result:
        decision["result"] = record.result
    if record.scope is not None:
        decision["scope"] = record.scope
    return decision
