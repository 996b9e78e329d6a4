"""Sessions that only a mirror holds: they come over when a client opens them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import SessionIdInvalidError, SessionNotFoundError
from perdure.checkpoint_bridge.mirrors.importing import import_session
from perdure.checkpoint_bridge.tables import mirror_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.checkpoint_bridge.mirrors.mirror import Mirror
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

_log = logging.getLogger("perdure.mirror")


class ForeignSessions:
    """Looks for a session in the mirrors of a store."""

    def __init__(self, store: SqlStore, mirrors: Sequence[Mirror] = ()) -> None:
        self._store = store
        self._mirrors = mirrors

    async def bring(self, session_id: str, *, needed: bool) -> SessionRow | None:
        """Import a session that our store does not have; returns its row, or ``None``.

        What was written to a mirror from here and was deleted here does not come back.

        Args:
            session_id: its id, here and there.
            needed: whether a mirror that is down is an error; without, it is only told.

        Raises:
            StorageError: a mirror that might hold it cannot be read.
        """
        for mirror in self._mirrors:
            database = self._store.database
            if await database.read(mirror_rows.is_known, mirror.name, session_id):
                continue
            try:
                await import_session(mirror.target, self._store, session_id)
            except (SessionIdInvalidError, SessionNotFoundError):
                continue
            except Exception as error:
                if needed:
                    raise
                _log.warning(
                    "Whether mirror %s holds session %s is not known: %s",
                    mirror.name,
                    session_id,
                    error,
                )
            else:
                _log.info("Session %s was imported from %s", session_id, mirror.name)
                return await self._store.session(session_id)
        return None
