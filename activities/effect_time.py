"""When an effect ended, by the run's own clock, and what it puts into the log then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from temporalio import activity

from perdure.checkpoint_bridge.tables.event_log import Batch

if TYPE_CHECKING:
    from perdure.activities.wire import ModelTask, ToolTask
    from perdure.checkpoint_bridge.log.answers import Entry


class EffectTime:
    """The server's time when an attempt of an effect began, and how long it has gone on.

    Event times are the workflow's: a worker whose clock is wrong must not date what happened
    before it was asked for, or after what followed from it (``docs/decisions/0012``). An attempt
    that follows a dead worker's begins seconds or days later; only Temporal's server knows when.

    Args:
        asked_ms: the workflow's time when it asked, in Unix milliseconds.
    """

    def __init__(self, asked_ms: int) -> None:
        server_ms = int(activity.info().started_time.timestamp() * 1000)
        self._began_ms = max(asked_ms, server_ms)
        self._begun = time.monotonic()

    def now_ms(self) -> int:
        """The time now, in Unix milliseconds."""
        return self._began_ms + int((time.monotonic() - self._begun) * 1000)

    def batch(self, task: ModelTask | ToolTask, head: int, entry: Entry) -> Batch:
        """An entry of the task's run, dated now, behind a log of the length ``head``."""
        return Batch(
            task.session_id,
            task.log_id,
            task.run_id,
            head,
            self.now_ms(),
            entry.events,
            entry.saves,
        )
