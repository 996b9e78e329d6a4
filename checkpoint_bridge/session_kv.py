"""The small key-value state of a session, which its tools keep and no model is shown.

Each change is an event of a call (:mod:`.emitting`), so the state at any place of the log is the
fold of the events before it, and a fork has that of its cut.
"""

from __future__ import annotations

from typing import Any

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.stable_json import is_deeper
from perdure.checkpoint_bridge.log import events as ev

__all__ = ["KEY_LENGTH", "VALUE_LIMIT", "check_key", "check_value"]

KEY_LENGTH = 200
"""Characters of a key, at most."""
VALUE_LIMIT = 64 * 1024
"""Bytes of a value's JSON as the store keeps it (in ASCII), at most."""


def check_key(key: Any) -> None:
    """Refuse what is no key.

    Raises:
        ConfigurationError: it is no text of 1 to 200 characters (``field`` is ``key``).
    """
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_LENGTH:
        shown = f"{len(key)} characters" if isinstance(key, str) else repr(key)
        msg = f"A key is a text of 1 to {KEY_LENGTH} characters, not {shown}."
        raise ConfigurationError(msg, field="key")


def check_value(key: str, value: Any) -> None:
    """Refuse what cannot be kept under a key.

    Raises:
        ConfigurationError: JSON would change the value, or it is too large (``field`` is
            ``value``).
    """
    if not ev.is_plain_json(value) or is_deeper(value):
        msg = f"The value of {key!r} is not plain JSON, which would come back as it is."
        raise ConfigurationError(msg, field="value")
    size = len(ev.dump(value))
    if size > VALUE_LIMIT:
        msg = f"The value of {key!r} has {size:,} bytes as JSON; at most {VALUE_LIMIT:,} are kept."
        raise ConfigurationError(msg, field="value")
