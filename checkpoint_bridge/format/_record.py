"""Models as views of stored JSON.

A record of the format must come back from loading and saving with every byte of its meaning:
unknown keys in their place, absent keys absent, lone surrogates in strings (format page,
"Checkpoint"). So a model keeps the JSON object itself and reads attributes from it. Making one
costs the same for five messages as for five thousand.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from perdure.checkpoint_bridge.format.stable_json import Json, JsonObject, copy_json, json_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Field", "Record", "member", "one", "plain", "plain_list", "records"]

T = TypeVar("T")
R = TypeVar("R", bound="Record")


class Record:
    """One JSON object of the format, read by attributes.

    Attributes are read-only; :meth:`replace` gives a changed copy. Odd values (a missing key, a
    value of another type) are given as they are and never raise: what is stored was written by
    others.
    """

    __slots__ = ("raw",)

    raw: JsonObject
    """The JSON object itself, for reading: what is changed in it changes the record."""

    def __init__(self, **values: Any) -> None:
        """Make a record from attributes; ``None`` leaves a key out (except ``business_state``)."""
        self.raw = self._to_keys(values)

    @classmethod
    def from_json(cls, value: Mapping[str, Json] | Record) -> Self:
        """View a JSON object. It is not copied, so the caller must not change it afterwards."""
        if isinstance(value, Record):
            value = value.raw
        if not isinstance(value, dict):
            raise TypeError(f"{cls.__name__} is a JSON object, not {type(value).__name__}")
        record = cls.__new__(cls)
        record.raw = value
        return record

    def to_json(self) -> JsonObject:
        """Give the record as new plain JSON."""
        copy: JsonObject = copy_json(self.raw)
        return copy

    def replace(self, **changes: Any) -> Self:
        """Give a copy with some attributes changed; ``None`` drops the key."""
        given = self._to_keys(changes)
        dropped = {self._key(name) for name in changes} - given.keys()
        kept = {key: value for key, value in self.raw.items() if key not in dropped}
        return type(self).from_json(kept | given)

    @classmethod
    def _fields(cls) -> dict[str, Field[Any]]:
        return {
            name: value
            for kind in reversed(cls.__mro__)
            for name, value in vars(kind).items()
            if isinstance(value, Field)
        }

    @classmethod
    def _key(cls, name: str) -> str:
        field = cls._fields().get(name)
        if field is None:
            raise TypeError(f"{cls.__name__} has no attribute {name!r}")
        return field.key

    @classmethod
    def _to_keys(cls, values: dict[str, Any]) -> JsonObject:
        fields = cls._fields()
        made: JsonObject = {}
        for name, value in values.items():
            key = cls._key(name)
            if value is not None or fields[name].nullable:
                made[key] = copy_json(value)
        return made

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return json_equal(self.raw, plain(other))

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, key: str) -> bool:
        """Whether the JSON key is present (``"businessState" in checkpoint``)."""
        return key in self.raw

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={reprlib.repr(self.raw[field.key])}"
            for name, field in self._fields().items()
            if field.key in self.raw
        )
        return f"{type(self).__name__}({shown})"


class Field(Generic[T]):
    """An attribute of a :class:`Record`: the JSON key, a default, and how its value is shown."""

    def __init__(
        self,
        key: str,
        default: Callable[[], T],
        view: Callable[[Any], T] | None = None,
        *,
        nullable: bool = False,
    ) -> None:
        self.key = key
        self.default = default
        self.view = view
        self.nullable = nullable

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: Record, owner: type) -> T: ...
    def __get__(self, record: Record | None, owner: type) -> Self | T:
        if record is None:
            return self
        value = record.raw.get(self.key)
        if value is None:
            return self.default()
        if self.view is not None:
            return self.view(value)
        found: T = value
        return found

    def __set__(self, record: Record, value: T) -> None:
        raise AttributeError(f"records are read-only; use replace({self.key}=...)")


def plain(value: Any) -> Json:
    """Give a model's JSON object (not copied); other values as they are."""
    return value.raw if isinstance(value, Record) else value


def plain_list(values: Any) -> list[Json]:
    """Give a list of plain values from a list of models or JSON; anything else is no list."""
    return [plain(value) for value in values] if isinstance(values, (list, tuple)) else []


def member(value: Json, key: str) -> Json:
    """Read a property as JavaScript does of odd values: what is not there is ``None``."""
    return value.get(key) if isinstance(value, dict) else None


def one(kind: type[R]) -> Callable[[Any], R]:
    """How a field shows a record: what is not an object is an empty one."""

    def view(value: Any) -> R:
        value = plain(value)
        return kind.from_json(value if isinstance(value, dict) else {})

    return view


def records(kind: type[R]) -> Callable[[Any], list[R]]:
    """How a field shows a list of records: what is not an object is left out."""

    def view(values: Any) -> list[R]:
        return [kind.from_json(value) for value in _objects(values)]

    return view


def _objects(values: Any) -> Iterator[JsonObject]:
    return (value for value in plain_list(values) if isinstance(value, dict))
