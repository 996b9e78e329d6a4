"""JSON as JavaScript reads and prints it.

The format compares and hashes JSON texts (format page, "Stable JSON"), and a tool message's
content is one (section "Message"). Both sides must get the same bytes, so this module follows
ECMAScript's ``JSON.parse``, ``JSON.stringify`` and ``Number::toString`` where Python's ``json``
differs: numbers are doubles, keys that are array indices come first, strings are UTF-16.

Nothing here recurses: a model or a tool can nest JSON as deep as it likes.
"""

from __future__ import annotations

import base64
import json
import math
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Json",
    "JsonObject",
    "copy_json",
    "is_deeper",
    "json_equal",
    "normalize_arguments",
    "parse_json",
    "stable_json",
    "to_json_text",
    "to_stored_text",
    "well_formed",
]

Json: TypeAlias = Any
"""Any JSON value: ``dict``, ``list``, ``str``, ``int``, ``float``, ``bool`` or ``None``."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object."""

MAX_DEPTH = 24
"""Containers nested deeper than this become :data:`TOO_DEEP` in stable JSON."""

MAX_NESTING = 200
"""Levels of what a run takes in: more than this, other JSON readers (and ours) give up on."""

TOO_DEEP = '"[max depth]"'

_SURROGATE = re.compile("[\ud800-\udfff]")
_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,9})\Z")
_MAX_INDEX = 4294967294
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SPACE = re.compile(r"[ \t\n\r]*")
_LITERALS = {"true": True, "false": False, "null": None}
_SAFE_DIGITS = 300
"""An integer of more digits goes through ``float``: Python refuses to convert very long ones."""


# --- printing ---------------------------------------------------------------------------------


def stable_json(value: Json) -> str:
    """Print a value so that equal values give equal text (format page, "Stable JSON").

    ``JSON.stringify`` with the keys of every object sorted by UTF-16 code units (array indices
    first), and containers deeper than 24 levels replaced by ``"[max depth]"``.

    Raises:
        TypeError: the value is not JSON.
    """
    return _encode(value, sort_keys=True, max_depth=MAX_DEPTH)


def to_json_text(value: Json) -> str:
    """Print a value as ``JSON.stringify`` does: the content of a tool message.

    No spaces, non-ASCII unescaped, keys in their order (array indices first), numbers as
    doubles. Every character of the text can be stored as UTF-8: lone surrogates are escaped.

    Raises:
        TypeError: the value is not JSON.
        ValueError: the value contains itself.
    """
    return _encode(value, sort_keys=False, max_depth=None)


def to_stored_text(value: Json) -> str:
    """Print a record for a file that others read too: no part of its meaning is lost.

    As :func:`to_json_text`, but integers keep all their digits, and a number beyond a double
    stays one (a reader gets the infinity that it was read as).

    Raises:
        TypeError: the value is not JSON.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        return _encode(value, sort_keys=False, max_depth=None, number=_stored_number)
    return text if text.isascii() else _escape_surrogates(text)


def normalize_arguments(raw: str) -> str:
    """Give the stable JSON of a call's raw arguments; text that does not parse stays as it is.

    So two calls that mean the same compare as equal (format page, "Stable JSON").
    """
    try:
        value = parse_json(raw)
    except ValueError:
        return raw
    return stable_json(value)


def is_deeper(value: Json, levels: int = MAX_NESTING) -> bool:
    """Whether containers are nested deeper than ``levels``: what others could not read."""
    level: list[Json] = [value]
    for _ in range(levels + 1):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list, tuple))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return any(isinstance(each, (dict, list, tuple)) for each in level)


def json_equal(a: Json, b: Json) -> bool:
    """Whether two JSON values are equal: ``1`` is ``1.0`` but not ``true``, key order aside."""
    if a is b or (isinstance(a, str) and isinstance(b, str)):
        return a is b or a == b
    return _encode(a, sort_keys=True, max_depth=None) == _encode(b, sort_keys=True, max_depth=None)


def _encode(
    value: Json,
    *,
    sort_keys: bool,
    max_depth: int | None,
    number: Callable[[float], str] | None = None,
) -> str:
    out: list[str] = []
    # A frame is one open container: what is left to print, its end, its identity. The first
    # frame stands for the place of the value itself, so the depth of a container that is met
    # is the number of frames less one.
    frames: list[tuple[Iterator[tuple[str, Json]], str, int]] = [(iter([("", value)]), "", 0)]
    open_ids: set[int] = set()
    while frames:
        items, end, identity = frames[-1]
        for before, item in items:
            out.append(before)
            text = _scalar(item, number or _number)
            if text is not None:
                out.append(text)
                continue
            if max_depth is not None and len(frames) - 1 > max_depth:
                out.append(TOO_DEEP)
                continue
            container = _plain(item)
            if max_depth is None and id(container) in open_ids:
                raise ValueError("a value that contains itself is not JSON")
            open_ids.add(id(container))
            begin, end = ("{", "}") if isinstance(container, dict) else ("[", "]")
            out.append(begin)
            frames.append((_children(container, sort_keys=sort_keys), end, id(container)))
            break
        else:
            out.append(end)
            open_ids.discard(identity)
            frames.pop()
    return "".join(out)


def _scalar(value: Json, number: Callable[[float], str]) -> str | None:
    """The text of a value that is not a container."""
    if isinstance(value, str):
        return _quote(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number(value)
    return None


def _plain(value: object) -> dict[Any, Any] | list[Any] | tuple[Any, ...]:
    """The container that a value is, or that stands for it in a stored record."""
    if isinstance(value, (dict, list, tuple)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes_to_json(bytes(value))
    to_json = getattr(value, "to_json", None)
    if callable(to_json):
        made = to_json()
        if isinstance(made, (dict, list)):
            return made
    raise TypeError(f"{type(value).__name__} is not JSON")


def bytes_to_json(value: bytes) -> JsonObject:
    """Raw bytes in a stored record (format page, "Message"): ``{"$bytes": "<base64>"}``."""
    return {"$bytes": base64.b64encode(value).decode("ascii")}


def _children(
    container: dict[Any, Any] | list[Any] | tuple[Any, ...], *, sort_keys: bool
) -> Iterator[tuple[str, Json]]:
    before = ""
    if isinstance(container, dict):
        for key, item in _ordered(container, sort_keys=sort_keys):
            yield f"{before}{_quote(key)}:", item
            before = ","
        return
    for item in container:
        yield before, item
        before = ","


def _ordered(value: dict[Any, Any], *, sort_keys: bool) -> list[tuple[str, Json]]:
    """An object's members in JavaScript's order of own keys: indices first, then the others."""
    indices: list[tuple[int, str, Json]] = []
    others: list[tuple[str, Json]] = []
    for key, item in value.items():
        name = key if isinstance(key, str) else _key_text(key)
        if _INDEX.match(name) and int(name) <= _MAX_INDEX:
            indices.append((int(name), name, item))
        else:
            others.append((name, item))
    indices.sort(key=lambda member: member[0])
    if sort_keys:
        others.sort(key=lambda member: utf16_key(member[0]))
    return [(name, item) for _, name, item in indices] + others


def _key_text(key: object) -> str:
    """The text of a key that Python allows and JSON does not (``{1: ...}``)."""
    text = None if isinstance(key, str) else _scalar(key, _number)
    if text is None:
        message = f"{type(key).__name__} is not a JSON key"
        raise TypeError(message)
    return text


def utf16_key(text: str) -> bytes:
    """Sort key that orders texts by UTF-16 code units, as JavaScript compares strings."""
    return text.encode("utf-16-be", "surrogatepass")


def _quote(text: str) -> str:
    quoted = encode_basestring(text)
    return quoted if quoted.isascii() else _escape_surrogates(quoted)


def _escape_surrogates(quoted: str) -> str:
    """JSON text with lone surrogates escaped, so that it can be written as UTF-8."""
    if not _SURROGATE.search(quoted):
        return quoted
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", join_surrogates(quoted))


def join_surrogates(text: str) -> str:
    """Make one character of each surrogate pair that stands as two in a Python string."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def well_formed(text: str) -> str:
    """Replace lone surrogates by U+FFFD, as a JavaScript ``TextEncoder`` does."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return _SURROGATE.sub("\ufffd", join_surrogates(text))


def _number(value: float) -> str:
    """Print a number as ECMAScript's ``Number::toString`` prints the double nearest to it."""
    try:
        number = float(value)
    except OverflowError:
        return "null"
    if not math.isfinite(number):
        return "null"
    if number == 0:
        return "0"
    text = repr(number)
    if "e" not in text:  # repr uses an exponent from 1e16 and below 1e-4; JavaScript later
        return text.removesuffix(".0")
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0") if fraction.strip("0") else whole
    point = int(exponent) + 1  # where the decimal point stands, counted from the first digit
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


def _stored_number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "-1e999" if value < 0 else "1e999"
    return "null" if math.isnan(value) else repr(value)


# --- reading ----------------------------------------------------------------------------------


def parse_json(text: str) -> Json:
    """Read JSON text by the grammar of ``JSON.parse``.

    Stricter than ``json.loads``: no ``NaN`` or ``Infinity``. Of duplicate keys the last value
    counts, at the place of the first. Integers stay integers; any depth is read.

    Raises:
        ValueError: the text is not JSON.
    """
    if _SURROGATE.search(text):
        # Half of a pair can be written raw and half escaped: only JavaScript's strings join
        # them, so the text is read by our own reader, which joins.
        return _parse_deep(text)
    try:
        return json.loads(text, parse_int=_integer, parse_constant=_refuse)
    except RecursionError:
        return _parse_deep(text)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _SAFE_DIGITS else float(digits)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _parse_deep(text: str) -> Json:
    """Read JSON of any depth, keeping the open containers in a list instead of on the stack."""
    stack: list[dict[str, Json] | list[Json]] = []
    keys: list[str] = []  # the key of each open object that the next value belongs to
    at = _skip(text, 0)
    while True:
        value, at, opened = _parse_begin(text, at)
        if opened:
            stack.append(value)
            if isinstance(value, dict):
                key, at = _parse_key(text, at)
                keys.append(key)
            continue
        while True:  # place the value, then each container that ends with it
            at = _skip(text, at)
            if not stack:
                return value if at == len(text) else _fail(text, at)
            parent, mark = stack[-1], text[at : at + 1]
            if isinstance(parent, dict):
                parent[keys[-1]] = value
            else:
                parent.append(value)
            if mark == ",":
                at = _skip(text, at + 1)
                if isinstance(parent, dict):
                    keys[-1], at = _parse_key(text, at)
                break
            if mark != ("}" if isinstance(parent, dict) else "]"):
                _fail(text, at)
            if isinstance(parent, dict):
                keys.pop()
            value = stack.pop()
            at += 1


def _parse_begin(text: str, at: int) -> tuple[Any, int, bool]:
    """Read a scalar, an empty container, or the begin of one that is not empty (``True``)."""
    first = text[at : at + 1]
    if first not in {"[", "{"}:
        value, at = _parse_scalar(text, at)
        return value, at, False
    at = _skip(text, at + 1)
    made: Json = [] if first == "[" else {}
    if text[at : at + 1] == ("]" if first == "[" else "}"):
        return made, at + 1, False
    return made, at, True


def _parse_key(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        _fail(text, at)
    key, at = scanstring(text, at + 1)
    at = _skip(text, at)
    if text[at : at + 1] != ":":
        _fail(text, at)
    return join_surrogates(key), _skip(text, at + 1)


def _parse_scalar(text: str, at: int) -> tuple[Json, int]:
    if text[at : at + 1] == '"':
        value, end = scanstring(text, at + 1)
        return join_surrogates(value), end
    for literal, meaning in _LITERALS.items():
        if text.startswith(literal, at):
            return meaning, at + len(literal)
    number = _NUMBER.match(text, at)
    if number is None:
        _fail(text, at)
    whole, fraction, exponent = number.groups()
    if fraction or exponent:
        return float(number[0]), number.end()
    return _integer(whole), number.end()


def _fail(text: str, at: int) -> NoReturn:
    raise json.JSONDecodeError("this is not JSON", text, at)


# --- copying ----------------------------------------------------------------------------------


def copy_json(value: Json) -> Json:
    """Copy a value into new containers of plain JSON.

    Tuples become lists, models their JSON, raw bytes ``{"$bytes": ...}``; scalars are shared. As
    in ``copy.deepcopy``, what occurs twice in the value is one container in the copy.

    Raises:
        TypeError: the value is not JSON.
    """
    root: list[Json] = [value]
    todo: list[dict[Any, Json] | list[Json]] = [root]
    made: dict[int, tuple[Json, dict[Any, Json] | list[Json]]] = {}
    while todo:
        container = todo.pop()
        places = container.items() if isinstance(container, dict) else enumerate(container)
        for place, item in places:
            if item is None or isinstance(item, (str, int, float)):
                continue
            known = made.get(id(item))
            if known is None:
                plain = _plain(item)
                copied = dict(plain) if isinstance(plain, dict) else list(plain)
                todo.append(copied)
                known = made[id(item)] = item, copied  # with item: its id stays its own
            container[place] = known[1]  # replaces a value, so the iteration goes on safely
    return root[0]
