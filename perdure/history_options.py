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
from perdure.option_checks import count, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.activities.turn_context import TurnHook

__all__ = [
    "Chars",
    "HistoryPolicy",
    "HistoryTurn",
    "Tokens",
    "check_history_budget",
    "check_history_policy",
    "check_turn_hook",
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
    if value in (KEEP, EXCLUDE_UNFINISHED) or _is_plain_function(value):
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


def check_turn_hook(value: Any) -> TurnHook | None:
    """The value, when it is an async function or nothing.

    Raises:
        ConfigurationError: it is something else.
    """
    is_plain = inspect.isfunction(value) and not inspect.iscoroutinefunction(value)
    if value is None or (callable(value) and not is_plain):
        found: TurnHook | None = value
        return found
    raise refusal("on_turn_stopping", "an async function of a TurnContext", value)


def _is_plain_function(value: Any) -> bool:
    return callable(value) and not inspect.iscoroutinefunction(value)
