"""Checks of options: each gives the value back, or says in one line what it should have been.

``field`` of the error is the option's own name, as the keyword argument has it.
"""

from __future__ import annotations

import inspect
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from perdure.checkpoint_bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable


def one_of(name: str, value: Any, kind: Any) -> Any:
    """The value, when it is one of the words of ``kind``, a ``Literal``.

    Raises:
        ConfigurationError: it is none of them.
    """
    if value not in get_args(kind):
        raise refusal(name, f"one of {', '.join(get_args(kind))}", value)
    return value


def of_type(name: str, value: Any, kind: type, what: str) -> Any:
    """The value, when it is of a type; ``what`` says which, in words.

    Raises:
        ConfigurationError: it is not.
    """
    if not isinstance(value, kind):
        raise refusal(name, what, value)
    return value


def flag(name: str, value: Any) -> bool:
    """The value, when it is true or false itself: any text would count as true.

    Raises:
        ConfigurationError: it is something else.
    """
    return bool(of_type(name, value, bool, "true or false"))


def text(name: str, value: Any) -> str:
    """The value, when it is a text that says something.

    Raises:
        ConfigurationError: it is blank, or no text.
    """
    if not isinstance(value, str) or not value.strip():
        raise refusal(name, "a text that is not empty", value)
    return value


def listed(name: str, value: Any, kind: type, what: str) -> list[Any]:
    """A list of the values, when all of them are of a type; ``what`` says which, in words.

    Raises:
        ConfigurationError: one is not, or there is only one where a list of them belongs.
    """
    if isinstance(value, (str, kind)):
        raise refusal(name, f"a list of {what}", value)
    given = list(iterated(name, value, what))
    for each in given:
        of_type(name, each, kind, f"a list of {what}")
    return given


def iterated(name: str, value: Any, what: str) -> Iterable[Any]:
    """The value, when it can be gone through; ``what`` says of what it should be.

    Raises:
        ConfigurationError: it cannot.
    """
    try:
        iter(value)
    except TypeError:
        raise refusal(name, f"a list of {what}", value) from None
    found: Iterable[Any] = value
    return found


def count(name: str, value: Any) -> int:
    """The value, when it is a whole number from 1.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refusal(name, "a whole number from 1", value)
    return value


def seconds(name: str, value: Any) -> float:
    """Seconds above 0, of a number or a ``timedelta``.

    Raises:
        ConfigurationError: they are not above 0.
    """
    found = value.total_seconds() if isinstance(value, timedelta) else value
    if not _is_number(found) or not 0 < found < math.inf:
        raise refusal(name, "a number of seconds above 0", value)
    return float(found)


def limit(name: str, value: Any, *, whole: bool = False) -> None:
    """Check a limit: ``None`` or a number from 0.

    Raises:
        ConfigurationError: it is none.
    """
    if value is None:
        return
    if not _is_number(value, int if whole else (int, float)) or not 0 <= value < math.inf:
        what = "a whole number" if whole else "a number"
        raise refusal(name, f"{what} from 0 (0: no limit)", value)


def plain_function(name: str, value: Any, what: str) -> Any:
    """The value, when it can be called and its result need not be awaited.

    Raises:
        ConfigurationError: it cannot, or it is an async function.
    """
    if not callable(value) or inspect.iscoroutinefunction(value):
        raise refusal(name, f"a plain function of {what}", value)
    return value


def async_function(name: str, value: Any, what: str) -> Any:
    """The value, when it can be called and nothing says that its result cannot be awaited.

    Raises:
        ConfigurationError: it cannot, or it is a plain function.
    """
    is_plain = inspect.isfunction(value) and not inspect.iscoroutinefunction(value)
    if not callable(value) or is_plain:
        raise refusal(name, f"an async function of {what}", value)
    return value


def refusal(name: str, what: str, value: object) -> ConfigurationError:
    """The error that says what an option is to be, and what it was."""
    return ConfigurationError(f"{name} is {what}, not {value!r}.", field=name)


def _is_number(value: Any, kind: type | tuple[type, ...] = (int, float)) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
