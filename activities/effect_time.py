"""When an effect ended, by the run's own clock."""

from __future__ import annotations

import time


class EffectTime:
    """The workflow's time when it asked for an effect, and how long the effect has gone on.

    Event times are the workflow's: a worker whose clock is wrong must not date what happened
    before it was asked for, or after what followed from it (``docs/decisions/0012``).

    Args:
        asked_ms: the workflow's time when it asked, in Unix milliseconds.
    """

    def __init__(self, asked_ms: int) -> None:
        self._asked_ms = asked_ms
        self._begun = time.monotonic()

    def now_ms(self) -> int:
        """The time now, in Unix milliseconds."""
        return self._asked_ms + int((time.monotonic() - self._begun) * 1000)
