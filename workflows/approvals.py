"""Approvals inside a run: what waits, and the first decision that counts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from temporalio import workflow

from perdure.activities.wire import ACTIVITY_DECIDE, Decision, DecisionRecord, DecisionTask
from perdure.checkpoint_bridge.errors import (
    ApprovalDecidedError,
    ApprovalNotFoundError,
    error_from_wire,
)
from perdure.workflows.options import HEARTBEAT, STORE_RETRY, STORE_TIMEOUT
from perdure.workflows.session_log import now_ms

if TYPE_CHECKING:
    from perdure.activities.wire import CallPlan
    from perdure.workflows.session_log import SessionLog

_EARLY_LIMIT = 20


class Approvals:
    """Takes decisions for a run, one at a time."""

    def __init__(self, decided: dict[str, DecisionRecord] | None = None) -> None:
        self.decided: dict[str, DecisionRecord] = decided or {}
        self.waiting: CallPlan | None = None
        """The call that waits; its ``approval_id`` is set."""
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
            raise decided_error(approval_id, record)
        if approval_id != self.waiting_id:
            msg = f"No approval {approval_id!r} waits in session {workflow.info().workflow_id!r}."
            raise ApprovalNotFoundError(msg)

    def keep_early(self, decision: Decision) -> None:
        """Keep a decision whose approval is not announced yet: it can be visible before that."""
        if len(self._early) < _EARLY_LIMIT:
            self._early.setdefault(decision.id, decision)

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
                ),
                result_type=DecisionRecord,
                start_to_close_timeout=STORE_TIMEOUT,
                heartbeat_timeout=HEARTBEAT,
                retry_policy=STORE_RETRY,
                summary="approve" if decision.approved else "reject",
            )
            if record.error is not None:
                raise error_from_wire(record.error)
            self.decided[decision.id] = record
        if not record.mine:
            raise decided_error(decision.id, record)
        return record

    def take_early(self) -> Decision | None:
        """The decision that came before its approval was announced, if one did."""
        return self._early.pop(self.waiting_id or "", None)


def decided_error(approval_id: str, record: DecisionRecord) -> ApprovalDecidedError:
    """The answer to whoever comes second."""
    word = "approved" if record.approved else "rejected"
    by = f" by {record.by}" if record.by else ""
    decision = {"approved": record.approved, "note": record.note, "by": record.by}
    msg = f"Approval {approval_id} was already {word}{by}."
    return ApprovalDecidedError(
        msg, decision={key: value for key, value in decision.items() if value is not None}
    )
