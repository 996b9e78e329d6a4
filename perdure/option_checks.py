"""Checks of options: each gives the value back, or says in one line what it should have been.

``field`` of the error is the option's own name, as the keyword argument has it.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, get_args

from perdure.checkpoint_bridge.errors import ConfigurationError


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


def count(name: str, value: Any) -> int:
    """The value, when it is a whole number from 1.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refusal(name, "a whole number from 1", value)
    return value


def seconds(name: str, value: float | timedelta) -> float:
    """Seconds above 0, of a number or a ``timedelta``.

    Raises:
        ConfigurationError: they are not above 0.
    """
    found = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not found > 0:
        raise refusal(name, "a number of seconds above 0", value)
    return found


def limit(name: str, value: Any, *, whole: bool = False) -> None:
    """Check a limit: ``None`` or a number from 0.

    Raises:
        ConfigurationError: it is none.
    """
    kinds = int if whole else (int, float)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < math.inf:
        what = "a whole number" if whole else "a number"
        raise refusal(name, f"{what} from 0 (0: no limit)", value)


def refusal(name: str, what: str, value: object) -> ConfigurationError:
    """The error that says what an option is to be, and what it was."""
    return ConfigurationError(f"{name} is {what}, not {value!r}.", field=name)
