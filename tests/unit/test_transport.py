"""Which exceptions mean that the effect may have happened."""

from __future__ import annotations

import http.client
import ssl
import urllib.error

import httpx
import pytest

from perdure.activities.transport import is_named, is_transport


def named(module: str, *names: str) -> Exception:
    """An exception of a library that need not be installed, with the bases that it has there."""
    made: type[Exception] = OSError
    for name in names:
        made = type(name, (made,), {"__module__": module})
    return made("late")


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        http.client.RemoteDisconnected(""),
        http.client.IncompleteRead(b""),
        httpx.ReadTimeout("late"),
        urllib.error.URLError(TimeoutError()),
        named("requests.exceptions", "RequestException", "ConnectionError", "ConnectTimeout"),
        named("requests.exceptions", "RequestException", "Timeout", "ReadTimeout"),
        named("requests.exceptions", "RequestException", "ChunkedEncodingError"),
        named("urllib3.exceptions", "HTTPError", "TimeoutError", "ReadTimeoutError"),
        named("aiohttp.client_exceptions", "ClientConnectionError", "ServerDisconnectedError"),
        ExceptionGroup("", [ValueError(), ExceptionGroup("", [TimeoutError()])]),
    ],
    ids=repr,
)
def test_what_may_have_happened(error: BaseException) -> None:
    assert is_transport(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("late"),
        FileNotFoundError(),
        ssl.CertificateError(),
        urllib.error.URLError("unknown url type"),
        named("requests.exceptions", "RequestException", "HTTPError"),
        named("a.tool", "Timeout"),
        ExceptionGroup("", [ValueError(), KeyError()]),
    ],
    ids=repr,
)
def test_what_is_an_answer(error: BaseException) -> None:
    assert not is_transport(error)


def test_what_a_tool_names() -> None:
    group = ExceptionGroup("", [KeyError(), ValueError()])
    for error in (ValueError(), group):
        assert is_transport(error, (ValueError,))
        assert is_named(error, (ValueError,))
        assert not is_named(error, (TimeoutError,))
    assert is_named(group, (ExceptionGroup,))
