"""Opens the store's database, brings its schema up to date, and hands out transactions.

One class for SQLite and PostgreSQL. What differs between them is here and nowhere else:
how a connection is set up, how a writer takes its turn, and what an error means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import event, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from perdure.checkpoint_bridge.errors import ConfigurationError, LogConflictError, StorageError
from perdure.checkpoint_bridge.schema import SCHEMA_REVISION, VERSION_TABLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import Connection
    from sqlalchemy.engine import URL

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
_MIGRATION_LOCK = 0x7065726475726500
"""Key of PostgreSQL's advisory lock; the bytes spell the project's name."""

_BUSY_SECONDS = 30
"""How long a SQLite writer waits for another process's transaction."""


def parse_store_url(url: str) -> URL:
    """Read a store address.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://`` (in memory) or
            ``postgresql://user:password@host/database``.

    Raises:
        ConfigurationError: it is none of these (``field`` is ``store``).
    """
    forms = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        msg = f"{url!r} is not a store address; use {forms}."
        raise ConfigurationError(msg, field="store") from None
    dialect = parsed.drivername.partition("+")[0]
    if dialect not in _DRIVERS:
        msg = f"A store on {dialect!r} is not supported; use {forms}."
        raise ConfigurationError(msg, field="store")
    return parsed.set(drivername=_DRIVERS[dialect])


class Database:
    """A database that opens itself at first use.

    Reads and writes are separate context managers: a write is one transaction that takes the
    writer's turn at its beginning (SQLite: ``BEGIN IMMEDIATE``), a read is one snapshot.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.url = parse_store_url(url)
        self._create = create
        self._reader: AsyncEngine | None = None
        self._writer: AsyncEngine | None = None
        self._opening = asyncio.Lock()
        self._turn: asyncio.Lock | contextlib.nullcontext[None] = contextlib.nullcontext()
        """Serialises this process's SQLite writers: waiting here is cheaper than in SQLite."""
        self._alone: asyncio.Lock | contextlib.nullcontext[None] = contextlib.nullcontext()
        """An in-memory database has one connection, so its readers wait for writers too."""

    @property
    def is_sqlite(self) -> bool:
        """Whether the store is a SQLite database."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def in_memory(self) -> bool:
        """Whether it ends with the process."""
        return self.is_sqlite and self.url.database in (None, "", ":memory:")

    def __str__(self) -> str:
        return (
            self.url.render_as_string(hide_password=True)
            .replace("+aiosqlite", "")
            .replace("+psycopg", "")
        )

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """One consistent snapshot."""
        await self.open()
        assert self._reader is not None
        with self._errors():
            async with self._alone, self._reader.connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction: committed when the block ends, rolled back when it raises."""
        await self.open()
        assert self._writer is not None
        with self._errors():
            async with self._turn, self._alone, self._writer.begin() as connection:
                yield connection

    async def open(self) -> None:
        """Connect and migrate. Safe to call by many processes at once.

        Raises:
            StorageError: the database is missing, damaged, something else's or too new.
        """
        if self._writer is not None:
            return
        async with self._opening:
            if self._writer is None:
                await self._open()

    async def close(self) -> None:
        """Give back all connections; the next call opens the database again."""
        async with self._opening:
            for engine in {self._reader, self._writer} - {None}:
                assert engine is not None
                await engine.dispose()
            self._reader = self._writer = None

    async def _open(self) -> None:
        if self.is_sqlite and not self.in_memory:
            self._prepare_file()
        reader, writer = self._engines()
        try:
            with self._errors():
                async with writer.begin() as connection:
                    await connection.run_sync(self._bring_up_to_date)
        except BaseException:
            await reader.dispose()
            await writer.dispose()
            raise
        self._reader, self._writer = reader, writer

    def _prepare_file(self) -> None:
        path = Path(self.url.database or "")
        if not path.exists() and not self._create:
            msg = f"There is no store at {path}."
            raise StorageError(msg, hint="Check --store; a worker or a run creates the file.")
        if path.is_dir():
            msg = f"{path} is a directory; a store is a file."
            raise StorageError(msg)
        if not path.parent.is_dir():
            msg = f"The directory {path.parent} for the store does not exist."
            raise StorageError(msg)
        # Conversations are private: only the owner reads the file that we create.
        with contextlib.suppress(FileExistsError, OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def _engines(self) -> tuple[AsyncEngine, AsyncEngine]:
        if not self.is_sqlite:
            engine = create_async_engine(
                self.url, pool_size=5, max_overflow=10, pool_pre_ping=True, pool_recycle=1800
            )
            return engine, engine
        if self.in_memory:
            memory = create_async_engine(self.url, poolclass=StaticPool)
            _set_up_sqlite(memory, begin="BEGIN")
            self._alone = asyncio.Lock()
            return memory, memory
        timeout = {"timeout": _BUSY_SECONDS}
        reader = create_async_engine(self.url, pool_size=4, connect_args=timeout)
        _set_up_sqlite(reader, begin="BEGIN")
        writer = create_async_engine(self.url, pool_size=1, max_overflow=0, connect_args=timeout)
        _set_up_sqlite(writer, begin="BEGIN IMMEDIATE")
        self._turn = asyncio.Lock()
        return reader, writer

    def _bring_up_to_date(self, connection: Connection) -> None:
        tables = set(inspect(connection).get_table_names())
        if VERSION_TABLE not in tables:
            self._refuse_other_sqlite(tables)
            current = None
        else:
            current = connection.scalar(
                select(text("version_num")).select_from(text(VERSION_TABLE))
            )
        if current == SCHEMA_REVISION:
            return
        if current is not None and str(current) > SCHEMA_REVISION:
            msg = (
                f"The store {self} was written by a newer version of perdure "
                f"(schema {current}, this version knows {SCHEMA_REVISION})."
            )
            raise StorageError(msg, hint="Upgrade perdure; nothing was changed.")
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        upgrade(connection)

    def _refuse_other_sqlite(self, tables: set[str]) -> None:
        if not self.is_sqlite or not tables:
            return
        msg = f"{self.url.database} is a SQLite database of something else, not a perdure store."
        if {"checkpoints", "sessions"} <= tables:
            msg = f"{self.url.database} is a store file of the TypeScript SDK, not a perdure store."
        raise StorageError(msg, hint="Give another file; nothing was changed.")

    @contextlib.contextmanager
    def _errors(self) -> Any:
        try:
            yield
        except IntegrityError as error:
            msg = f"Another writer of {self} was faster."
            raise LogConflictError(msg) from error
        except SQLAlchemyError as error:
            raise self._storage_error(error) from error

    def _storage_error(self, error: SQLAlchemyError) -> StorageError:
        origin: BaseException = error
        if isinstance(error, DBAPIError) and error.orig is not None:
            origin = error.orig
        reason = (str(origin) or type(origin).__name__).strip().splitlines()[0]
        if isinstance(origin, sqlite3.DatabaseError) and "not a database" in reason:
            return StorageError(f"{self.url.database} is not a SQLite database.")
        return StorageError(f"The store {self} cannot be used: {reason}")


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the migrations up to ``revision`` inside the caller's transaction."""
    # Alembic takes a tenth of a second to import and a current store does not need it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _set_up_sqlite(engine: AsyncEngine, *, begin: str) -> None:
    """Take transactions out of the driver's hands, and make commits survive a power cut."""

    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


__all__ = ["Database", "parse_store_url", "upgrade"]
