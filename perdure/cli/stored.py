"""Reads of the store, for commands that need nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from perdure.cli.options import Where

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

T = TypeVar("T")


def read_store(store: str, read: Callable[[SqlStore], Awaitable[T]]) -> T:
    """Open the store of an address, read, and close it. It makes none."""

    async def run() -> T:
        async with Where(store).open_store() as opened:
            return await read(opened)

    return asyncio.run(run())


async def session_row(store: SqlStore, session_id: str) -> SessionRow:
    """A session's row.

    Raises:
        SessionNotFoundError: there is none.
    """
    from perdure.checkpoint_bridge.stores.store import session_not_found

    row = await store.session(session_id)
    if row is None:
        raise session_not_found(session_id)
    return row
