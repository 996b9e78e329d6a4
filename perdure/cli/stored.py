"""Reads of the store, for commands that need nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from perdure.cli.options import Where

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

T = TypeVar("T")


def read_store(store: str, read: Callable[[SqlStore], Awaitable[T]]) -> T:
    """Open the store of an address, read, and close it. It makes none."""

    async def run() -> T:
        async with Where(store).open_store() as opened:
            return await read(opened)

    return asyncio.run(run())
