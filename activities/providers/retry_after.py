"""How long a provider asks us to wait, from its response headers."""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_RETRY_AFTER_SECONDS", "retry_after_seconds"]

MAX_RETRY_AFTER_SECONDS = 24 * 3600.0
"""A wrong header must not park a run for a year."""


def retry_after_seconds(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds to wait, or ``None`` when the headers do not say.

    ``retry-after-ms`` is the finer of the two and wins; ``Retry-After`` is seconds or an HTTP
    date. A date is measured from the response's own ``Date`` where there is one, so that a wrong
    clock on this machine changes nothing; a date in the past means now.

    Args:
        headers: the response's headers, looked up without regard to case or in lower case.
        now: Unix seconds, for a response without ``Date``; the clock when absent.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return _bounded(seconds)
    at = _http_date(text)
    if at is None:
        return None
    start = _http_date(headers.get("date"))
    if start is None:
        start = time.time() if now is None else now
    return _bounded(at - start)


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _http_date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
