"""Ends a session: first nothing more gets in, then what was open is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import update

from perdure.checkpoint_bridge.closing import INTERRUPTED, Ending, close_turn
from perdure.checkpoint_bridge.errors import LogConflictError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables import approvals, sessions
from perdure.checkpoint_bridge.tables.event_log import Batch, append
from perdure.checkpoint_bridge.tables.schema import sessions as table

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_TRIES = 20
_LOST = Ending({"kind": INTERRUPTED}, answer_calls=True, lost=True)


async def begin_end(store: SqlStore, session_id: str) -> SessionRow | None:
    """Let no message in any more; gives the session as it was, or ``None`` for an unknown one."""

    def begin(connection: Connection) -> SessionRow | None:
        row = sessions.find_session(connection, session_id, lock=True)
        if row is not None and row.phase == sessions.OPEN:
            _set_phase(connection, session_id, sessions.ENDING)
        return row

    return await store.database.write(begin)


async def finish_end(store: SqlStore, session_id: str) -> None:
    """Write the end into the log. A turn that nobody closed (its run was lost) ends with it."""
    for remaining in reversed(range(_TRIES)):
        row = await store.session(session_id)
        if row is None or row.phase != sessions.ENDING:
            return
        try:
            if (await store.state(row.log_id, row.head)).open_turn is not None:
                await close_turn(store, row, _LOST, time_ms=now_ms())
                row = await store.session(session_id) or row
            batch = Batch(
                session_id, row.log_id, None, row.head, now_ms(), [NewEvent(ev.SESSION_ENDED, {})]
            )
            await store.database.write(_finish, batch, max(1, store.history_limit))
        except LogConflictError:
            if not remaining:
                raise
        else:
            await store.hooks.disposed(session_id)
            return


def _finish(connection: Connection, batch: Batch, keep_saves: int) -> None:
    append(connection, batch, keep_saves=keep_saves)
    approvals.close_approvals(connection, batch.log_id, sessions.ENDED, batch.time_ms)
    _set_phase(connection, batch.session_id, sessions.ENDED)


def _set_phase(connection: Connection, session_id: str, phase: str) -> None:
    connection.execute(update(table).where(table.c.session_id == session_id).values(phase=phase))
