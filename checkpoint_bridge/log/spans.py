"""Which messages of a transcript belong to which turn, and how each turn ended.

A turn begins with what a user says and takes in everything up to the next one's beginning. A run
that goes on after a failure without new input goes on with its turn: the two are one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPLETED = "completed"
FINISHED_KINDS = frozenset({COMPLETED, "max-tokens", "forked"})
"""Kinds of a ``turn/end`` that leave nothing undone; a fork cut its turn off on purpose."""


@dataclass(frozen=True, slots=True)
class Span:
    """One turn's place in the transcript: up to the next span, or to the end."""

    start: int
    """Index of its first message."""
    reason: str | None = None
    """The kind of its ``turn/end``; ``None`` while it goes on."""
    finish_reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """How a rewrite event keeps it."""
        return {"at": self.start, "reason": self.reason, "finishReason": self.finish_reason}


@dataclass(slots=True)
class Spans:
    """The turns of a transcript, in order. What is before the first one belongs to none."""

    all: list[Span] = field(default_factory=list)

    def copy(self) -> Spans:
        """Spans that can be changed without these noticing."""
        return Spans(list(self.all))

    @property
    def _is_open(self) -> bool:
        return bool(self.all) and self.all[-1].reason is None

    def said(self, at: int) -> None:
        """A user's message came to be at ``at``: a new turn, unless one goes on."""
        if not self._is_open:
            self.all.append(Span(at))

    def went_on(self) -> None:
        """The newest turn got an answer, so it goes on."""
        if self.all and self.all[-1].reason is not None:
            self.all[-1] = replace(self.all[-1], reason=None, finish_reason="")

    def inserted(self, call_at: int) -> None:
        """A result came for a call of the message at ``call_at``: turns after it move on."""
        for at in range(len(self.all) - 1, -1, -1):
            span = self.all[at]
            if span.start <= call_at:
                if at == len(self.all) - 1:
                    self.went_on()
                return
            self.all[at] = replace(span, start=span.start + 1)

    def ended(self, reason: str, finish_reason: str = "") -> None:
        """The turn that goes on, if one does, ended."""
        if self._is_open:
            self.all[-1] = replace(self.all[-1], reason=reason, finish_reason=finish_reason)

    def rewritten(
        self, messages: Sequence[Any], keep: int, turns: Sequence[Any] | None, *, is_open: bool
    ) -> None:
        """All messages from ``keep`` on are new; ``turns`` says what they belong to, if known.

        Where it is not known, each user message that answers something begins a turn.
        """
        self.all = [span for span in self.all if span.start < keep]
        if turns is not None:
            self.all += [Span(turn["at"], turn["reason"], turn["finishReason"]) for turn in turns]
            return
        for at in range(keep, len(messages)):
            if _role(messages[at]) != "user" or (at and _role(messages[at - 1]) == "user"):
                continue
            self.ended(COMPLETED)
            self.all.append(Span(at))
        if not is_open:
            self.ended(COMPLETED)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
