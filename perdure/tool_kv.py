"""A session's key-value state as its tools have it: ``ctx.kv``."""

from __future__ import annotations

import json
from typing import Any

from perdure.checkpoint_bridge.session_kv import check_key, check_value

__all__ = ["ToolKV"]


class ToolKV:
    """Small values under keys, which the tools of a session share; no model is shown them.

    Keys are texts of 1 to 200 characters. Values are JSON, at most 64 KiB of it, and come back
    as they are; ``None`` is a value like others. A change is committed when the call returns, and
    stays, whatever becomes of the tool and of its turn.

    This class itself is for tools outside of a run: it keeps the values in memory.
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    async def get(self, key: str, default: Any = None) -> Any:
        """Give the value under a key, as a copy; ``default`` when there is none.

        Raises:
            ConfigurationError: it is no key.
        """
        return self.get_from_thread(key, default)

    async def set(self, key: str, value: Any) -> None:
        """Keep a value under a key, in place of the one before.

        Raises:
            ConfigurationError: the key or the value cannot be taken; nothing was stored.
        """
        self.set_from_thread(key, value)

    async def delete(self, key: str) -> None:
        """Keep nothing under a key any more; it need not be there.

        Raises:
            ConfigurationError: it is no key.
        """
        self.delete_from_thread(key)

    def get_from_thread(self, key: str, default: Any = None) -> Any:
        """:meth:`get` for tools that are plain functions."""
        check_key(key)
        return json.loads(self._values[key]) if key in self._values else default

    def set_from_thread(self, key: str, value: Any) -> None:
        """:meth:`set` for tools that are plain functions; it returns when it is committed."""
        check_key(key)
        check_value(key, value)
        self._values[key] = json.dumps(value)

    def delete_from_thread(self, key: str) -> None:
        """:meth:`delete` for tools that are plain functions; it returns when it is committed."""
        check_key(key)
        self._values.pop(key, None)
