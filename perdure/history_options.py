"""Options of an agent about the conversation that its model is shown.

Those about its turns are in :mod:`.options`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.log.request_messages import (
    EXCLUDE_UNFINISHED,
    KEEP,
    HistoryPolicy,
    HistoryTurn,
    characters,
)
from perdure.checkpoint_bridge.option_checks import count, plain_function, refusal

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = [
    "Chars",
    "HistoryPolicy",
    "HistoryTurn",
    "Tokens",
    "check_history_budget",
    "check_history_policy",
]

CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for where nobody counts better."""


@dataclass(frozen=True, slots=True)
class Chars:
    """A history budget in characters: of texts, calls and reasoning, as the model is shown them."""

    limit: int

    def __post_init__(self) -> None:
        count("Chars(n)", self.limit)

    def size(self, message: dict[str, Any]) -> int:
        """How many characters a message counts."""
        return characters(message)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A history budget in tokens.

    Args:
        limit: what all messages but the system prompt may add up to.
        count: counts the tokens of one message of the documented format, always the same for
            the same message; default: a quarter of its characters.
    """

    limit: int
    count: Callable[[dict[str, Any]], int] | None = None

    def __post_init__(self) -> None:
        count("Tokens(n)", self.limit)
        if self.count is not None:
            plain_function("count", self.count, "a message")

    def size(self, message: dict[str, Any]) -> int:
        """How many tokens a message counts."""
        if self.count is not None:
            return self.count(message)
        return -(-characters(message) // CHARACTERS_PER_TOKEN)


def check_history_policy(value: Any) -> HistoryPolicy:
    """The value, when it is a policy.

    Raises:
        ConfigurationError: it is none.
    """
    is_plain_function = callable(value) and not inspect.iscoroutinefunction(value)
    if value in (KEEP, EXCLUDE_UNFINISHED) or is_plain_function:
        found: HistoryPolicy = value
        return found
    what = f"{KEEP!r}, {EXCLUDE_UNFINISHED!r} or a plain function of the turns"
    raise refusal("history_policy", what, value)


def check_history_budget(value: Any) -> Tokens | Chars | None:
    """The value, when it is a budget or none.

    Raises:
        ConfigurationError: it is something else.
    """
    if value is None or isinstance(value, (Tokens, Chars)):
        return value
    raise refusal("history_budget", "Tokens(n), Chars(n) or None", value)
