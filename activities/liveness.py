"""Keeps an activity alive in Temporal's eyes, and its outcome safe when the store is away."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from temporalio import activity

from perdure.checkpoint_bridge.errors import LogConflictError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
R = TypeVar("R")

_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0


class heartbeats:  # noqa: N801 - it is used like a function
    """Heartbeat three times in every heartbeat timeout while the block runs.

    Without it a dead worker could not be told from a slow call.
    """

    def __enter__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        timeout = activity.info().heartbeat_timeout
        if timeout is not None:
            self._every = timeout.total_seconds() / 3
            self._loop = asyncio.get_running_loop()
            # The first one is not due at once: most calls are over before it.
            self._wait()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._every, self._beat)

    def _beat(self) -> None:
        activity.heartbeat()
        self._wait()


def kept_alive(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Heartbeat while an activity runs, so that its worker's death is noticed in seconds."""

    @functools.wraps(function)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with heartbeats():
            return await function(*args, **kwargs)

    return wrapper


async def until_stored(use: Callable[[], Awaitable[R]]) -> R:
    """Use the store, waiting for as long as it needs to come back.

    What a model answered or a tool did must not be lost, and so not be done again, because the
    store was away at the wrong moment; and a run must not fail because of it.
    """
    wait = _FIRST_WAIT
    while True:
        try:
            return await use()
        except LogConflictError:
            raise
        except StorageError as error:
            activity.logger.warning("Waiting for the store: %s", error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
