"""What happened in a run, as events: the same ones, whoever writes them into the log.

A model's answer and what it means are written in the transaction that stores the answer in the
ledger, so neither is ever there without the other; the result of a call likewise, where it is
the only one that is due. The workflow writes the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "TOOL_CALLS",
    "Entry",
    "answer_entry",
    "attempt_events",
    "call_events",
    "result_entry",
    "step_end",
    "turn_end",
]

TOOL_CALLS = "tool_calls"
"""The finish reason of a save in the middle of a run."""


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


@dataclass
class Entry:
    """What one append puts into the log."""

    events: list[NewEvent] = field(default_factory=list)
    saves: list[NewSave] = field(default_factory=list)

    def save(self, status: str, finish_reason: str) -> None:
        """Save the checkpoint as it is after the events so far."""
        self.saves.append(NewSave(len(self.events), status, finish_reason))


def attempt_events(turn: int, step: int, attempts: Iterable[dict[str, Any]]) -> list[NewEvent]:
    """Failed attempts (``{error, usage?}``) of a model call: in the log, never in a transcript."""
    place = {"turn": turn, "step": step}
    return [
        NewEvent(ev.ASSISTANT_ATTEMPT, {**place, "attempt": number, **attempt})
        for number, attempt in enumerate(attempts, start=1)
    ]


def answer_entry(
    head: int,
    turn: int,
    step: int,
    answer: StoredAnswer,
    announced: Iterable[tuple[int, str, str, int | None]],
    *,
    config: dict[str, Any] | None = None,
) -> tuple[int, Entry]:
    """A model's answer: the request's header where it is new, the failed attempts, the answer.

    An answer without calls ends its turn. Of another one, the calls that may run at once are
    announced: ``(index, id, tool, grant)`` each, as :func:`call_events` takes them.

    Args:
        head: the length of the log before it.
        turn: the session's turn.
        step: the run's step, from 1.
        answer: its ``outcome`` is ``{model, usage, finishReason, responseId?, header?,
            history?, cut?}``.
        announced: the calls to announce.
        config: what the agent brought to the request, for the header of a new one.

    Returns:
        The answer's place in the log, and what to append.
    """
    assert answer.outcome is not None
    assert answer.message is not None
    place = {"turn": turn, "step": step}
    data: dict[str, Any] = {**place, "attempt": len(answer.attempts) + 1}
    data.update((key, answer.outcome[key]) for key in ("model", "usage", "finishReason"))
    for key in ("responseId", "history"):
        if answer.outcome.get(key) is not None:
            data[key] = answer.outcome[key]
    data["message"] = answer.message
    entry = Entry(
        [
            *_header_events(answer.outcome.get("header"), config),
            *attempt_events(turn, step, answer.attempts),
            NewEvent(ev.STEP_START, place),
            NewEvent(ev.ASSISTANT_MESSAGE, data, ref=answer.ref),
        ]
    )
    seq = head + len(entry.events) - 1
    if answer.message.get("toolCalls"):
        entry.save(ev.IN_PROGRESS, TOOL_CALLS)
        for call in announced:
            entry.events.extend(call_events(seq, *call))
    else:
        finish_reason = answer.outcome["finishReason"]
        cut = bool(answer.outcome.get("cut"))
        entry.events += [step_end(turn, step), turn_end(turn, finish_reason, cut=cut)]
        entry.save(ev.FINISHED, finish_reason)
    return seq, entry


def call_events(seq: int, index: int, call_id: str, tool: str, grant: int | None) -> list[NewEvent]:
    """Commit before effect: a call that is not announced in the log has not begun.

    Args:
        seq: the place of the model turn that asked for it.
        index: its place there.
        call_id: the model's own id of it.
        tool: the tool's name.
        grant: the sequence of the approval for the session by which nobody was asked about it;
            ``None`` where that is not why it runs.
    """
    data = {"seq": seq, "index": index, "toolCallId": call_id, "name": tool}
    auto = [] if grant is None else [NewEvent(ev.APPROVAL_AUTO, {**data, "grant": grant})]
    return [*auto, NewEvent(ev.TOOL_CALL, data)]


def result_entry(
    results: Iterable[tuple[int, int, dict[str, Any] | None, str | None]], last: NewEvent | None
) -> Entry:
    """Results of calls in call order, a save after each: ``(seq, index, message, ref)``.

    The message, the reference to it, or both are given. ``last`` ends the step, when no other
    call of its turn waits.
    """
    entry = Entry()
    for seq, index, message, ref in results:
        data: dict[str, Any] = {"seq": seq, "index": index}
        if message is not None:
            data["message"] = message
        entry.events.append(NewEvent(ev.TOOL_RESULT, data, ref=ref))
        entry.save(ev.IN_PROGRESS, TOOL_CALLS)
    if last is not None:
        entry.events.append(last)
    return entry


def step_end(turn: int, step: int) -> NewEvent:
    """The end of a step: all of its calls have their results, or it had none."""
    return NewEvent(ev.STEP_END, {"turn": turn, "step": step})


def grant_of(tool: str, decision: dict[str, Any]) -> list[NewEvent]:
    """The event by which an approval that is for the session is remembered, if it is one."""
    if not decision.get("approved") or decision.get("scope") != ev.SESSION:
        return []
    data = {"tool": tool, "scope": ev.SESSION}
    if decision.get("by") is not None:
        data["by"] = decision["by"]
    return [NewEvent(ev.APPROVAL_GRANTED, data)]


def _header_events(header: dict[str, Any] | None, config: dict[str, Any] | None) -> list[NewEvent]:
    """What the agent brought to the request, where ``header`` (``{reason}``) says why it is new."""
    if header is None:
        return []
    return [NewEvent(ev.REQUEST_HEADER, {"reason": header["reason"], "config": config})]


def turn_end(turn: int, finish_reason: str, *, cut: bool = False) -> NewEvent:
    """The end of a turn that came to an answer, or ran out of steps.

    An answer that was cut wins over what came after it in the turn: ``cut`` says that one was.
    """
    kind = "max-tokens" if cut or finish_reason == ev.LENGTH else "completed"
    reason = {"kind": kind}
    return NewEvent(ev.TURN_END, {"turn": turn, "reason": reason, "finishReason": finish_reason})
