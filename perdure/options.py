"""What an agent can be told about its turns, and the presets that choose for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.history_options import Tokens

if TYPE_CHECKING:
    from perdure.history_options import Chars, HistoryPolicy
    from perdure.tools import Recovery

OnCrash = Literal["continue", "interrupt", "fail"]
"""What becomes of a turn whose worker died: it goes on, or it ends as interrupted or as failed."""

ModelRecovery = Literal["retry", "once"]
"""Whether a model is asked again after a failure, or after its worker died."""

TurnPolicy = Literal["reject", "queue", "wait"]
"""What new input does while a turn goes on (``session.send`` and ``session.submit``)."""


@dataclass(frozen=True)
class Limits:
    """How much one turn may take. ``None`` and 0 mean: no limit."""

    max_model_calls: int | None = None
    """Model calls of one turn. Running out *fails* the turn (code ``model_call_limit``), where
    ``max_steps`` finishes it."""
    max_turn_seconds: float | None = None
    """Seconds from a turn's start. Then what is in flight is cancelled and the turn fails
    (``turn_time_limit``). Waiting for an approval does not count."""
    max_tool_seconds: float | None = None
    """Seconds that one tool call may take at most, whatever its tool's own ``timeout`` allows."""

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigurationError: one of them is none.
        """
        calls = self.max_model_calls
        if calls is not None and not (_is_number(calls) and isinstance(calls, int)):
            _refuse("max_model_calls", "a whole number", calls)
        for name in ("max_turn_seconds", "max_tool_seconds"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                _refuse(name, "a number", value)

    def tool_seconds(self, timeout: float) -> float:
        """What a tool with a ``timeout`` of its own may take."""
        return min(timeout, self.max_tool_seconds or timeout)


@dataclass(frozen=True)
class Profile:
    """Defaults for an agent's options; each option that is given wins."""

    recovery: Recovery = "rerun"
    on_crash: OnCrash = "continue"
    model_recovery: ModelRecovery = "retry"
    turn_policy: TurnPolicy = "reject"
    history_policy: HistoryPolicy = "keep"
    history_budget: Tokens | Chars | None = None


PROFILES = {
    "lousho": Profile(),
    "dsh": Profile(recovery="ambiguous", on_crash="interrupt"),
    "brain": Profile(recovery="ambiguous", on_crash="fail", model_recovery="once"),
    "faden": Profile(
        recovery="ambiguous",
        on_crash="interrupt",
        model_recovery="once",
        history_policy="exclude_unfinished",
        history_budget=Tokens(100_000),
    ),
}
"""The presets by name; ``lousho`` is the default. The table is in ``docs/sessions.md``."""


def profile_of(given: str | Profile) -> Profile:
    """The preset of a name.

    Raises:
        ConfigurationError: there is none of this name.
    """
    if isinstance(given, Profile):
        return given
    found = PROFILES.get(given)
    if found is None:
        msg = f"profile is one of {', '.join(PROFILES)}, not {given!r}."
        raise ConfigurationError(msg, field="profile")
    return found


def chosen(name: str, given: Any, default: Any, kind: Any) -> Any:
    """An option's value: the given one, checked, or the profile's.

    Raises:
        ConfigurationError: the given one is none of ``kind`` (a ``Literal``).
    """
    if given is None:
        return default
    if given not in get_args(kind):
        msg = f"{name} is one of {', '.join(get_args(kind))}, not {given!r}."
        raise ConfigurationError(msg, field=name)
    return given


def of_type(name: str, given: Any, kind: type, what: str) -> Any:
    """An option's value, which is of a type.

    Raises:
        ConfigurationError: it is not; ``what`` says what it should be.
    """
    if not isinstance(given, kind):
        raise ConfigurationError(f"{name} is {what}, not {given!r}.", field=name)
    return given


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value >= 0


def _refuse(name: str, what: str, value: object) -> None:
    msg = f"{name} is {what} from 0 (0: no limit), not {value!r}."
    raise ConfigurationError(msg, field=name)
