"""When an effect is said to have ended: by the server's clock, whatever the worker's says."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

from temporalio.testing import ActivityEnvironment

from perdure.activities.effect_time import EffectTime

ASKED_MS = 1_000_000
STARTED_MS = ASKED_MS + 60_000
"""Of an attempt that follows a dead worker's."""


def test_a_later_attempt_ends_after_it_began() -> None:
    """Else its result would lie before what the attempt put into the log meanwhile."""
    environment = ActivityEnvironment()
    started = datetime.fromtimestamp(STARTED_MS / 1000, UTC)
    environment.info = dataclasses.replace(environment.info, started_time=started)
    dated = environment.run(lambda: EffectTime(ASKED_MS).now_ms())
    assert STARTED_MS <= dated < STARTED_MS + 30_000
