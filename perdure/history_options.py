"""What an agent can be told about the conversation that its model is shown."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.log.request_messages import (
    EXCLUDE_UNFINISHED,
    KEEP,
    HistoryPolicy,
    HistoryTurn,
    characters,
)

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
        _check_limit("Chars", self.limit)

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
        _check_limit("Tokens", self.limit)

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
    msg = (
        f"history_policy is {KEEP!r}, {EXCLUDE_UNFINISHED!r} or a plain function of the turns, "
        f"not {value!r}."
    )
    raise ConfigurationError(msg, field="historyPolicy")


def check_history_budget(value: Any) -> Tokens | Chars | None:
    """The value, when it is a budget or none.

    Raises:
        ConfigurationError: it is something else.
    """
    if value is None or isinstance(value, (Tokens, Chars)):
        return value
    msg = f"history_budget is Tokens(n), Chars(n) or None, not {value!r}."
    raise ConfigurationError(msg, field="historyBudget")


def check_turn_hook(value: Any) -> TurnHook | None:
    """The value, when it is an async function or nothing.

    Raises:
        ConfigurationError: it is something else.
    """
    is_plain = inspect.isfunction(value) and not inspect.iscoroutinefunction(value)
    if value is None or (callable(value) and not is_plain):
        found: TurnHook | None = value
        return found
    msg = f"on_turn_stopping is an async function of a TurnContext, not {value!r}."
    raise ConfigurationError(msg, field="onTurnStopping")


def _is_plain_function(value: Any) -> bool:
    return callable(value) and not inspect.iscoroutinefunction(value)


def _check_limit(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"{name}(n) is a whole number from 1, not {value!r}."
        raise ConfigurationError(msg, field="historyBudget")
