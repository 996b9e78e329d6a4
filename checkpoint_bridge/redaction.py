"""Takes what looks like a secret out of a text that was not written for its reader.

An exception's message is written for the people who run a program: it may quote a connection
string or a header. A model needs the message to correct itself, and from there it goes to the
model's provider, into the record and to the client. So the message stays, and what looks like a
secret in it does not (``docs/decisions/0011``). This is the one place that says what that is.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REDACTED", "redact", "safe_text"]

REDACTED = "[redacted]"

_NOTHING: Mapping[str, str] = MappingProxyType({})
_LONGEST = 4_000
"""Characters that are looked at; what is shown of a message is less."""

_NAMES = (
    r"(?:pass(?:word|wd|phrase)|(?<![A-Za-z])pass(?=[\"']?\s{0,3}=)|pwd|secret|credentials?|(?:api|access|account|private|secret|auth"
    r"|signing|encryption|service|shared|storage)[_\- ]?key|apikey|token|cookie|signature|sig)"
)
_VARIABLE = re.compile(rf"(?:^|_){_NAMES}S?$|(?:^|_)(?:KEY|PASS)$", re.IGNORECASE)
_SHORTEST_VALUE = 8
"""A variable's value that is shorter could be any word."""

_FORMS = (
    # Keys and tokens of well-known services, by their prefixes.
    r"\b(?:sk|pk|rk|whsec)[-_][A-Za-z0-9_\-]{8,}",
    r"\bgh[opsur]_[A-Za-z0-9]{16,}",
    r"\bgithub_pat_\w{16,}",
    r"\bglpat-[\w\-]{16,}",
    r"\bxox[abeprs]-[\w\-]{8,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}",
    r"\bAIza[\w\-]{30,}",
    r"\bya29\.[\w\-]{10,}",
    r"\b(?:hf|npm|dop_v1|pypi)[_-][A-Za-z0-9_\-]{20,}",
    r"\bSG\.[\w\-]{10,}\.[\w\-]{10,}",
    # JSON web tokens, and keys in PEM form.
    r"\beyJ[\w\-]{8,}\.[\w\-]+(?:\.[\w\-]*)?",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    # Long, and of all kinds of characters: no word is like that.
    (
        r"(?<![\w+\-])(?=[\w+\-]{0,200}[a-z])(?=[\w+\-]{0,200}[A-Z])"
        r"(?=(?:[A-Za-z_+\-]{0,60}\d){3})[\w+\-]{32,}={0,2}"
    ),
)
_WHOLE = re.compile("|".join(_FORMS), re.DOTALL)
_IN_URL = re.compile(
    # A password may hold all kinds of characters; "host:8080/" is none.
    r"(\b[a-z][a-z0-9+.\-]{0,30}://)(?:[^\s:/@\"'<>]*:(?!\d+[/?#])[^\s\"'<>]*|[^\s/?#\"'<>]*)@",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(\bauthorization[\"']?\s*[:=]\s*[\"']?)[^\r\n\"',}]+", re.IGNORECASE)
_SCHEME = re.compile(
    r"(\b(?:bearer|basic)\s+)(?:(?=[^\s\"',]*\d)[\w.~+/=\-]{6,}|[\w.~+/=\-]{16,})", re.IGNORECASE
)
_NAMED = re.compile(
    rf"([\w.\-]{{0,60}}{_NAMES}[\"']?\s{{0,3}}(?:=>|[:=])\s{{0,3}})"
    rf"({re.escape(REDACTED)}|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s\"',;&)}}\]]+)(?=(\s+[A-Za-z])?)",
    re.IGNORECASE,
)
_PASSWORD = re.compile("pass|pwd", re.IGNORECASE)


def redact(text: str, environment: Mapping[str, str] = _NOTHING) -> str:
    """The text without what looks like a secret; each one becomes :data:`REDACTED`.

    Credentials in addresses, ``Authorization`` headers, values after names such as ``password``
    or ``api_key``, keys and tokens of well-known forms, and the values that the process has in
    environment variables of such names.
    """
    text = text[:_LONGEST]
    for name, value in environment.items():
        if len(value) >= _SHORTEST_VALUE and value in text and _VARIABLE.search(name):
            text = text.replace(value, REDACTED)
    text = _IN_URL.sub(rf"\1{REDACTED}@", text)
    text = _HEADER.sub(rf"\1{REDACTED}", text)
    text = _SCHEME.sub(rf"\1{REDACTED}", text)
    text = _NAMED.sub(_named, text)
    return _WHOLE.sub(REDACTED, text)


def safe_text(error: BaseException, environment: Mapping[str, str] = _NOTHING) -> str:
    """An exception's message, redacted; ``""`` for one that cannot even be printed."""
    try:
        return redact(str(error), environment)
    except Exception:  # noqa: BLE001 - the exception's own class can do anything here
        return ""


def _named(match: re.Match[str]) -> str:
    """``password: hunter2`` hides a secret; ``password: must be longer`` is a sentence."""
    name, value, prose = match.groups()
    is_word = value.isalpha() and value.islower()
    if ":" in name[-4:] and is_word and (prose or not _PASSWORD.search(name)):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{quote}{REDACTED}{quote}"
