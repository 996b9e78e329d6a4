"""Values that cross between workflows and activities, as small JSON that is quickly made and read.

Temporal keeps every input and result for as long as it keeps the run. Its converter writes out all
fields of a dataclass, most of which have their defaults, and copies every value deeply to do so.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")
_NO_DEFAULT = object()


def packed(value: Any) -> Any:
    """Plain JSON of a dataclass of :mod:`.wire`, without the fields that have their defaults.

    What reads it puts the defaults in their places again. Messages and the like are not copied.
    """
    kind: Any = type(value)
    found = {}
    for name, default, write in _writers(kind):
        given = getattr(value, name)
        if given is not default and given != default:
            found[name] = given if write is None or given is None else write(given)
    return found


def unpacked(kind: type[T], value: Any) -> T:
    """What was packed. Keys that the dataclass does not know are those of a newer version.

    Temporal's own converter does this too, and takes several times as long.
    """
    made: Any = kind
    readers = _readers(made)
    found = {}
    for name, given in value.items():
        if name in readers:
            read = readers[name]
            found[name] = given if read is None or given is None else read(given)
    result: T = made(**found)
    return result


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any] | None]:
    """How each field is read; ``None``: as it is."""
    hints = get_type_hints(kind)
    return {
        each.name: _converter(hints[each.name], lambda inner: partial(unpacked, inner))
        for each in fields(kind)
    }


@cache
def _writers(kind: Any) -> list[tuple[str, Any, Callable[[Any], Any] | None]]:
    """Each field, its default, and how it is written; ``None``: as it is."""
    hints = get_type_hints(kind)
    return [
        (each.name, _default(each), _converter(hints[each.name], lambda _: packed))
        for each in fields(kind)
    ]


def _converter(hint: Any, of: Callable[[Any], Callable[[Any], Any]]) -> Callable[[Any], Any] | None:
    """How a field is converted, whose dataclasses are converted as ``of`` says."""
    if is_dataclass(hint):
        return of(hint)
    inner = [each for each in (_converter(arg, of) for arg in get_args(hint)) if each is not None]
    if not inner:
        return None
    (convert,) = inner
    if get_origin(hint) is list:
        return lambda values: [convert(each) for each in values]
    if get_origin(hint) is dict:
        return lambda values: {key: convert(each) for key, each in values.items()}
    assert get_origin(hint) is UnionType, "dataclasses are fields, lists, dicts or optional"
    return convert


def _default(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    return _NO_DEFAULT if field.default_factory is MISSING else field.default_factory()


def resolve_hints(types: Iterable[Any]) -> None:
    """Put types in the place of their names in the hints of the dataclasses among ``types``.

    Temporal's converter looks at the hints of each value that it reads, and to evaluate their
    texts takes it most of its time.
    """
    for each in types:
        if isinstance(each, type) and is_dataclass(each):
            each.__annotations__ = get_type_hints(each)
