"""Looks into a SQLite file before anything may change it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from perdure.checkpoint_bridge.errors import StorageError
from perdure.checkpoint_bridge.tables.schema import VERSION_TABLE

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SqliteSchema", "is_locked", "read_schema", "reason_of"]

_BUSY_SECONDS = 30
_WAL = b"\2\2"
"""What a file's header says at offset 18 when its journal is a write-ahead log."""


@dataclass(frozen=True, slots=True)
class SqliteSchema:
    """What tells whose file it is."""

    version: int
    """``PRAGMA user_version``; 0 when nobody set one."""
    tables: frozenset[str]
    revision: str | None
    """Of a store of ours: the revision of its schema."""


async def read_schema(path: Path, *, create: bool) -> SqliteSchema:
    """Find out what a SQLite file holds, without changing a byte of it.

    A file that is missing is made (empty, for its owner only) when ``create`` says so.

    Raises:
        StorageError: there is no such file, it is no SQLite database, or it cannot be read.
    """
    return await asyncio.to_thread(_read_schema, path, create=create)


def _read_schema(path: Path, *, create: bool) -> SqliteSchema:
    if path.is_dir():
        msg = f"{path} is a directory; a store is a file."
        raise StorageError(msg)
    if not path.exists():
        if not create:
            msg = f"There is no store at {path}."
            raise StorageError(msg, hint="Check --store; a worker or a run creates the file.")
        if not path.parent.is_dir():
            msg = f"The directory {path.parent} for the store does not exist."
            raise StorageError(msg)
    try:
        if create:
            # Conversations are private: only the owner reads the file that we create.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with path.open("rb") as file:
            header = file.read(20)
    except OSError as error:
        msg = f"The store {path} cannot be used: {error.strerror or error}"
        raise StorageError(msg) from error
    if not header:
        return SqliteSchema(0, frozenset(), None)
    # A file with a write-ahead log that nobody has open is read as it lies there: SQLite would
    # make the log's files beside it first.
    untouched = header[18:20] == _WAL and not path.with_name(f"{path.name}-wal").exists()
    try:
        try:
            return _look(path, "immutable=1" if untouched else "mode=ro")
        except sqlite3.OperationalError:
            # A writer was killed in its transaction, and only a writer can roll that back.
            return _look(path, "mode=rw")
    except sqlite3.Error as error:
        raise StorageError(_what_is_wrong(path, error)) from error


def _look(path: Path, mode: str) -> SqliteSchema:
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = frozenset(str(row[0]) for row in names) - {"sqlite_sequence"}
        revision = None
        if VERSION_TABLE in tables:
            row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - our own name
            revision = row and str(row[0])
        return SqliteSchema(version, tables, revision)


def _what_is_wrong(path: Path, error: sqlite3.Error) -> str:
    if "not a database" in str(error):
        return f"{path} is not a SQLite database."
    return f"The store {path} cannot be used: {error}"


def is_locked(error: DBAPIError) -> bool:
    """Whether somebody else has a SQLite file just now."""
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def reason_of(error: SQLAlchemyError) -> str:
    """The first line of what the database itself said."""
    origin: BaseException = error
    if isinstance(error, DBAPIError) and error.orig is not None:
        origin = error.orig
    return (str(origin) or type(origin).__name__).strip().splitlines()[0]
