"""Text of models, tools and users, made fit for a terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Escape sequences can rewrite the screen, direction marks the order of words, and lone
surrogates cannot be written at all. Tabs and line ends may stay."""


def clean(text: str) -> str:
    """Make characters visible that would do something to the terminal."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str, limit: int | None = None) -> str:
    """The text on one line, at most ``limit`` characters of it."""
    line = clean(" ".join(text.split()))
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def local_time(moment: int | str | None) -> str:
    """A moment in local time, to the second.

    Args:
        moment: Unix milliseconds, or ISO 8601; anything else is shown as it is.
    """
    try:
        if isinstance(moment, int):
            then = datetime.fromtimestamp(moment / 1000, UTC)
        else:
            then = datetime.fromisoformat(str(moment))
        return then.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return one_line(str(moment), 40)


def short_time(moment: int | str | None) -> str:
    """The time of today's moments, the date of others: for narrow tables."""
    text = local_time(moment)
    day, _, time = text.partition(" ")
    return time if time and day == datetime.now().astimezone().strftime("%Y-%m-%d") else day


def count(number: int, noun: str) -> str:
    """``1 session``, ``2 sessions``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def tokens(usage: Any) -> str:
    """``120 in, 30 out`` of a usage record, marked when a count was estimated."""
    about = "about " if usage.estimated else ""
    return f"{about}{usage.input_tokens} in, {usage.output_tokens} out"
