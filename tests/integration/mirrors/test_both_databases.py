"""Mirroring and importing with our store on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio

from perdure.checkpoint_bridge import LoushoSqliteStore, SqlStore
from perdure.checkpoint_bridge.mirrors.importing import import_session
from perdure.checkpoint_bridge.mirrors.mirror import Mirror

from .conftest import record, texts, until


async def test_two_processes_one_mirror(sql_url, tmp_path):
    path = tmp_path / "theirs.db"
    async with (
        SqlStore(sql_url) as one,
        SqlStore(sql_url) as other,
        LoushoSqliteStore(path) as target,
        LoushoSqliteStore(path) as same,
    ):
        mirrors = [Mirror(one, target), Mirror(other, same)]
        tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
        for step in range(1, 6):
            await one.save("trip", record("trip", step))
            await other.save("second", record("second", step))
        await until(lambda: is_done(mirrors[0]))
        await mirrors[0].rebuild("trip")
        await one.save("trip", record("trip", 6))
        await until(lambda: is_done(mirrors[1]))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for name in ("trip", "second"):
            assert texts(await target.history(name)) == texts(await one.history(name))


async def test_there_and_back(sql_url, tmp_path):
    async with (
        SqlStore(sql_url) as ours,
        LoushoSqliteStore(tmp_path / "theirs.db") as theirs,
    ):
        for step in range(1, 4):
            await theirs.save("trip", record("trip", step))
        assert (await import_session(theirs, ours, "trip")).saves == 3
        assert texts(await ours.history("trip")) == texts(await theirs.history("trip"))
        # What came from there is not written there again.
        assert await Mirror(ours, theirs).copy_session("trip") == 0
        await ours.save("trip", record("trip", 4))
        assert await Mirror(ours, theirs).copy_session("trip") == 1
        assert texts(await ours.history("trip")) == texts(await theirs.history("trip"))


async def is_done(mirror: Mirror) -> bool:
    return await mirror.lag() == 0
