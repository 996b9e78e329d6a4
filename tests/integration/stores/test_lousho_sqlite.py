"""The TypeScript SDK's SQLite file: its schema, its versions, and what is not one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.checkpoint_bridge import LoushoSqliteStore, SqlStore
from perdure.checkpoint_bridge.errors import SessionIdInvalidError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

# ruff: noqa: E501 - the format page's lines
# The format page, section "Stored forms of the TypeScript SDK", word for word.
TABLES = {
    1: """
    sessions(id TEXT PRIMARY KEY, payload TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL)
    checkpoints(session_id TEXT PRIMARY KEY, payload TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL)
    approvals(id TEXT PRIMARY KEY, payload TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, resolved_at INTEGER)
    """,
    2: """
    checkpoint_history(id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, step INTEGER NOT NULL, status TEXT NOT NULL, saved_at INTEGER NOT NULL, payload TEXT NOT NULL)
    """,
    3: """
    memory_items(scope_key TEXT PRIMARY KEY, payload TEXT NOT NULL, updated_at INTEGER NOT NULL)
    """,
    4: """
    oauth_tokens(key TEXT PRIMARY KEY, payload TEXT NOT NULL, updated_at INTEGER NOT NULL)
    oauth_pending(state TEXT PRIMARY KEY, payload TEXT NOT NULL, expires_at INTEGER NOT NULL)
    """,
}
INDEXES = {
    1: ["sessions(updated_at)", "checkpoints(updated_at)", "approvals(resolved_at)"],
    2: ["checkpoint_history(session_id, id)", "checkpoint_history(saved_at)"],
    3: [],
    4: [],
}


def tables_of(version: int) -> list[str]:
    return [line.strip() for line in TABLES[version].strip().splitlines()]


def make_file(path: Path, version: int) -> None:
    """A file as the TypeScript SDK of that version leaves it, with a session in it."""
    with closing(sqlite3.connect(path)) as connection:
        for each in range(1, version + 1):
            for table in tables_of(each):
                connection.execute(f"CREATE TABLE {table}")
            for number, index in enumerate(INDEXES[each]):
                connection.execute(f"CREATE INDEX theirs_{each}_{number} ON {index}")
        payload = json.dumps({"sessionId": "old", "stepIndex": 1, "messages": [], "é": "\ud83d"})
        connection.execute("INSERT INTO checkpoints VALUES ('old', ?, 1, 2)", [payload])
        connection.execute("INSERT INTO sessions VALUES ('old', '{}', 1, 2)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()


def schema_of(path: Path) -> tuple[int, set[str], set[str]]:
    """Version, tables and indexed columns."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL")
        tables, indexes = set(), set()
        for kind, sql in rows:
            words = " ".join(sql.split())
            words = re.sub(r"\s*([(,)])\s*", r"\1", words)
            if kind == "table" and "sqlite_sequence" not in words:
                tables.add(words.removeprefix("CREATE TABLE "))
            elif kind == "index":
                indexes.add(words.partition(" ON ")[2])
        return connection.execute("PRAGMA user_version").fetchone()[0], tables, indexes


def documented() -> tuple[int, set[str], set[str]]:
    tables = {table for version in TABLES for table in tables_of(version)}
    indexes = {each for version in INDEXES.values() for each in version}
    return (
        4,
        {re.sub(r"\s*([(,)])\s*", r"\1", each) for each in tables},
        {re.sub(r"\s*([(,)])\s*", r"\1", each) for each in indexes},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "with space & ?#% é.db"


async def test_a_new_file_has_exactly_the_documented_schema(path, record):
    async with LoushoSqliteStore(path) as store:
        await store.save("trip", record("trip"))
    assert schema_of(path) == documented()
    assert path.stat().st_mode & 0o077 == 0
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_a_file_of_any_version_is_brought_forward(path, record, version):
    make_file(path, version)
    async with LoushoSqliteStore(path) as store:
        old = await store.load("old")
        assert old is not None
        assert old.to_json()["é"] == "\ud83d"
        assert await store.history("old") == []
        await store.save("old", old)
        assert len(await store.history("old")) == 1
    assert schema_of(path) == documented()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM sessions").fetchall() == [("old", "{}", 1, 2)]
        created, updated = connection.execute(
            "SELECT created_at, updated_at FROM checkpoints"
        ).fetchone()
        assert created == 1
        assert updated > 1_600_000_000_000


async def test_an_empty_file_is_a_new_one(path, record):
    path.touch()
    async with LoushoSqliteStore(path) as store:
        await store.save("trip", record("trip"))
    assert schema_of(path) == documented()


async def test_rows_are_as_documented(path, record, text):
    async with LoushoSqliteStore(path) as store:
        await store.save("trip", record("trip", 3, status="finished", odd="\ud800é"))
    with closing(sqlite3.connect(path)) as connection:
        (payload,) = connection.execute("SELECT payload FROM checkpoints").fetchone()
        row = connection.execute("SELECT session_id, step, status, payload FROM checkpoint_history")
        assert row.fetchall() == [("trip", 3, "finished", payload)]
    assert text(json.loads(payload)) == text(record("trip", 3, status="finished", odd="\ud800é"))
    assert '"odd":"\\ud800é"' in payload


async def test_several_open_a_new_file_at_once(path, record):
    stores = [LoushoSqliteStore(path) for _ in range(8)]
    await asyncio.gather(
        *(store.save(f"s{number}", record(f"s{number}")) for number, store in enumerate(stores))
    )
    assert [await stores[0].load(f"s{number}") is not None for number in range(8)] == [True] * 8
    for store in stores:
        await store.close()
    assert schema_of(path) == documented()


async def test_reading_changes_no_byte(path, record):
    async with LoushoSqliteStore(path) as store:
        await store.save("trip", record("trip"))
    before = path.read_bytes()
    async with LoushoSqliteStore(path) as store:
        await store.load("trip")
        await store.history("trip")
        await store.pending_approvals()
    assert path.read_bytes() == before


async def refused(path: Path, message: str) -> None:
    before = await asyncio.to_thread(path.read_bytes)
    store = LoushoSqliteStore(path)
    for _ in range(2):
        with pytest.raises(StorageError, match=message) as caught:
            await store.load("trip")
        assert caught.value.code == "LOUSHO_STORAGE_FAILED"
    assert await asyncio.to_thread(path.read_bytes) == before
    assert await asyncio.to_thread(os.listdir, path.parent) == [path.name]


async def test_a_newer_file_is_refused(path):
    make_file(path, 4)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 5")
        connection.execute("PRAGMA journal_mode = WAL")
    await refused(path, "newer version of the TypeScript SDK .schema 5, this version knows 4")


@pytest.mark.parametrize("version", [0, 1, 4])
async def test_a_database_of_something_else_is_refused(path, version):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE sessions (id INTEGER)")
        connection.execute(f"PRAGMA user_version = {version}")
    await refused(path, "SQLite database of something else")


async def test_a_store_of_ours_is_refused(path):
    async with SqlStore(f"sqlite:///{path.with_name('p.db')}") as store:
        await store.sessions()
    path = path.with_name("p.db")
    await refused(path, "is a store of perdure")


async def test_a_file_that_is_no_database_is_refused(path):
    path.write_bytes(b"This is a letter, and a long one at that. " * 100)
    await refused(path, "is not a SQLite database")


async def test_a_truncated_database_is_refused(path, record):
    async with LoushoSqliteStore(path) as store:
        await store.save("trip", record("trip", 200))
    path.write_bytes(path.read_bytes()[:9000])
    await refused(path, "cannot be used: .*malformed")


async def test_a_missing_file_a_missing_folder_and_a_folder(path):
    with pytest.raises(StorageError, match="There is no store at"):
        await LoushoSqliteStore(path, create=False).load("trip")
    with pytest.raises(StorageError, match="is a directory"):
        await LoushoSqliteStore(path.parent).load("trip")
    with pytest.raises(StorageError, match="does not exist"):
        await LoushoSqliteStore(path / "x.db").load("trip")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("payload", ['{"a": 1', "[]", "null", "", "NaN", b"{\xff}"])
async def test_a_damaged_row_is_named_and_left(path, record, payload):
    async with LoushoSqliteStore(path) as store:
        await store.save("trip", record("trip"))
        await store.save("whole", record("whole"))
    with closing(sqlite3.connect(path)) as connection:
        for table in ("checkpoints", "checkpoint_history"):
            connection.execute(
                f"UPDATE {table} SET payload = ? WHERE session_id = 'trip'", [payload]
            )
        connection.execute("INSERT INTO approvals VALUES ('a1', ?, 1, 1, NULL)", [payload])
        connection.commit()
    before = path.read_bytes()
    async with LoushoSqliteStore(path) as store:
        with pytest.raises(StorageError, match=r"checkpoint of 'trip' .* is damaged"):
            await store.load("trip")
        with pytest.raises(StorageError, match=r"Row 1 in the history of 'trip' .* is damaged"):
            await store.history("trip")
        with pytest.raises(StorageError, match=r"approval 'a1' .* is damaged"):
            await store.claim_approval("a1")
        assert await store.load("whole") is not None
        assert path.read_bytes() == before
        await store.save("trip", record("trip"))
        assert await store.load("trip") is not None


@pytest.mark.parametrize("session_id", ["../x", "", ".x", "a/b", "x" * 201, "a\n", "é"])
async def test_an_id_that_the_format_does_not_know(path, record, session_id):
    async with LoushoSqliteStore(path) as store:
        with pytest.raises(SessionIdInvalidError):
            await store.save(session_id, record(session_id))


async def test_prune_drops_old_entries_and_no_checkpoint(path, record):
    async with LoushoSqliteStore(path) as store:
        for step in (1, 2, 3):
            await store.save("trip", record("trip", step))
        with closing(sqlite3.connect(path)) as connection:
            for row, days in ((1, 10), (2, 10), (3, 1)):
                connection.execute(
                    "UPDATE checkpoint_history SET saved_at = saved_at - ? WHERE id = ?",
                    [days * 86_400_000, row],
                )
            connection.commit()
        assert await store.prune(timedelta(days=5)) == 2
        assert [entry.step for entry in await store.history("trip")] == [3]
        assert await store.prune(timedelta(0)) == 1
        assert await store.load("trip") == record("trip", 3)
