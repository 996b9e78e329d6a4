"""The schema and its migrations, and what is no store of ours."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from perdure.checkpoint_bridge import LoushoSqliteStore, SqlStore
from perdure.checkpoint_bridge.errors import ConfigurationError, StorageError
from perdure.checkpoint_bridge.tables import migrations
from perdure.checkpoint_bridge.tables.database import Database, parse_store_url
from perdure.checkpoint_bridge.tables.schema import SCHEMA_REVISION, VERSION_TABLE, metadata

if TYPE_CHECKING:
    from pathlib import Path


def test_the_revision_is_the_newest_migration():
    config = Config()
    config.set_main_option("script_location", migrations.__path__[0])
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [SCHEMA_REVISION]
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions[::-1] == sorted(revisions)  # a newer schema has the greater revision


@pytest.fixture(params=["sqlite", "postgres"])
def new_url(request: pytest.FixtureRequest) -> str:
    name = "store_url" if request.param == "sqlite" else "empty_postgres_url"
    url: str = request.getfixturevalue(name)
    return url


async def test_the_migrations_make_the_schema(new_url):
    async with SqlStore(new_url):
        pass
    engine = create_engine(parse_store_url(new_url))
    with engine.connect() as connection:
        options = {"compare_type": True, "version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


async def test_many_open_a_new_store_at_once(new_url, begin):
    stores = [SqlStore(new_url) for _ in range(8)]
    await asyncio.gather(*(begin(each, f"s{n}") for n, each in enumerate(stores)))
    assert len(await stores[0].sessions()) == 8
    for each in stores:
        await each.close()


async def test_a_database_of_postgresql_may_have_other_tables(empty_postgres_url, begin):
    with psycopg.connect(empty_postgres_url) as connection:
        connection.execute("CREATE TABLE sessions (id int)")
    async with SqlStore(empty_postgres_url) as store:
        await begin(store)
    with psycopg.connect(empty_postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


async def test_a_newer_store_on_postgresql_is_refused(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StorageError, match=r"newer version of perdure \(schema 9999"):
        await SqlStore(postgres_url).open()


async def test_a_server_that_does_not_answer(tmp_path):
    store = SqlStore(f"postgresql://user:secret@/db?host={tmp_path}")
    with pytest.raises(StorageError) as caught:
        await store.sessions()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def refused(path: Path, message: str) -> None:
    before = await asyncio.to_thread(path.read_bytes)
    beside = await asyncio.to_thread(lambda: sorted(path.parent.iterdir()))
    store = SqlStore(f"sqlite:///{path}")
    for _ in range(2):
        with pytest.raises(StorageError, match=message) as caught:
            await store.sessions()
        assert "\n" not in str(caught.value)
    await store.close()
    assert await asyncio.to_thread(path.read_bytes) == before
    assert await asyncio.to_thread(lambda: sorted(path.parent.iterdir())) == beside


async def test_a_newer_store_is_refused(path, begin):
    async with SqlStore(f"sqlite:///{path}") as store:
        await begin(store)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        connection.commit()
    await refused(path, "newer version of perdure .schema 9999, this version knows")


async def test_a_file_that_is_no_database(path):
    path.write_bytes(b"SQLite format 3? No: a letter, and a long one. " * 100)
    await refused(path, r"store\.db is not a SQLite database")


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
async def test_a_database_of_something_else(path, journal):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY)")
    await refused(path, "SQLite database of something else")


async def test_a_file_of_the_typescript_sdk(path, tmp_path):
    async with LoushoSqliteStore(path) as store:
        await store.load("x")
    await refused(path, "store file of the TypeScript SDK")


async def test_a_damaged_store(path, begin, make):
    async with SqlStore(f"sqlite:///{path}") as store:
        run = await begin(store)
        await run.append(*(make.user(f"{number}" * 3000) for number in range(9)))
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * 4000 + content[4100:])
    with pytest.raises(StorageError, match=r"cannot be used|is not a SQLite database"):
        await SqlStore(f"sqlite:///{path}").sessions()


async def test_a_folder_a_missing_folder_and_a_missing_file(tmp_path):
    cases = [
        (SqlStore(f"sqlite:///{tmp_path}"), "is a directory"),
        (SqlStore(f"sqlite:///{tmp_path}/no/store.db"), "does not exist"),
        (SqlStore(f"sqlite:///{tmp_path}/store.db", create=False), "There is no store at"),
    ]
    for store, message in cases:
        with pytest.raises(StorageError, match=message) as caught:
            await store.sessions()
        assert caught.value.code == "LOUSHO_STORAGE_FAILED"
    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_is_there_is_opened_without_create(path, begin):
    async with SqlStore(f"sqlite:///{path}") as store:
        await begin(store)
    async with SqlStore(f"sqlite:///{path}", create=False) as store:
        assert len(await store.sessions()) == 1


async def test_only_its_owner_reads_a_new_store(path, begin):
    async with SqlStore(f"sqlite:///{path}") as store:
        await begin(store)
        modes = [each.stat().st_mode & 0o077 for each in path.parent.iterdir()]
    assert set(modes) == {0}


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://host/db", "http://x", "sqlite"])
def test_an_address_of_no_store(url):
    with pytest.raises(ConfigurationError) as caught:
        Database(url)
    assert caught.value.field == "store"


async def test_a_store_that_was_closed_opens_again(sql_url, begin):
    store = SqlStore(sql_url)
    await begin(store)
    await store.close()
    await store.close()
    assert len(await store.sessions()) == 1
    await store.close()
