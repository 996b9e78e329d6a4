"""What a tool's context emits with, from the event loop and from threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.activities.liveness import until_stored
from perdure.checkpoint_bridge.emitting import Emission, check_emission, emit
from perdure.checkpoint_bridge.errors import PerdureError
from perdure.checkpoint_bridge.stored import now_ms

if TYPE_CHECKING:
    from perdure.activities.wire import ToolTask
    from perdure.checkpoint_bridge.sql_store import SqlStore


class Emitter:
    """Emits the events of one attempt of a call."""

    def __init__(self, store: SqlStore, task: ToolTask, attempt: int) -> None:
        self._store = store
        self._task = task
        self._attempt = attempt
        self._count = 0
        self._loop = asyncio.get_running_loop()

    async def emit(self, type_: str, data: dict[str, Any]) -> int:
        """Append an event and give its committed sequence."""
        check_emission(type_, data)
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
        return await until_stored(lambda: self._store.database.write(emit, emission, now_ms()))

    def emit_from_thread(self, type_: str, data: dict[str, Any]) -> int:
        """The same for code that runs in a thread: it waits for the commit."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(self.emit(type_, data), self._loop).result()
        msg = "emit_from_thread is for tools that are plain functions; here, await ctx.emit(…)."
        raise PerdureError(msg)
