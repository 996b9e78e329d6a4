"""What a failed call becomes: one line without secrets, and whether asking again can help.

The only place where a status, a provider's error body or a broken connection is judged.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.activities.providers.retry_after import retry_after_seconds
from perdure.checkpoint_bridge.errors import ProviderError, RateLimitedError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_MESSAGE_CHARS",
    "MalformedError",
    "Origin",
    "broken_connection",
    "cannot_send",
    "embedded_failure",
    "http_failure",
    "malformed_answer",
]

MAX_MESSAGE_CHARS = 500
_CONTEXT_HINT = (
    "Shorten the conversation or its tool results, or use a model with a larger context."
)
_QUOTA_HINT = "Add credit or raise the limit of the provider's account, then resume the session."
_KEY_HINT = "Give the worker a key that the provider accepts, then resume the session."

_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})
_BILLING_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "project_spend_limit_exceeded",
        "enforced_spend_limit_reached",
    }
)
"""429s that waiting does not heal: nothing is left to spend."""
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""For error objects in a 200 answer, which carry no status of their own."""
_CONTEXT_TOO_LONG = re.compile(
    r"context_length_exceeded|context[ _]length|context[ _]window|context size|prompt is too long"
    r"|input is too long|maximum (?:prompt|input) length|too many (?:input )?tokens"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)",
    re.IGNORECASE,
)
_LOOKS_LIKE_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key)[-_][A-Za-z0-9*_.\-]{6,}"  # the usual prefixes
    r"|\S*\*{3,}\S*"  # providers echo keys with their middle starred out
    r"|\b(?:Bearer|Basic)\s+[A-Za-z0-9*_.\-+/=]{6,}",
    re.IGNORECASE,
)
_MIN_SECRET_CHARS = 4


class MalformedError(ValueError):
    """An answer of status 200 that is not what the API promises."""


@dataclass(frozen=True)
class Origin:
    """Who failed, in the words of an error message."""

    label: str
    """The provider's prefix."""
    host: str
    model: str
    key_source: str
    """Where the key came from: the variable's or the argument's name, never the key."""
    secrets: tuple[str, ...] = ()
    """Texts that no message may hold: the key and the values of extra headers."""

    def line(self, text: str) -> str:
        """One line of bounded length without secrets."""
        return _line(text, self.secrets)


@dataclass(frozen=True)
class _Detail:
    message: str = ""
    names: frozenset[str] = frozenset()
    """The error's type and codes."""


def cannot_send(label: str, why: str) -> ProviderError:
    """The request would be refused or misunderstood; nothing was sent."""
    return ProviderError(
        _line(f"{label}: the request cannot be sent: {why}", ()),
        retryable=False,
        hint="Change the message or the tool that it names, then resume the session.",
    )


def malformed_answer(origin: Origin, why: str) -> ProviderError:
    """A 200 that is not an answer; a proxy's page or a cut body, so asking again can help."""
    return ProviderError(
        origin.line(f"{origin.label}: malformed answer from {origin.host}: {why}"),
        status=200,
        retryable=True,
    )


def broken_connection(origin: Origin, what: str, error: BaseException) -> ProviderError:
    """No whole answer arrived; it may or may not have been computed."""
    reason = f" ({type(error).__name__}: {error})" if str(error) else f" ({type(error).__name__})"
    return ProviderError(
        origin.line(f"{origin.label}: {what} {origin.host}{reason}"), retryable=True
    )


def http_failure(
    origin: Origin, status: int, headers: Mapping[str, str], body: bytes
) -> ProviderError:
    """The error for a status other than 2xx."""
    wait = retry_after_seconds(headers)
    return _judge(origin, status, _detail_of_body(body), wait)


def embedded_failure(origin: Origin, error: object) -> ProviderError:
    """The error for an error object inside a 200 answer, as gateways send it."""
    detail = _detail_of(error)
    code = error.get("code") if isinstance(error, dict) else None
    status: int | None = None
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
        status = code
    else:
        known = sorted(_STATUS_OF_TYPE[name] for name in detail.names if name in _STATUS_OF_TYPE)
        status = known[0] if known else None
    if status is None:
        text = f"{origin.label} answered with an error from {origin.host}: {detail.message}"
        return ProviderError(origin.line(text), status=200, retryable=True)
    return _judge(origin, status, detail, None)


def _judge(origin: Origin, status: int, detail: _Detail, wait: float | None) -> ProviderError:
    label = origin.label
    where = f"(HTTP {status} from {origin.host})"
    because = f": {detail.message}" if detail.message else ""
    if status == 401:
        # Without the provider's own text, which may repeat a part of the key.
        text = f"{label} refused the API key of {origin.key_source} {where}"
        return ProviderError(origin.line(text), status=status, hint=_KEY_HINT)
    if status == 403:
        text = f"{label} refused the API key of {origin.key_source}, or what it may do {where}"
        return ProviderError(origin.line(text + because), status=status, hint=_KEY_HINT)
    if _too_long(status, detail):
        text = f"{label}: context too long for {origin.model} {where}{because}"
        return ProviderError(origin.line(text), status=status, hint=_CONTEXT_HINT)
    if status == 429:
        if detail.names & _BILLING_CODES:
            text = f"{label}: the account's quota is used up {where}{because}"
            return RateLimitedError(origin.line(text), status=status, hint=_QUOTA_HINT)
        text = f"{label} limits the rate of requests {where}{because}"
        return RateLimitedError(origin.line(text), status=status, retryable=True, retry_after=wait)
    retryable = status in _RETRYABLE_STATUSES or status >= 500
    if 300 <= status < 400:
        because = ": it redirects, which is not followed; correct the base URL"
    return ProviderError(
        origin.line(f"{label} failed {where}{because}"),
        status=status,
        retryable=retryable,
        retry_after=wait if retryable else None,
    )


def _too_long(status: int, detail: _Detail) -> bool:
    if status == 413:
        return True
    if status == 429:
        # A single request above the limit per minute never fits, however long one waits.
        return detail.message.startswith("Request too large for")
    if status not in {400, 422}:
        return False
    return "context_length_exceeded" in detail.names or bool(
        _CONTEXT_TOO_LONG.search(detail.message)
    )


def _detail_of_body(body: bytes) -> _Detail:
    text = body.decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        # A proxy's HTML page says less than the status.
        return _Detail() if text.lstrip().startswith("<") else _Detail(text)
    if isinstance(parsed, dict):
        return _detail_of(parsed.get("error") or parsed)
    return _detail_of(parsed)


def _detail_of(error: object) -> _Detail:
    if isinstance(error, str):
        return _Detail(error)
    if not isinstance(error, dict):
        return _Detail("" if error is None else json.dumps(error, ensure_ascii=False))
    message = error.get("message") or error.get("detail") or ""
    if not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    more: Any = error.get("details")
    names = [error.get("type"), error.get("code")]
    if isinstance(more, dict):
        names.append(more.get("error_code"))
    return _Detail(message, frozenset(name for name in names if isinstance(name, str)))


def _line(text: str, secrets: tuple[str, ...]) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    for secret in secrets:
        if len(secret) >= _MIN_SECRET_CHARS:
            line = line.replace(secret, "[redacted]")
    line = _LOOKS_LIKE_KEY.sub("[redacted]", line)
    if len(line) > MAX_MESSAGE_CHARS:
        line = line[: MAX_MESSAGE_CHARS - 3] + "..."
    return line
