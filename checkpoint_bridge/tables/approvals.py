"""Approvals as rows: what waits for a decision, and the decision that counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from perdure.checkpoint_bridge.log.events import dump
from perdure.checkpoint_bridge.log.lineage import is_within
from perdure.checkpoint_bridge.tables.schema import approvals

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One approval; ``decision`` is ``{approved, note?, by?}``, or ``{closed}`` at a run's end."""

    id: str
    log_id: int
    session_id: str
    run_id: str
    seq: int
    call_index: int
    pending: dict[str, Any]
    created_at: int
    decided_at: int | None
    decision: dict[str, Any] | None


def find_approval(connection: Connection, approval_id: str) -> ApprovalRow | None:
    """The row of an approval, or ``None``."""
    row = (connection.execute(select(approvals).where(approvals.c.id == approval_id))).one_or_none()
    return None if row is None else _row(row)


def pending_approvals(connection: Connection, session_id: str | None) -> list[ApprovalRow]:
    """What waits for a decision, oldest first: of all sessions, or of one and its sub-agents."""
    query = (
        select(approvals)
        .where(approvals.c.decided_at.is_(None))
        .order_by(approvals.c.created_at, approvals.c.id)
    )
    if session_id is None:
        return [_row(row) for row in (connection.execute(query)).all()]
    column = approvals.c.session_id
    below = column.startswith(f"{session_id}.", autoescape=True)
    rows = [_row(row) for row in connection.execute(query.where((column == session_id) | below))]
    return [row for row in rows if is_within(row.session_id, session_id)]


def decide_approval(
    connection: Connection, approval_id: str, decision: dict[str, Any], time_ms: int
) -> bool:
    """Take a decision unless one was taken; returns whether this one counts."""
    result = connection.execute(
        update(approvals)
        .where(approvals.c.id == approval_id, approvals.c.decided_at.is_(None))
        .values(decided_at=time_ms, decision=dump(decision))
    )
    return bool(result.rowcount == 1)


def close_approvals(connection: Connection, log_id: int, reason: str, time_ms: int) -> None:
    """Close what still waits in a log, since nobody will act on a decision any more."""
    connection.execute(
        update(approvals)
        .where(approvals.c.log_id == log_id, approvals.c.decided_at.is_(None))
        .values(decided_at=time_ms, decision=dump({"closed": reason}))
    )


def _row(row: Any) -> ApprovalRow:
    values = dict(row._mapping)  # noqa: SLF001 - public in SQLAlchemy
    values["pending"] = json.loads(row.pending)
    values["decision"] = None if row.decision is None else json.loads(row.decision)
    return ApprovalRow(**values)
