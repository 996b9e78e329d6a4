"""What a tool's context emits with, from the event loop and from threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.activities.effect_time import EffectTime
from perdure.activities.liveness import until_stored
from perdure.checkpoint_bridge.emitting import Emission, check_emission, emit
from perdure.checkpoint_bridge.errors import PerdureError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from perdure.activities.wire import ToolTask
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

T = TypeVar("T")


class Emitter:
    """Emits the events of one attempt of a call."""

    def __init__(self, store: SqlStore, task: ToolTask, attempt: int) -> None:
        self._store = store
        self._task = task
        self._attempt = attempt
        self._count = 0
        self._time = EffectTime(task.time_ms)
        self._loop = asyncio.get_running_loop()

    async def emit(self, type_: str, data: dict[str, Any]) -> int:
        """Append an event of the application's own and give its committed sequence."""
        check_emission(type_, data)
        return await self.append(type_, data)

    async def append(self, type_: str, data: dict[str, Any]) -> int:
        """Append an event of the call, as it is, and give its committed sequence."""
        self._count += 1
        emission = Emission(
            session_id=self._task.session_id,
            log_id=self._task.log_id,
            run_id=self._task.run_id,
            seq=self._task.seq,
            index=self._task.index,
            name=f"{self._attempt}.{self._count}",
            type=type_,
            data=data,
        )
        time_ms = self._time.now_ms()
        return await until_stored(lambda: self._store.database.write(emit, emission, time_ms))

    def emit_from_thread(self, type_: str, data: dict[str, Any]) -> int:
        """The same for code that runs in a thread: it waits for the commit."""
        return self.from_thread("emit", lambda: self.emit(type_, data))

    def from_thread(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``name`` does, for code that runs in a thread: it waits for the end.

        Raises:
            PerdureError: it was called in an event loop, which would wait for itself.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work(), self._loop).result()
        msg = (
            f"{name}_from_thread is for tools that are plain functions; here, await ctx.{name}(…)."
        )
        raise PerdureError(msg)
