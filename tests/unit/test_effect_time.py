"""When an effect is said to have ended: by the server's clock, whatever the worker's says."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

from temporalio.testing import ActivityEnvironment

from perdure.activities.effect_time import EffectTime

ASKED_MS = 1_000_000
STARTED_MS = ASKED_MS + 60_000
"""Of an attempt that follows a dead worker's."""


def dated(*, is_local: bool) -> int:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(
        environment.info,
        started_time=datetime.fromtimestamp(STARTED_MS / 1000, UTC),
        is_local=is_local,
    )
    return environment.run(lambda: EffectTime(ASKED_MS).now_ms())


def test_a_later_attempt_ends_after_it_began() -> None:
    """Else its result would lie before what the attempt put into the log meanwhile."""
    assert STARTED_MS <= dated(is_local=False) < STARTED_MS + 30_000


def test_a_local_activity_is_dated_from_the_workflows_time() -> None:
    """Its own start is by its worker's clock, which may be wrong."""
    assert ASKED_MS <= dated(is_local=True) < ASKED_MS + 30_000
