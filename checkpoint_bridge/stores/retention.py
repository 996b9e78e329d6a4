"""Keeps an agent's sessions few and young: applied when a new one is made, and only then."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.option_checks import count, refusal
from perdure.checkpoint_bridge.stores.pruning import delete_idle, find_idle

if TYPE_CHECKING:
    from sqlalchemy import Connection

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """What a store keeps of each agent; ``None`` sets no limit.

    A session that runs, waits for a decision or was cut off in the middle of a turn stays,
    whatever the limits say; it counts as one all the same.

    Raises:
        ConfigurationError: a limit is none.
    """

    max_sessions: int | None = 50
    max_age_days: float | None = 90
    """Since the last activity."""

    def __post_init__(self) -> None:
        if self.max_sessions is not None:
            count("max_sessions", self.max_sessions)
        days = self.max_age_days
        if days is not None and (type(days) not in (int, float) or not 0 < days < math.inf):
            raise refusal("max_age_days", "a number of days above 0", days)

    def apply(self, connection: Connection, made: str, agent: str, time_ms: int) -> None:
        """Delete what goes when the session ``made`` of an agent was made at ``time_ms``."""
        gone: list[tuple[str, int]] = []
        if self.max_age_days is not None:
            before = time_ms - int(self.max_age_days * _DAY_MS)
            gone += find_idle(connection, before, None, None)
        if self.max_sessions is not None:
            gone += find_idle(connection, None, self.max_sessions, agent)
        for session_id, updated_at in dict(gone).items():
            if session_id != made:
                delete_idle(connection, session_id, updated_at)
