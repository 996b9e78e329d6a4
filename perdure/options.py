"""Options of an agent about its turns, and the presets that choose for it.

Those about what its model is shown are in :mod:`.history_options`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from perdure.checkpoint_bridge.option_checks import limit, one_of, refusal
from perdure.history_options import Tokens, check_history_budget, check_history_policy
from perdure.tools import Recovery

if TYPE_CHECKING:
    from perdure.history_options import Chars, HistoryPolicy

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
        limit("max_model_calls", self.max_model_calls, whole=True)
        limit("max_turn_seconds", self.max_turn_seconds)
        limit("max_tool_seconds", self.max_tool_seconds)

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

    def __post_init__(self) -> None:
        """Check the choices.

        Raises:
            ConfigurationError: one of them is not known.
        """
        one_of("recovery", self.recovery, Recovery)
        one_of("on_crash", self.on_crash, OnCrash)
        one_of("model_recovery", self.model_recovery, ModelRecovery)
        one_of("turn_policy", self.turn_policy, TurnPolicy)
        check_history_policy(self.history_policy)
        check_history_budget(self.history_budget)

    def but(self, **given: Any) -> Profile:
        """These choices, with the given ones (those that are not ``None``) in their place."""
        return replace(self, **{name: each for name, each in given.items() if each is not None})


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
    found = PROFILES.get(given) if isinstance(given, str) else None
    if found is None:
        raise refusal("profile", f"one of {', '.join(PROFILES)}", given)
    return found
