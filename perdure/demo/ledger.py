"""The outside world of the demo: a file to which every effect is appended, one JSON per line.

It stands for the services that tools call. It is outside of Temporal, of the store and of the
workers, so what it holds is what really happened. As a payment service does, it takes a second
request with a known idempotency key for a repetition of the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "model"
"""A request to the model: ``session``, ``turn``."""
START = "start"
"""A tool began: ``tool``, ``session``, ``key``, ``attempt``."""
EFFECT = "effect"
"""Something happened outside: ``tool``, ``session``, ``key``, ``what``."""
REPEAT = "repeat"
"""The same was asked for again with the same key, and nothing happened."""
WORKER = "worker"
"""A worker serves."""


class Ledger:
    """The file, for those who append to it and for those who count."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def note(self, event: str, **facts: Any) -> None:
        """Append a line."""
        with self._alone():
            self._append(event, facts)

    def act(self, key: str, **facts: Any) -> bool:
        """Have an effect, unless one with this key was had; returns whether it was had now."""
        with self._alone():
            known = any(line["event"] == EFFECT and line["key"] == key for line in self.lines())
            self._append(REPEAT if known else EFFECT, {"key": key, **facts})
            return not known

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """What was appended, in order; the lines of one event, or all."""
        if not self.path.exists():
            return []
        text = self.path.read_text("utf-8")
        found = [json.loads(line) for line in text.splitlines()]
        return [line for line in found if event in (None, line["event"])]

    def _append(self, event: str, facts: dict[str, Any]) -> None:
        line = {"event": event, "at": round(time.time(), 3), "pid": os.getpid(), **facts}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes and threads out; a killed owner's lock ends with it."""
        try:
            import fcntl
        except ImportError:  # Windows, where the demo's lines may not interleave by luck alone
            yield
            return
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
