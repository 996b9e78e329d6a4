"""The statements of a run's every step, with nothing between them and SQLite that can be spared.

SQLAlchemy does for each execution of a statement several times the work that SQLite does. One of
these is compiled by it once for each database; then the driver gets the same text, and values
that the types of their columns have converted, as ever.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import SelectBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import Connection, Dialect
    from sqlalchemy.sql.expression import Select, TextClause, TextualSelect, UpdateBase
    from sqlalchemy.types import TypeEngine

    _Query = Select[Any] | TextualSelect | UpdateBase | TextClause
    _Converters = list[tuple[int, Callable[[Any], Any]]]

__all__ = ["Prepared"]


class Prepared:
    """A statement whose values are all named parameters, with the types of their columns.

    On PostgreSQL, and where somebody listens to ``before_cursor_execute``, SQLAlchemy executes it.
    """

    def __init__(self, query: _Query) -> None:
        self._query = query
        self._forms: WeakKeyDictionary[Dialect, _Form] = WeakKeyDictionary()

    def one(self, connection: Connection, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """The one row that it gives, or ``None``."""
        if not _is_direct(connection):
            return connection.execute(self._query, values).one_or_none()
        form = self._form(connection.dialect)
        try:
            rows = _driver(connection).execute(form.sql, form.bound(values)).fetchall()
        except sqlite3.Error as error:
            raise form.error(error) from error
        return form.read(rows[0]) if rows else None

    def run(self, connection: Connection, *values: Mapping[str, Any]) -> None:
        """Execute it once for each of ``values``."""
        if not _is_direct(connection):
            connection.execute(self._query, list(values))
            return
        form = self._form(connection.dialect)
        try:
            _driver(connection).executemany(form.sql, map(form.bound, values))
        except sqlite3.Error as error:
            raise form.error(error) from error

    def _form(self, dialect: Dialect) -> _Form:
        form = self._forms.get(dialect)
        if form is None:
            form = self._forms[dialect] = _Form(self._query, dialect)
        return form


class _Form:
    """A statement as the driver takes it."""

    def __init__(self, query: _Query, dialect: Dialect) -> None:
        compiled: Any = query.compile(dialect=dialect)
        self.sql = str(compiled)
        names = self._names = compiled.positiontup
        self._into = _converters(
            _of(compiled.binds[name].type, dialect).bind_processor(dialect) for name in names
        )
        columns = query.selected_columns if isinstance(query, SelectBase) else ()
        self._out_of = _converters(
            _of(column.type, dialect).result_processor(dialect, None) for column in columns
        )

    def bound(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return _converted(tuple([values[name] for name in self._names]), self._into)

    def read(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return _converted(row, self._out_of)

    def error(self, error: sqlite3.Error) -> BaseException:
        """The error that SQLAlchemy would have raised, without the values: they are content."""
        return DBAPIError.instance(self.sql, None, error, sqlite3.Error)


def _is_direct(connection: Connection) -> bool:
    if connection.dialect.name != "sqlite":
        return False
    return not connection.dispatch.before_cursor_execute


def _driver(connection: Connection) -> Any:
    return connection.connection.dbapi_connection


def _of(type_: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    return type_.dialect_impl(dialect)


def _converters(given: Iterable[Callable[[Any], Any] | None]) -> _Converters:
    return [(place, convert) for place, convert in enumerate(given) if convert is not None]


def _converted(values: tuple[Any, ...], converters: _Converters) -> tuple[Any, ...]:
    if not converters:
        return values
    changed = list(values)
    for place, convert in converters:
        changed[place] = convert(changed[place])
    return tuple(changed)
