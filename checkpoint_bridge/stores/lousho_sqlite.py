"""Checkpoints in the TypeScript SDK's SQLite file (``SqliteStore``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    delete,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from perdure.checkpoint_bridge.errors import StorageError
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry
from perdure.checkpoint_bridge.log.events import label
from perdure.checkpoint_bridge.stores.store import DEFAULT_HISTORY_LIMIT, check_history_limit
from perdure.checkpoint_bridge.stores.stored import (
    StoredApproval,
    approval_record,
    approval_text,
    check_approval_id,
    check_checkpoint_id,
    entry_record,
    now_ms,
    read_object,
    record_text,
)
from perdure.checkpoint_bridge.tables.sqlite_file import SqliteSchema, read_schema, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta
    from typing import Self

    from sqlalchemy import Connection, Engine

__all__ = ["LoushoSqliteStore"]

R = TypeVar("R")

# For each version, what brings a file of the version before to it. The tables are the format
# page's, so that a file made here and one made by the TypeScript SDK are the same.
_MIGRATIONS = (
    """
    CREATE TABLE IF NOT EXISTS sessions (
      id TEXT PRIMARY KEY,
      payload TEXT NOT NULL,
      created_at INTEGER NOT NULL,
      updated_at INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS idx_sessions_updated_at ON sessions (updated_at);
    CREATE TABLE IF NOT EXISTS checkpoints (
      session_id TEXT PRIMARY KEY,
      payload TEXT NOT NULL,
      created_at INTEGER NOT NULL,
      updated_at INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS idx_checkpoints_updated_at ON checkpoints (updated_at);
    CREATE TABLE IF NOT EXISTS approvals (
      id TEXT PRIMARY KEY,
      payload TEXT NOT NULL,
      created_at INTEGER NOT NULL,
      updated_at INTEGER NOT NULL,
      resolved_at INTEGER
    );
    CREATE INDEX IF NOT EXISTS idx_approvals_resolved_at ON approvals (resolved_at);
    """,
    """
    CREATE TABLE IF NOT EXISTS checkpoint_history (
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      session_id TEXT NOT NULL,
      step INTEGER NOT NULL,
      status TEXT NOT NULL,
      saved_at INTEGER NOT NULL,
      payload TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS idx_checkpoint_history_session
      ON checkpoint_history (session_id, id);
    CREATE INDEX IF NOT EXISTS idx_checkpoint_history_saved_at ON checkpoint_history (saved_at);
    """,
    """
    CREATE TABLE IF NOT EXISTS memory_items (
      scope_key TEXT PRIMARY KEY,
      payload TEXT NOT NULL,
      updated_at INTEGER NOT NULL
    );
    """,
    """
    CREATE TABLE IF NOT EXISTS oauth_tokens (
      key TEXT PRIMARY KEY,
      payload TEXT NOT NULL,
      updated_at INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS oauth_pending (
      state TEXT PRIMARY KEY,
      payload TEXT NOT NULL,
      expires_at INTEGER NOT NULL
    );
    """,
)
_VERSION = len(_MIGRATIONS)
_FIRST_TABLES = {"sessions", "checkpoints", "approvals"}
_BUSY_SECONDS = 30

_metadata = MetaData()
_checkpoints = Table(
    "checkpoints",
    _metadata,
    Column("session_id", Text, primary_key=True),
    Column("payload", Text),
    Column("created_at", Integer),
    Column("updated_at", Integer),
)
_history = Table(
    "checkpoint_history",
    _metadata,
    Column("id", Integer, primary_key=True),
    Column("session_id", Text),
    Column("step", Integer),
    Column("status", Text),
    Column("saved_at", Integer),
    Column("payload", Text),
)
_approvals = Table(
    "approvals",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("payload", Text),
    Column("created_at", Integer),
    Column("updated_at", Integer),
    Column("resolved_at", Integer),
)


class LoushoSqliteStore:
    """A documented store in a SQLite file that the TypeScript SDK reads and writes too.

    The file is opened at the first use and brought to version 4 of the format when it is older.
    A newer one is refused. Any number of processes may use it at the same time.

    Args:
        path: the file; made when it is missing.
        history_limit: how many saves are kept for a session; 0 keeps none.
        create: whether a missing file is made; without, it is an error.
        busy_seconds: how long to wait for another process's transaction.

    Raises:
        ConfigurationError: the limit is negative or no whole number.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        history_limit: int = DEFAULT_HISTORY_LIMIT,
        *,
        create: bool = True,
        busy_seconds: float = _BUSY_SECONDS,
    ) -> None:
        self.path = Path(path)
        self._busy_seconds = busy_seconds
        self.history_limit = check_history_limit(history_limit)
        self._create = create
        self._engine: Engine | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the file, and bring it to the version that we know.

        Raises:
            StorageError: it is missing, damaged, something else's or too new.
        """
        async with self._turn:
            await self._open()

    async def close(self) -> None:
        """Close the file; the next call opens it again."""
        async with self._turn:
            engine, self._engine = self._engine, None
            if engine is not None:
                await asyncio.to_thread(engine.dispose)

    # -- the documented contract -------------------------------------------------------------

    async def save(self, session_id: str, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint and add it to the history, in one transaction.

        Raises:
            SessionIdInvalidError: the TypeScript SDK could not use the id.
        """
        await self.save_at(session_id, checkpoint, now_ms())

    async def save_at(self, session_id: str, checkpoint: Checkpoint, saved_at_ms: int) -> None:
        """As :meth:`save`, with the time that the save had where it comes from."""
        await self.save_all(session_id, [(checkpoint, saved_at_ms)])

    async def save_all(self, session_id: str, saves: Sequence[tuple[Checkpoint, int]]) -> None:
        """Several saves, oldest first, in one transaction."""
        check_checkpoint_id(session_id)

        def save(connection: Connection) -> None:
            for checkpoint, saved_at_ms in saves:
                self._save(connection, session_id, checkpoint, saved_at_ms)

        await self._write(save)

    async def create(self, session_id: str, checkpoint: Checkpoint) -> bool:
        """Save, unless the session has a checkpoint; returns whether it was saved."""
        check_checkpoint_id(session_id)
        found = select(_checkpoints.c.session_id).where(_checkpoints.c.session_id == session_id)

        def create(connection: Connection) -> bool:
            if connection.scalar(found) is not None:
                return False
            self._save(connection, session_id, checkpoint, now_ms())
            return True

        return await self._write(create)

    async def load(self, session_id: str) -> Checkpoint | None:
        """The session's checkpoint, or ``None``.

        Raises:
            StorageError: the row is damaged.
        """
        query = select(_checkpoints.c.payload).where(_checkpoints.c.session_id == session_id)
        payload = await self._read(lambda connection: connection.scalar(query))
        if payload is None:
            return None
        place = f"The checkpoint of {session_id!r} in {self.path}"
        return Checkpoint.from_json(read_object(payload, place))

    async def history(self, session_id: str, limit: int | None = None) -> list[HistoryEntry]:
        """The saves that are kept, newest first; ``[]`` for an unknown session.

        Raises:
            StorageError: the row of one is damaged.
        """
        count = self.history_limit if limit is None else min(limit, self.history_limit)
        if count <= 0:
            return []
        query = (
            select(_history)
            .where(_history.c.session_id == session_id)
            .order_by(_history.c.id.desc())
            .limit(count)
        )
        rows = await self._read(lambda connection: connection.execute(query).all())
        place = f"in the history of {session_id!r} in {self.path}"
        return [
            HistoryEntry.from_json(
                entry_record(read_object(row.payload, f"Row {row.id} {place}"), row.saved_at)
            )
            for row in rows
        ]

    async def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        """Remove the checkpoint, and the history unless it is to be kept."""

        def remove(connection: Connection) -> None:
            for table in (_checkpoints,) if keep_history else (_checkpoints, _history):
                connection.execute(delete(table).where(table.c.session_id == session_id))

        await self._write(remove)

    async def session_ids(self) -> list[str]:
        """Ids of the sessions that have a checkpoint, sorted."""
        query = select(_checkpoints.c.session_id)
        return sorted(await self._read(lambda connection: connection.scalars(query).all()))

    async def prune(self, older_than: timedelta) -> int:
        """Drop the history's entries that are older; checkpoints stay. Returns how many."""
        cutoff = now_ms() - int(older_than.total_seconds() * 1000)
        old = delete(_history).where(_history.c.saved_at < cutoff)
        return await self._write(lambda connection: connection.execute(old).rowcount)

    # -- approvals ---------------------------------------------------------------------------

    async def save_approval(self, approval: StoredApproval) -> None:
        """Write what waits for a decision (again, to put back one that was claimed)."""
        await self.save_approval_at(approval, now_ms())

    async def save_approval_at(self, approval: StoredApproval, time_ms: int) -> None:
        """As :meth:`save_approval`, at the time of the pause."""
        values = {"payload": approval_text(approval), "updated_at": time_ms, "resolved_at": None}
        upsert = (
            sqlite.insert(_approvals)
            .values(id=check_approval_id(approval.pending.id), created_at=time_ms, **values)
            .on_conflict_do_update(index_elements=["id"], set_=values)
        )
        await self._write(lambda connection: connection.execute(upsert))

    async def pending_approvals(self) -> list[StoredApproval]:
        """What waits for a decision, oldest first.

        Raises:
            StorageError: the row of one is damaged.
        """
        query = (
            select(_approvals)
            .where(_approvals.c.resolved_at.is_(None))
            .order_by(_approvals.c.created_at, _approvals.c.id)
        )
        rows = await self._read(lambda connection: connection.execute(query).all())
        return [self._approval(row) for row in rows]

    async def claim_approval(self, approval_id: str) -> StoredApproval | None:
        """Take an approval in order to decide it: one caller gets it, the others ``None``."""
        return await self.claim_approval_at(approval_id, now_ms())

    async def claim_approval_at(self, approval_id: str, time_ms: int) -> StoredApproval | None:
        """As :meth:`claim_approval`, at the time of the decision."""
        is_pending = (_approvals.c.id == approval_id, _approvals.c.resolved_at.is_(None))

        def claim(connection: Connection) -> StoredApproval | None:
            row = connection.execute(select(_approvals).where(*is_pending)).one_or_none()
            if row is None:
                return None
            approval = self._approval(row)  # a damaged one is not taken
            taken = update(_approvals).where(*is_pending)
            connection.execute(taken.values(resolved_at=time_ms, updated_at=time_ms))
            return approval

        return await self._write(claim)

    def _approval(self, row: Any) -> StoredApproval:
        return approval_record(row.payload, f"The approval {row.id!r} in {self.path}")

    # -- the file ----------------------------------------------------------------------------

    def _save(
        self, connection: Connection, session_id: str, checkpoint: Checkpoint, time_ms: int
    ) -> None:
        payload = record_text(checkpoint)
        connection.execute(
            sqlite.insert(_checkpoints)
            .values(session_id=session_id, payload=payload, created_at=time_ms, updated_at=time_ms)
            .on_conflict_do_update(
                index_elements=["session_id"], set_={"payload": payload, "updated_at": time_ms}
            )
        )
        if not self.history_limit:
            return
        entry = entry_record(checkpoint.raw, time_ms)
        connection.execute(
            insert(_history).values(
                session_id=session_id,
                step=entry["step"],
                status=label(entry["status"], 200),
                saved_at=time_ms,
                payload=payload,
            )
        )
        oldest = (
            select(_history.c.id)
            .where(_history.c.session_id == session_id)
            .order_by(_history.c.id.desc())
            .offset(self.history_limit - 1)
            .limit(1)
            .scalar_subquery()
        )
        connection.execute(
            delete(_history).where(_history.c.session_id == session_id, _history.c.id < oldest)
        )

    async def _read(self, use: Callable[[Connection], R]) -> R:
        return await self._transaction("BEGIN", use)

    async def _write(self, use: Callable[[Connection], R]) -> R:
        return await self._transaction("BEGIN IMMEDIATE", use)

    async def _transaction(self, begin: str, use: Callable[[Connection], R]) -> R:
        async with self._turn:
            engine = await self._open()
            return await asyncio.to_thread(self._use, engine, begin, use)

    def _use(self, engine: Engine, begin: str, use: Callable[[Connection], R]) -> R:
        with self._errors(), engine.execution_options(begin=begin).begin() as connection:
            return use(connection)

    async def _open(self) -> Engine:
        if self._engine is not None:
            return self._engine
        version = self._check(await read_schema(self.path, create=self._create))
        engine = _engine(self.path, self._busy_seconds)
        if version < _VERSION:
            try:
                await asyncio.to_thread(self._use, engine, "BEGIN IMMEDIATE", _migrate)
            except BaseException:
                engine.dispose()
                raise
        self._engine = engine
        return engine

    def _check(self, schema: SqliteSchema) -> int:
        """Give the file's version, unless it is not ours to use."""
        if schema.version > _VERSION:
            msg = (
                f"{self.path} was written by a newer version of the TypeScript SDK (schema"
                f" {schema.version}, this version knows {_VERSION})."
            )
            raise StorageError(msg, hint="Upgrade perdure; nothing was changed.")
        if schema.revision is not None:
            msg = f"{self.path} is a store of perdure, not a file of the TypeScript SDK."
            raise StorageError(msg, hint=f"Give it as sqlite:///{self.path}; nothing was changed.")
        if (schema.version or schema.tables) and not schema.tables >= _FIRST_TABLES:
            msg = f"{self.path} is a SQLite database of something else."
            raise StorageError(msg, hint="Give another file; nothing was changed.")
        return schema.version

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            msg = f"{self.path} cannot be used: {reason_of(error)}"
            raise StorageError(msg) from error


def _migrate(connection: Connection) -> None:
    # Another process may have done it while this one waited for its turn.
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    for statement in ";".join(_MIGRATIONS[version:]).split(";"):
        if statement.strip():
            connection.exec_driver_sql(statement.strip())
    if version < _VERSION:
        connection.exec_driver_sql(f"PRAGMA user_version = {_VERSION}")


def _engine(path: Path, busy_seconds: float) -> Engine:
    """Take transactions out of the driver's hands. The journal mode stays as the file has it."""
    engine = create_engine(
        URL.create("sqlite", database=os.fspath(path)),
        connect_args={"timeout": busy_seconds, "check_same_thread": False},
        pool_size=1,
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options()["begin"])

    return engine
