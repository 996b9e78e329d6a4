"""How many connections a store on PostgreSQL holds is said in its address."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.errors import ConfigurationError


async def test_the_address_bounds_the_connections(postgres_url):
    async with SqlStore(f"{postgres_url}&pool_size=2&max_overflow=1") as store:

        async def own() -> int:
            return await store.database.write(
                lambda connection: (
                    connection.scalar(text("SELECT pg_backend_pid() FROM pg_sleep(0.01)")) or 0
                )
            )

        assert 1 <= len(set(await asyncio.gather(*(own() for _ in range(20))))) <= 3


@pytest.mark.parametrize("wrong", ["pool_size=0", "pool_size=many", "max_overflow=-1"])
def test_what_is_no_setting(wrong):
    with pytest.raises(ConfigurationError, match=r"of a store's address is a whole number"):
        SqlStore(f"postgresql://localhost/perdure?{wrong}")
