"""One POST of JSON to a model service: keys, addresses, connections, and nothing of a dialect.

No retries here. A failed call is raised at once as the error that says what it was, because
Temporal schedules the next attempt and records each of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import httpx

from perdure.activities.providers.failures import (
    MalformedError,
    Origin,
    broken_connection,
    embedded_failure,
    http_failure,
    malformed_answer,
)
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    MissingApiKeyError,
    ProviderError,
)
from perdure.checkpoint_bridge.format.stable_json import parse_json, well_formed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.activities.providers.base import ModelRequest
    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = ["CONNECT_TIMEOUT_SECONDS", "READ_TIMEOUT_SECONDS", "HttpProvider"]

CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 600.0
"""Between two pieces of an answer; services think for minutes before the first one."""


class HttpProvider(ABC):
    """What the HTTP providers share; a subclass adds the dialect.

    Arguments that are left out are read from the environment at each call, so a provider can be
    made before its key exists and follows a key that is rotated. An instance may serve several
    event loops; each has its own connections.
    """

    label: ClassVar[str]
    key_variable: ClassVar[str]
    url_variable: ClassVar[str]
    official_url: ClassVar[str]

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        default_model: str = "",
        timeout: float | httpx.Timeout = READ_TIMEOUT_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Set up without connecting.

        Args:
            base_url: the service's address; else the environment's, else the official one.
            api_key: else the environment's. A service that needs none takes any text.
            default_model: used when a request names no model.
            timeout: seconds to wait for the next piece of an answer, or a full
                ``httpx.Timeout``. Connecting may take 10 seconds at most.
            headers: more request headers, such as ``anthropic-beta`` or a gateway's own; treated
                as secret in error messages.
        """
        self.default_model = default_model
        self._base_url = base_url
        self._api_key = api_key
        self._headers = dict(headers or {})
        for name, value in self._headers.items():
            if not _fits_a_header(name) or not _fits_a_header(value):
                raise ConfigurationError(
                    f"{self.label}: the header {name!r} holds characters that no header has",
                    field="headers",
                )
        if not isinstance(timeout, httpx.Timeout):
            timeout = httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT_SECONDS, timeout))
        self._timeout = timeout
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        self._lock = threading.Lock()

    async def aclose(self) -> None:
        """Close this event loop's connections; a later call opens new ones."""
        with self._lock:
            client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def is_official(self) -> bool:
        """Whether calls go to the official service and not to a compatible one."""
        return self._base().host == httpx.URL(self.official_url).host

    @abstractmethod
    def auth_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the key; each dialect has its own."""

    def model_of(self, request: ModelRequest) -> str:
        """The model to ask, the request's or the default one."""
        model = request.model or self.default_model
        if not model:
            raise ConfigurationError(
                f"{self.label}: neither the agent nor the provider names a model",
                field="model",
                code="LOUSHO_PROVIDER_SPEC_INVALID",
            )
        return model

    def settings_of(self, request: ModelRequest, reserved: frozenset[str]) -> JsonObject:
        """The request's settings, without any that would replace a part of the request."""
        clash = sorted(reserved & request.settings.keys())
        if clash:
            raise ConfigurationError(
                f"{self.label}: the setting {clash[0]!r} is made from the run and cannot be set",
                field="settings",
            )
        return request.settings

    async def post(self, path: str, body: JsonObject, *, model: str) -> tuple[JsonObject, Origin]:
        """Send ``body`` and give the JSON object that came back, and who sent it.

        Raises:
            MissingApiKeyError: before any request.
            ProviderError: anything but a 2xx with a JSON object; says whether to retry.
        """
        base = self._base()
        url = base.copy_with(path=base.path.rstrip("/") + path)
        key, source = self._key()
        headers = {
            **self.auth_headers(key),
            **self._headers,
            "accept": "application/json",
            "content-type": "application/json",
        }
        origin = Origin(
            label=self.label,
            host=base.netloc.decode("ascii"),
            model=model,
            key_source=source,
            secrets=(key, *self._headers.values()),
        )
        content = _encode(body, self.label)
        failure: ProviderError
        try:
            response = await self._client().post(url, content=content, headers=headers)
        except httpx.ConnectTimeout as error:
            failure = broken_connection(origin, "timed out connecting to", error)
        except httpx.TimeoutException as error:
            failure = broken_connection(origin, "timed out waiting for", error)
        except (httpx.ConnectError, httpx.ProxyError) as error:
            failure = broken_connection(origin, "cannot connect to", error)
        except (httpx.RequestError, OSError) as error:
            failure = broken_connection(origin, "lost the connection to", error)
        else:
            return self._object_of(response, origin), origin
        # Outside the handler: httpx's errors hold the request and so its headers, and whoever
        # writes down a chain of errors must not find the key there.
        raise failure

    def _object_of(self, response: httpx.Response, origin: Origin) -> JsonObject:
        if not response.is_success:
            raise http_failure(origin, response.status_code, response.headers, response.content)
        why = ""
        parsed: Any = None
        try:
            parsed = _decode(response.content)
        except MalformedError as error:
            why = str(error)
        if not why and not isinstance(parsed, dict):
            why = "not a JSON object"
        if why:
            raise malformed_answer(origin, why)
        if parsed.get("error"):
            raise embedded_failure(origin, parsed["error"])
        answer: JsonObject = parsed
        return answer

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [known for known in self._clients if known.is_closed()]:
                del self._clients[other]
            client = self._clients.get(loop)
            if client is None:
                # How many calls run at once is the worker's decision, not the pool's.
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
                client = httpx.AsyncClient(timeout=self._timeout, limits=limits)
                self._clients[loop] = client
            return client

    def _base(self) -> httpx.URL:
        text, source = self._base_url, "base_url"
        if not text:
            text, source = os.environ.get(self.url_variable, "").strip(), self.url_variable
        if not text:
            text = self.official_url
        url: httpx.URL | None
        try:
            url = httpx.URL(text.strip())
        except httpx.InvalidURL:
            url = None
        if (
            url is None
            or url.scheme not in {"http", "https"}
            or not url.host
            or "%" in url.host
            or url.userinfo
        ):
            raise ConfigurationError(
                f"{self.label}: {source} is not an http or https address without credentials",
                field=source,
                hint=f"Write it like {self.official_url}, and give the key as the key.",
            )
        return url

    def _key(self) -> tuple[str, str]:
        key, source = self._api_key, "api_key"
        if key is None:
            key, source = os.environ.get(self.key_variable, ""), self.key_variable
        key = key.strip()
        if not key:
            raise MissingApiKeyError(
                f"{self.label}: no API key; {source} is not set",
                hint=f"Set {self.key_variable} in the environment of the worker.",
            )
        if not _fits_a_header(key):
            # As a header it would be refused with an error that shows it.
            raise ConfigurationError(
                f"{self.label}: {source} holds characters that no API key has", field=source
            )
        return key, source


def _fits_a_header(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _encode(body: JsonObject, label: str) -> bytes:
    """Strict JSON in strict UTF-8, whatever the transcript holds."""
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    else:
        return well_formed(text).encode()
    raise ConfigurationError(
        f"{label}: the settings or a tool's schema hold what JSON cannot: {why}"[:500],
        field="settings",
    )


def _decode(content: bytes) -> Any:
    """The answer as JSON; escapes of lone surrogates become U+FFFD, since no store keeps them."""
    try:
        text = content.decode("utf-8-sig")
        value = parse_json(text)
        if "\\u" in text:
            again = json.dumps(value, ensure_ascii=False)
            clean = well_formed(again)
            value = value if clean == again else parse_json(clean)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not JSON ({type(error).__name__}, {len(content)} bytes)") from None
    return value
