"""What clients get: results of runs, session list entries, forks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format.checkpoint import RunUsage

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, StepUsage
    from perdure.checkpoint_bridge.format.messages import Message, ToolCall
    from perdure.checkpoint_bridge.tables.sessions import SessionRow


FAILED = "failed"
CANCELLED = "cancelled"
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class RunResult:
    """A run at its end, or at a pause for an approval."""

    text: str
    """The last answer's text; empty while there is none."""
    finish_reason: str
    """``stop``, ``awaiting-approval``, ``max-steps``, ``aborted``, … of the documented format."""
    session_id: str
    run_id: str
    steps: int
    """Model responses in this run."""
    approval_id: str | None = None
    """Set when the run waits for a decision."""
    messages: list[Message] = field(default_factory=list, repr=False)
    """The whole conversation."""
    tool_calls: list[ToolCall] = field(default_factory=list, repr=False)
    """Every call that this run's model turns asked for, in order."""
    usage: RunUsage = field(default_factory=RunUsage, repr=False)
    step_usage: list[StepUsage] = field(default_factory=list, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with the format's camelCase keys; absent values have no key."""
        value: dict[str, Any] = {
            "sessionId": self.session_id,
            "runId": self.run_id,
            "finishReason": self.finish_reason,
            "text": self.text,
            "steps": self.steps,
        }
        if self.approval_id is not None:
            value["approvalId"] = self.approval_id
        value["toolCalls"] = [call.to_json() for call in self.tool_calls]
        value["usage"] = self.usage.to_json()
        value["stepUsage"] = [usage.to_json() for usage in self.step_usage]
        value["messages"] = [message.to_json() for message in self.messages]
        return value


@dataclass(frozen=True)
class SessionInfo:
    """An entry of the session list."""

    session_id: str
    agent: str
    status: str
    """``in-progress``, ``awaiting-approval`` or ``finished``."""
    step: int
    title: str
    """The start of the first user message."""
    created_at: int
    """Unix milliseconds."""
    updated_at: int
    """Unix milliseconds of the newest event."""
    approval_id: str | None = None
    parent_session: str | None = None
    """Whose fork it is."""
    phase: str = "open"
    """``ending`` or ``ended`` when it takes no more messages."""
    last_run: dict[str, Any] | None = None
    """How the last run ended: ``outcome`` is ``failed`` (with ``code`` and ``message``),
    ``cancelled``, ``interrupted`` or ``finished``; ``None`` while a run goes on."""

    @property
    def state(self) -> str:
        """The status for people: a session that is in progress may have failed, or been stopped."""
        if self.phase != "open":
            return self.phase
        outcome = (self.last_run or {}).get("outcome")
        stopped = outcome in (FAILED, CANCELLED, INTERRUPTED) and self.status == "in-progress"
        return outcome if stopped and outcome is not None else self.status

    @classmethod
    def of(cls, row: SessionRow) -> SessionInfo:
        """The entry of a stored session."""
        return cls(
            session_id=row.session_id,
            agent=row.agent,
            status=row.status,
            step=row.step,
            title=row.title,
            created_at=row.created_at,
            updated_at=row.updated_at,
            approval_id=row.approval_id,
            parent_session=row.parent_session,
            phase=row.phase,
            last_run=_last_run(row.last_end),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with camelCase keys; absent values have no key."""
        value = {
            "sessionId": self.session_id,
            "agentId": self.agent,
            "status": self.status,
            "step": self.step,
            "title": self.title,
            "createdAt": self.created_at,
            "updatedAt": self.updated_at,
            "approvalId": self.approval_id,
            "parentSession": self.parent_session,
            "phase": None if self.phase == "open" else self.phase,
            "lastRun": self.last_run,
        }
        return {key: item for key, item in value.items() if item is not None}


def _last_run(last_end: str | None) -> dict[str, Any] | None:
    """The public form of a turn's end."""
    if last_end is None:
        return None
    reason = json.loads(last_end)
    kind = reason.get("kind")
    if kind == "error":
        error = reason.get("error") or {}
        code = error.get("code")
        # The log has an error as one text, which ends with its code.
        message = str(error.get("message") or "").removesuffix(f" [{code}]")
        return {"outcome": FAILED, "code": code, "message": message}
    return {"outcome": {"aborted": CANCELLED, "interrupted": INTERRUPTED}.get(kind, "finished")}


@dataclass(frozen=True)
class Fork:
    """A new session that begins at a step of another one."""

    session_id: str
    step: int
    checkpoint: Checkpoint = field(repr=False)


def result_of(checkpoint: Checkpoint, run_id: str, finish_reason: str | None = None) -> RunResult:
    """A run's result as its checkpoint tells it."""
    answers = (message.text for message in reversed(checkpoint.messages))
    roles = (message.role for message in reversed(checkpoint.messages))
    text = next(
        (text for text, role in zip(answers, roles, strict=True) if role == "assistant"), ""
    )
    return RunResult(
        text=text,
        finish_reason=finish_reason or checkpoint.finish_reason or "",
        session_id=checkpoint.session_id,
        run_id=run_id,
        steps=checkpoint.step_index,
        approval_id=checkpoint.approval_id,
        messages=checkpoint.messages,
        tool_calls=checkpoint.tool_calls,
        usage=checkpoint.usage,
        step_usage=checkpoint.step_usage,
    )
