"""A codec server: lets the Temporal UI and command line show what is encrypted, to who may see it.

The contract is Temporal's: ``POST /decode`` and ``/encode`` with ``Payloads`` in JSON, called by
the browser from the UI's origin. What is not encrypted passes through.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads
from temporalio.converter import PayloadCodec

from perdure.checkpoint_bridge.errors import ConfigurationError, EncryptionKeyError
from perdure.checkpoint_bridge.option_checks import listed, of_type, text

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
except ImportError as error:
    _msg = "The codec server needs the packages starlette and uvicorn, which are not installed."
    _hint = "Install them with: pip install 'perdure[codec-server]'"
    raise ConfigurationError(_msg, field="codec-server", hint=_hint) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

__all__ = ["UI_ORIGINS", "codec_app"]

UI_ORIGINS = ("http://localhost:8233", "http://127.0.0.1:8233")
"""Where the UI of a development server is."""

LIMIT = 32 * 1024 * 1024
"""Bytes of a request's body; a page of the UI asks for some payloads of at most 2 MB each."""

_HEADERS = ["content-type", "x-namespace", "authorization", "authorization-extras"]


def codec_app(
    codec: PayloadCodec,
    *,
    token: str | None = None,
    origins: Sequence[str] = UI_ORIGINS,
    namespaces: Sequence[str] = (),
) -> Starlette:
    """The server as an ASGI application, for ``perdure codec-server`` or a server of one's own.

    Args:
        codec: what the clients and workers encode with, such as an
            :class:`~perdure.encryption.EncryptionCodec`.
        token: what requests must bring as ``Authorization: Bearer …``; ``None``: nothing.
        origins: where the UI is, ``scheme://host:port``; other pages are refused.
        namespaces: the namespaces whose payloads it handles; default: all.

    Raises:
        ConfigurationError: an origin is none, or the token is empty.
    """
    of_type("codec", codec, PayloadCodec, "a codec of payloads")
    if token is not None:
        text("token", token)
    origins = [_origin(each) for each in listed("origin", origins, str, "origins of pages")]
    namespaces = listed("namespaces", namespaces, str, "names of namespaces")
    service = _Service(codec, token, frozenset(origins), frozenset(namespaces))
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["POST"],
        allow_headers=_HEADERS,
        allow_credentials=True,
    )
    return Starlette(
        routes=[
            Route("/decode", service.decode, methods=["POST"]),
            Route("/encode", service.encode, methods=["POST"]),
            Route("/health", service.health, methods=["GET"]),
        ],
        middleware=[cors],
    )


def _origin(address: str) -> str:
    """The origin as a browser writes it, of an address that may end with a slash."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        msg = f"{address!r} is no origin of pages; give it as https://temporal.example.com."
        raise ConfigurationError(msg, field="origin")
    return f"{parts.scheme}://{parts.netloc}".lower()


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.answer = JSONResponse({"message": message}, status)


class _Service:
    def __init__(
        self,
        codec: PayloadCodec,
        token: str | None,
        origins: frozenset[str],
        namespaces: frozenset[str],
    ) -> None:
        self._codec = codec
        self._token = None if token is None else token.encode()
        self._origins = origins
        self._namespaces = namespaces

    async def health(self, _request: Request) -> Response:
        return PlainTextResponse("ok")

    async def decode(self, request: Request) -> Response:
        return await self._answer(request, encode=False)

    async def encode(self, request: Request) -> Response:
        return await self._answer(request, encode=True)

    async def _answer(self, request: Request, *, encode: bool) -> Response:
        try:
            self._check(request)
            payloads = await _payloads(request)
            work = self._codec.encode if encode else self._codec.decode
            done = Payloads(payloads=await work(payloads.payloads))
        except _RefusedError as refused:
            return refused.answer
        except EncryptionKeyError as error:
            return JSONResponse({"message": f"{error.message} [{error.code}]"}, 422)
        return Response(json_format.MessageToJson(done, indent=None), media_type="application/json")

    def _check(self, request: Request) -> None:
        """Refuse who may not ask.

        Raises:
            _RefusedError: the page, the token or the namespace is another one.
        """
        origin = request.headers.get("origin")
        # A browser sends the request of any page that needs no leave; CORS hides the answer only.
        if origin is not None and origin not in self._origins:
            raise _RefusedError(403, f"Pages of {origin} may not use this codec server.")
        if self._token is not None:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                raise _RefusedError(401, "The request brings no token, or another one.")
        namespace = request.headers.get("x-namespace")
        if self._namespaces and namespace not in self._namespaces:
            raise _RefusedError(403, f"Namespace {namespace!r} is not handled here.")


async def _payloads(request: Request) -> Payloads:
    """The payloads of a request.

    Raises:
        _RefusedError: its body is too large, or not of the documented form.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LIMIT:
            raise _RefusedError(413, f"At most {LIMIT:,} bytes are taken.")
    try:
        return json_format.Parse(bytes(body), Payloads(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError) as error:
        message = 'The body is not {"payloads": [{"metadata": …, "data": …}]}.'
        raise _RefusedError(400, message) from error
