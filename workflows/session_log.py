"""The loop's pen: appends to the session's log through local activities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temporalio import workflow

from perdure.activities.packing import packed
from perdure.activities.wire import ACTIVITY_APPEND, Append
from perdure.workflows.options import STORE_RETRY, STORE_TIMEOUT

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.events import NewEvent, NewSave


class SessionLog:
    """Where the run is in its session's log.

    A local activity is not in the history until its workflow task ends. If that task is lost,
    it runs again and must append the same events: so what is appended may depend only on
    results that the history holds, never on a signal or a clock. (What does depend on
    signals goes through ordinary activities.)
    """

    def __init__(self, session_id: str, log_id: int, run_id: str, head: int) -> None:
        self.session_id = session_id
        self.log_id = log_id
        self.run_id = run_id
        self.head = head

    async def append(
        self,
        events: list[NewEvent],
        saves: list[NewSave] | None = None,
        *,
        ordinary: bool = False,
    ) -> None:
        """Append, and wait until it is committed.

        ``ordinary``: by an ordinary activity, for what a signal brought.
        """
        run: Any = workflow.execute_activity if ordinary else workflow.execute_local_activity
        self.head = await run(
            ACTIVITY_APPEND,
            packed(
                Append(
                    session_id=self.session_id,
                    log_id=self.log_id,
                    run_id=self.run_id,
                    head=self.head,
                    time_ms=now_ms(),
                    events=events,
                    saves=saves or [],
                )
            ),
            result_type=int,
            start_to_close_timeout=STORE_TIMEOUT,
            retry_policy=STORE_RETRY,
        )


def now_ms() -> int:
    """The workflow's time, in Unix milliseconds."""
    return int(workflow.now().timestamp() * 1000)
