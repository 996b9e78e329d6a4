"""Many stores that are opened, and made, at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.stores.sql_store import SqlStore

if TYPE_CHECKING:
    from pathlib import Path


async def test_one_process_makes_many_stores_at_the_same_time(tmp_path: Path) -> None:
    stores = [SqlStore(f"sqlite:///{tmp_path / f'{number}.db'}") for number in range(12)]
    await asyncio.gather(*(store.open() for store in stores))
    assert [await store.sessions() for store in stores] == [[]] * len(stores)
    for store in stores:
        await store.close()
