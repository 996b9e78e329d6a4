"""A model's answer as events: the same ones, whoever writes them into the log.

The loop writes them when it has the answer. When its execution died before that, whoever opens or
closes the session next takes the answer over from the ledger, so that it is not bought again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from perdure.checkpoint_bridge import events as ev
from perdure.checkpoint_bridge.events import NewEvent, NewSave

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["TOOL_CALLS", "answer_events", "attempt_events", "taken_over", "turn_end", "unused"]

TOOL_CALLS = "tool_calls"
"""The finish reason of a save in the middle of a run."""

_UNUSED = {
    "code": "PERDURE_ANSWER_UNUSED",
    "message": "The answer came, and the run was cancelled before it could use it.",
}


class StoredAnswer(Protocol):
    """A model call in the ledger that is done (:class:`.ledger.Effect`, which is not pure)."""

    @property
    def outcome(self) -> dict[str, Any] | None: ...
    @property
    def message(self) -> dict[str, Any] | None: ...
    @property
    def ref(self) -> str | None: ...
    @property
    def attempts(self) -> Sequence[dict[str, Any]]: ...


def attempt_events(turn: int, step: int, attempts: Iterable[dict[str, Any]]) -> list[NewEvent]:
    """Failed attempts (``{error, usage?}``) of a model call: in the log, never in a transcript."""
    place = {"turn": turn, "step": step}
    return [
        NewEvent(ev.ASSISTANT_ATTEMPT, {**place, "attempt": number, **attempt})
        for number, attempt in enumerate(attempts, start=1)
    ]


def answer_events(
    turn: int,
    step: int,
    outcome: dict[str, Any],
    *,
    message: dict[str, Any] | None,
    ref: str | None,
    attempts: Iterable[dict[str, Any]],
) -> list[NewEvent]:
    """The request's header where it is new, failed attempts, the step's beginning, the answer.

    Args:
        turn: the session's turn.
        step: the run's step, from 1.
        outcome: ``{model, usage, finishReason, responseId?, header?, history?}``.
        message: the assistant message; ``None`` where only ``ref`` is at hand.
        ref: where the message is, when it is too large to be inline.
        attempts: the failed ones before it.
    """
    attempts = list(attempts)
    data: dict[str, Any] = {"turn": turn, "step": step, "attempt": len(attempts) + 1}
    data.update((key, outcome[key]) for key in ("model", "usage", "finishReason"))
    for key in ("responseId", "history"):
        if outcome.get(key) is not None:
            data[key] = outcome[key]
    if message is not None and ref is None:
        data["message"] = message
    return [
        *_header_events(outcome.get("header")),
        *attempt_events(turn, step, attempts),
        NewEvent(ev.STEP_START, {"turn": turn, "step": step}),
        NewEvent(ev.ASSISTANT_MESSAGE, data, ref=ref),
    ]


def grant_of(tool: str, decision: dict[str, Any]) -> list[NewEvent]:
    """The event by which an approval that is for the session is remembered, if it is one."""
    if not decision.get("approved") or decision.get("scope") != ev.SESSION:
        return []
    data = {"tool": tool, "scope": ev.SESSION}
    if decision.get("by") is not None:
        data["by"] = decision["by"]
    return [NewEvent(ev.APPROVAL_GRANTED, data)]


def _header_events(header: dict[str, Any] | None) -> list[NewEvent]:
    """What the agent brought to the request: ``{ref, reason}``, its content is in the store."""
    if header is None:
        return []
    return [NewEvent(ev.REQUEST_HEADER, {"reason": header["reason"]}, ref=header["ref"])]


def turn_end(turn: int, finish_reason: str) -> NewEvent:
    """The end of a turn that came to an answer, or ran out of steps."""
    kind = "max-tokens" if finish_reason == "length" else "completed"
    reason = {"kind": kind}
    return NewEvent(ev.TURN_END, {"turn": turn, "reason": reason, "finishReason": finish_reason})


def taken_over(turn: int, step: int, effect: StoredAnswer) -> tuple[list[NewEvent], list[NewSave]]:
    """A stored answer that no log has yet: its events and saves, as the loop would have made them.

    An answer without calls ends its turn. The calls of another one are pending.
    """
    assert effect.outcome is not None
    assert effect.message is not None
    events = answer_events(
        turn,
        step,
        effect.outcome,
        message=effect.message,
        ref=effect.ref,
        attempts=effect.attempts,
    )
    if effect.message.get("toolCalls"):
        return events, [NewSave(len(events), ev.IN_PROGRESS, TOOL_CALLS)]
    finish_reason = effect.outcome["finishReason"]
    events.append(NewEvent(ev.STEP_END, {"turn": turn, "step": step}))
    events.append(turn_end(turn, finish_reason))
    return events, [NewSave(len(events), ev.FINISHED, finish_reason)]


def unused(effect: StoredAnswer) -> dict[str, Any]:
    """A stored answer as an attempt: paid for, and in no transcript."""
    assert effect.outcome is not None
    return {"error": _UNUSED, "usage": effect.outcome["usage"], "model": effect.outcome["model"]}
