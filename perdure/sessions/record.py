"""The record of a session: its header, and what it is doing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format.transcript import split_pending_turn
from perdure.checkpoint_bridge.log.events import AWAITING_APPROVAL
from perdure.checkpoint_bridge.log.headers import SessionHeader
from perdure.checkpoint_bridge.tables import sessions as stored

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

IDLE, RUNNING, FAILED = "idle", "running", "failed"


@dataclass(frozen=True)
class SessionRecord:
    """A session as it was when it was read."""

    header: SessionHeader
    agent: str
    title: str
    """The start of the first user message."""
    status: str
    """``idle``, ``running``, ``awaiting-approval``, ``failed`` (its last run; it can go on),
    ``ending`` or ``ended``. A run whose worker is gone counts as running."""
    through_sequence: int
    """How many events its log holds: the cursor behind the newest one."""
    updated_at: int
    """Unix milliseconds of the newest event."""
    turn: int
    """How many turns have begun."""
    approval_id: str | None = None
    last_turn: dict[str, Any] | None = None
    """How the newest ended turn ended: ``{kind, error?}``; ``None`` before that."""
    tool_errors: int = 0
    """Results of the newest turn that are errors."""
    open_tools: list[str] = field(default_factory=list)
    """Ids of the calls that have no result yet."""

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.header.id

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with camelCase keys; absent values have no key."""
        value = {
            "header": self.header.to_json(),
            "agentId": self.agent,
            "title": self.title,
            "status": self.status,
            "throughSequence": self.through_sequence,
            "updatedAt": self.updated_at,
            "turn": self.turn,
            "approvalId": self.approval_id,
            "lastTurn": self.last_turn,
            "toolErrors": self.tool_errors,
            "openTools": self.open_tools,
        }
        return {key: item for key, item in value.items() if item is not None}


def record_of(row: SessionRow, state: SessionState) -> SessionRecord:
    """The record of a stored session, whose log says ``state``."""
    ended = (state.last_end or {}).get("reason")
    pending = split_pending_turn(state.messages).pending_tool_calls
    return SessionRecord(
        header=SessionHeader.of(row),
        agent=row.agent,
        title=row.title,
        status=status_of(row),
        through_sequence=row.head,
        updated_at=row.updated_at,
        turn=state.turn,
        approval_id=row.approval_id if row.status == AWAITING_APPROVAL else None,
        last_turn=ended if state.turn else None,
        tool_errors=_errors_since_input(state.messages),
        open_tools=[str(call.get("id")) for call in pending],
    )


def status_of(row: SessionRow) -> str:
    """What a session is doing, as far as the store knows."""
    if row.phase != stored.OPEN:
        return row.phase
    if row.is_busy:
        return AWAITING_APPROVAL if row.status == AWAITING_APPROVAL else RUNNING
    ended = json.loads(row.last_end) if row.last_end else {}
    return FAILED if ended.get("kind") == "error" else IDLE


def _errors_since_input(messages: list[Any]) -> int:
    count = 0
    for message in reversed(messages):
        if not isinstance(message, dict) or message.get("role") == "user":
            break
        count += message.get("role") == "tool" and bool(message.get("isError"))
    return count
