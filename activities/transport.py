"""Which exceptions of a tool say that a connection broke: the effect may have happened.

After any other exception the model may call again, which is another call with another key. After
one of these only the same call with the same key may follow.
"""

from __future__ import annotations

import http.client
import urllib.error

import httpx

_CLASSES = (
    httpx.TransportError,
    ConnectionError,
    TimeoutError,
    http.client.IncompleteRead,
)

_NAMES = frozenset(
    {
        "requests.exceptions.ChunkedEncodingError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "urllib3.exceptions.ProtocolError",
        "urllib3.exceptions.TimeoutError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
    }
)
"""Of libraries that need not be installed; they derive from nothing that is in ``_CLASSES``."""


def is_transport(error: BaseException, further: tuple[type[BaseException], ...] = ()) -> bool:
    """Whether an exception is of that kind, or is a group of which one is (a ``TaskGroup``'s).

    Args:
        error: what the tool raised.
        further: classes that the tool names as such (``retry_on``).
    """
    if isinstance(error, (*_CLASSES, *further)):
        return True
    if isinstance(error, BaseExceptionGroup):
        return any(is_transport(each, further) for each in error.exceptions)
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return is_transport(error.reason, further)
    return any(f"{each.__module__}.{each.__qualname__}" in _NAMES for each in type(error).__mro__)


def is_named(error: BaseException, classes: tuple[type[BaseException], ...]) -> bool:
    """Whether an exception, or one of its group, is of the classes."""
    if isinstance(error, BaseExceptionGroup) and not isinstance(error, classes):
        return any(is_named(each, classes) for each in error.exceptions)
    return isinstance(error, classes)
