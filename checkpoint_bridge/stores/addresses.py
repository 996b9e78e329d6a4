"""Addresses of stores, read in one place.

``lousho-sqlite:FILE`` and ``lousho-files:DIRECTORY`` are stores in the TypeScript SDK's forms;
``sqlite:///FILE`` and ``postgresql://…`` are stores of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import ConfigurationError, StorageError
from perdure.checkpoint_bridge.stores.lousho_files import LoushoFileStore
from perdure.checkpoint_bridge.stores.lousho_sqlite import LoushoSqliteStore
from perdure.checkpoint_bridge.stores.sql_store import SqlStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

    from perdure.checkpoint_bridge.stores.store import CheckpointStore

__all__ = ["FORMS", "Targets", "name_of", "open_address", "stores_of"]

Targets: TypeAlias = "str | CheckpointStore | Iterable[str | CheckpointStore] | None"
"""One or more stores, by address or as objects."""

FORMS = "lousho-sqlite:FILE, lousho-files:DIRECTORY, sqlite:///FILE or postgresql://…"

_SQLITE, _FILES = "lousho-sqlite", "lousho-files"
_BUSY_SECONDS = 5.0
"""A mirror tries again by itself, so it does not wait long for a file that is locked."""
_NAME_LENGTH = 200


def open_address(address: str, *, create: bool = True, field: str = "mirror") -> CheckpointStore:
    """The store of an address. It is opened at its first use, so it may be down now.

    Args:
        address: one of :data:`FORMS`.
        create: whether a missing file is made; without, using it is an error.
        field: what to name in an error.

    Raises:
        ConfigurationError: it is none of these forms.
        StorageError: there is no such directory, and it is not to be made.
    """
    scheme, colon, path = address.partition(":")
    if scheme in (_SQLITE, _FILES) and colon:
        if not path:
            msg = f"{address!r} names no {'file' if scheme == _SQLITE else 'directory'}."
            raise ConfigurationError(msg, field=field)
        if scheme == _SQLITE:
            return LoushoSqliteStore(
                Path(path).absolute(), create=create, busy_seconds=_BUSY_SECONDS
            )
        directory = Path(path).absolute()
        if not create and not directory.is_dir():
            msg = f"There is no directory {directory}."
            raise StorageError(msg, hint="Check the address.")
        return LoushoFileStore(directory)
    if "://" not in address:
        msg = f"{address!r} is not the address of a store; use {FORMS}."
        raise ConfigurationError(msg, field=field)
    store = SqlStore(address, create=create)
    if store.database.in_memory:
        msg = f"{address!r} is in memory, where no other process finds it."
        raise ConfigurationError(msg, field=field)
    return store


def stores_of(targets: Targets) -> list[tuple[CheckpointStore, bool]]:
    """The stores that are meant, each with whether it was opened here (by its address).

    Raises:
        ConfigurationError: one is neither an address nor a store.
    """
    if targets is None:
        return []
    given: list[Any] = [targets]
    if not isinstance(targets, str) and not _is_store(targets):
        with contextlib.suppress(TypeError):
            given = list(targets)  # type: ignore[arg-type]
    found: list[tuple[CheckpointStore, bool]] = []
    for each in given:
        if isinstance(each, str):
            found.append((open_address(each), True))
        elif _is_store(each):
            found.append((each, False))
        else:
            msg = f"A mirror is a store or the address of one, not {type(each).__name__}."
            hint = "A store has the methods save, load and delete."
            raise ConfigurationError(msg, field="mirror", hint=hint)
    return found


def name_of(store: CheckpointStore) -> str:
    """What a store is called in messages and in the table of mirrors: no password in it.

    A store of a user's own is called what its ``name`` says, else like its class.
    """
    if isinstance(store, LoushoSqliteStore):
        name = f"{_SQLITE}:{store.path.absolute()}"
    elif isinstance(store, LoushoFileStore):
        name = f"{_FILES}:{store.directory.absolute()}"
    elif isinstance(store, SqlStore):
        name = str(store.database)
        if store.database.is_sqlite and not store.database.in_memory:
            name = f"sqlite:///{Path(store.database.url.database or '').absolute()}"
    else:
        given = getattr(store, "name", None)
        name = given if isinstance(given, str) and given else type(store).__qualname__
    if len(name) > _NAME_LENGTH:
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
        name = f"{name[: _NAME_LENGTH - 17]}#{digest}"
    return name


def _is_store(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("save", "load", "delete"))
