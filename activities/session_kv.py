"""The key-value state of a session, for the tools of its run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure.activities.liveness import until_stored
from perdure.checkpoint_bridge.errors import LogConflictError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.session_kv import check_key, check_value
from perdure.tool_kv import ToolKV

if TYPE_CHECKING:
    from perdure.activities.emitting import Emitter
    from perdure.activities.wire import ToolTask
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore


class SessionKV(ToolKV):
    """Keeps the values in the session's log: each change is an event of the call."""

    def __init__(self, store: SqlStore, task: ToolTask, emitter: Emitter) -> None:
        super().__init__()
        self._store = store
        self._task = task
        self._emitter = emitter

    async def get(self, key: str, default: Any = None) -> Any:
        """Read what is committed, by whichever call."""
        check_key(key)
        task = self._task
        row = await until_stored(lambda: self._store.session(task.session_id))
        if row is None or row.log_id != task.log_id or row.writer != task.run_id:
            raise LogConflictError.of(task.session_id, kept=row is not None)
        state = await until_stored(lambda: self._store.state(task.log_id, row.head))
        return json.loads(ev.dump(state.kv[key])) if key in state.kv else default

    async def set(self, key: str, value: Any) -> None:
        """Append the event that sets it."""
        check_key(key)
        check_value(key, value)
        await self._emitter.append(ev.KV_SET, {"key": key, "value": value})

    async def delete(self, key: str) -> None:
        """Append the event that deletes it."""
        check_key(key)
        await self._emitter.append(ev.KV_DELETE, {"key": key})

    def get_from_thread(self, key: str, default: Any = None) -> Any:
        """Wait in a thread for :meth:`get`."""
        return self._emitter.from_thread("kv.get", lambda: self.get(key, default))

    def set_from_thread(self, key: str, value: Any) -> None:
        """Wait in a thread for :meth:`set`."""
        self._emitter.from_thread("kv.set", lambda: self.set(key, value))

    def delete_from_thread(self, key: str) -> None:
        """Wait in a thread for :meth:`delete`."""
        self._emitter.from_thread("kv.delete", lambda: self.delete(key))
