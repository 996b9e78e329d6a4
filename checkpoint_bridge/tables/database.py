"""Opens the store's database, brings its schema up to date, and hands out transactions.

One class for SQLite and PostgreSQL. What differs between them is here and nowhere else:
how a connection is set up, how a writer takes its turn, and what an error means.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from sqlalchemy import create_engine, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from perdure.checkpoint_bridge.errors import ConfigurationError, LogConflictError, StorageError
from perdure.checkpoint_bridge.tables.backends import Postgres, Sqlite
from perdure.checkpoint_bridge.tables.schema import SCHEMA_REVISION, VERSION_TABLE, identity
from perdure.checkpoint_bridge.tables.sealing import Cipher, refuse_sealed
from perdure.checkpoint_bridge.tables.sqlite_file import read_schema, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator

    from sqlalchemy import Connection
    from sqlalchemy.engine import URL

    from perdure.checkpoint_bridge.keyring import Keyring
    from perdure.checkpoint_bridge.tables.backends import Backend

P = ParamSpec("P")
R = TypeVar("R")

_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
_MIGRATION_LOCK = 0x7065726475726500
"""Key of PostgreSQL's advisory lock; the bytes spell the project's name."""

_MIGRATING = threading.Lock()
"""Alembic keeps what it works on in globals, so two migrations would take each other's place."""

_MIGRATION_PAUSE = 0.01

_POOL = {"pool_size": 5, "max_overflow": 10, "pool_timeout": 30, "pool_recycle": 1800}
"""Settings that a PostgreSQL address may hold (``?pool_size=20``), with their defaults: kept
connections, more of them at need, and seconds until none is free or one is made anew."""


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


def _split_pool(url: URL) -> tuple[URL, dict[str, int]]:
    """Take the pool's settings out of a PostgreSQL address; the driver does not know them.

    Raises:
        ConfigurationError: a setting is no number (``field`` is ``store``).
    """
    pool = dict(_POOL)
    if url.get_backend_name() == "sqlite":
        return url, pool
    for name in _POOL.keys() & url.query.keys():
        value = url.query[name]
        if not (isinstance(value, str) and value.isdigit() and int(value) >= (name == "pool_size")):
            msg = f"{name} of a store's address is a whole number, not {value!r}."
            raise ConfigurationError(msg, field="store")
        pool[name] = int(value)
    return url.difference_update_query(_POOL), pool


class Database:
    """A database that opens itself at first use.

    What is to be done is a plain function of a SQLAlchemy connection. A whole transaction is
    handed over at once: on SQLite to a thread (a hop for each statement would cost several
    times the statement), on PostgreSQL to the driver's own event loop support.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool | Literal["late"] = True,
        keys: Keyring | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            url: see :func:`parse_store_url`.
            create: make the SQLite file when it is missing; ``"late"``: when something is first
                written to it, until then it reads as an empty store.
            keys: encrypt content at rest with these.
        """
        self.url, self._pool = _split_pool(parse_store_url(url))
        self._cipher = None if keys is None else Cipher(keys)
        self._create = bool(create)
        self._late = create == "late"
        self._nothing: Backend | None = None
        self._opening = asyncio.Lock()
        self._backend: Backend | None = None
        self._identity: str | None = None

    @property
    def is_sqlite(self) -> bool:
        """Whether the store is a SQLite database."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def in_memory(self) -> bool:
        """Whether it ends with the process."""
        return self.is_sqlite and self.url.database in (None, "", ":memory:")

    def __str__(self) -> str:
        return self.url.set(drivername=self.url.get_backend_name()).render_as_string()

    async def read(
        self, use: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Give what ``use(connection, …)`` gives, in one transaction that writes nothing."""
        backend = await self.open()
        with self._errors():
            return await backend.run(_call(use, args, kwargs), write=False)

    async def write(
        self, use: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """The same in a transaction that is committed, or rolled back when ``use`` raises.

        On SQLite it has the writer's turn from its beginning (``BEGIN IMMEDIATE``).
        """
        backend = await self.open(write=True)
        with self._errors():
            return await backend.run(_call(use, args, kwargs), write=True)

    async def read_quick(
        self, use: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """As :meth:`read`, for a few rows by their keys."""
        backend = await self.open()
        with self._errors():
            return await backend.run_quick(_call(use, args, kwargs), write=False)

    async def write_quick(
        self, use: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """As :meth:`write`, for a few rows: what a run does at each of its steps.

        On SQLite it may share its transaction with others that wait: ``use`` can be called twice,
        the first time for nothing.
        """
        backend = await self.open(write=True)
        with self._errors():
            return await backend.run_quick(_call(use, args, kwargs), write=True)

    def read_now(
        self, use: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """As :meth:`read`, for code that cannot wait: it blocks its thread.

        Not for a store in memory, whose one connection is another thread's.
        """
        engine = create_engine(self.url, poolclass=NullPool)
        if self._cipher is not None:
            self._cipher.attach(engine.dialect)
        with self._errors(), engine.connect() as connection:
            return use(connection, *args, **kwargs)

    async def open(self, *, write: bool = False) -> Backend:
        """Connect and migrate. Safe to call by many processes at once.

        Raises:
            StorageError: the database is missing, damaged, something else's or too new.
            EncryptionKeyError: its content is encrypted with a key that is not here.
        """
        if self._backend is not None:
            return self._backend
        async with self._opening:
            if self._backend is None:
                if self._late and not write and self._is_missing():
                    if self._nothing is None:
                        self._nothing = await Database("sqlite://").open()
                    return self._nothing
                self._backend = await self._open()
            return self._backend

    def _is_missing(self) -> bool:
        if not self.is_sqlite or self.in_memory:
            return False
        path = Path(self.url.database or "")
        # Where it cannot be made later, say so now.
        return not path.exists() and path.parent.is_dir()

    async def identity(self) -> str:
        """The id that the store got when it was made; of a file that is not there, its place."""
        await self.open()
        return self._identity or self._place

    async def is_called(self, name: str) -> bool:
        """Whether a name that somebody got from :meth:`identity` is this store's."""
        return name in (await self.identity(), self._place)

    @property
    def _place(self) -> str:
        if not self.is_sqlite:
            return str(self)
        return f"sqlite:///{Path(self.url.database or '').resolve()}"

    async def close(self) -> None:
        """Give back all connections; the next call opens the database again."""
        async with self._opening:
            opened = (self._backend, self._nothing)
            self._backend = self._nothing = self._identity = None
            for backend in opened:
                if backend is not None:
                    await backend.close()

    async def _open(self) -> Backend:
        backend: Backend
        if not self.is_sqlite:
            try:
                backend = Postgres(self.url, self._pool)
            except ModuleNotFoundError as error:
                msg = "A store on PostgreSQL needs a driver that is not installed."
                hint = "Install it with: pip install 'perdure[postgres]'"
                raise ConfigurationError(msg, field="store", hint=hint) from error
        else:
            if not self.in_memory:
                # Before there is an engine: setting up its connections changes the file.
                schema = await read_schema(Path(self.url.database or ""), create=self._create)
                self._refuse(schema.tables, schema.revision)
                if not self._create and not schema.tables:
                    msg = f"{self.url.database} is empty: there is no store in it."
                    raise StorageError(msg, hint="A worker or a run makes the store.")
            backend = Sqlite(self.url, in_memory=self.in_memory)
        if self._cipher is not None:
            backend.attach(self._cipher)
        try:
            with self._errors():
                if not await backend.run(self._is_up_to_date, write=False):
                    async with _migrating():
                        await backend.run(self._bring_up_to_date, write=True)
                await self._unlock(backend)
                self._identity = await backend.run(_identity, write=False)
        except BaseException:
            await backend.close()
            raise
        return backend

    async def _unlock(self, backend: Backend) -> None:
        if self._cipher is None:
            await backend.run(refuse_sealed, write=False)
        else:
            known = await backend.run(self._cipher.is_known, write=False)
            await backend.run(self._cipher.unlock, write=not known)

    def _is_up_to_date(self, connection: Connection) -> bool:
        tables = set(inspect(connection).get_table_names())
        current = None
        if VERSION_TABLE in tables:
            current = connection.scalar(
                select(text("version_num")).select_from(text(VERSION_TABLE))
            )
        self._refuse(tables, current)
        return current == SCHEMA_REVISION

    def _bring_up_to_date(self, connection: Connection) -> None:
        if self._is_up_to_date(connection):
            return  # another process was faster
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        upgrade(connection)

    def _refuse(self, tables: Collection[str], current: str | None) -> None:
        """Raise unless this is a store that we know, or a place for a new one."""
        if current is not None:
            if not current.isdigit():
                msg = f"The store {self} is damaged: its schema's version cannot be read."
                raise StorageError(msg, hint="Restore a copy of it; nothing was changed.")
            if current > SCHEMA_REVISION:
                msg = (
                    f"The store {self} was written by a newer version of perdure "
                    f"(schema {current}, this version knows {SCHEMA_REVISION})."
                )
                raise StorageError(msg, hint="Upgrade perdure; nothing was changed.")
            return
        # A database of PostgreSQL may have other tables; a file is a store or it is not.
        if not self.is_sqlite or not tables:
            return
        msg = f"{self.url.database} is a SQLite database of something else, not a perdure store."
        if {"checkpoints", "sessions"} <= set(tables):
            msg = f"{self.url.database} is a store file of the TypeScript SDK, not a perdure store."
        raise StorageError(msg, hint="Give another file; nothing was changed.")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            msg = f"Another writer of {self} was faster."
            raise LogConflictError(msg) from error
        except SQLAlchemyError as error:
            msg = f"The store {self} cannot be used: {reason_of(error)}"
            raise StorageError(msg) from error


@contextlib.asynccontextmanager
async def _migrating() -> AsyncIterator[None]:
    """One migration at a time in this process, whatever thread or event loop it runs in."""
    while True:
        if _MIGRATING.acquire(blocking=False):
            break
        await asyncio.sleep(_MIGRATION_PAUSE)
    try:
        yield
    finally:
        _MIGRATING.release()


def _identity(connection: Connection) -> str:
    return str(connection.scalar(select(identity.c.id)))


def _call(
    use: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Connection], R]:
    return lambda connection: use(connection, *args, **kwargs)


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the migrations up to ``revision`` inside the caller's transaction."""
    # Alembic takes a tenth of a second to import and a current store does not need it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


__all__ = ["Database", "parse_store_url", "upgrade"]
