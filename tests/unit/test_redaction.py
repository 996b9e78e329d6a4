"""What counts as a secret in a text, and what does not."""

from __future__ import annotations

import time

import pytest

from perdure.checkpoint_bridge.redaction import redact, safe_text

HIDDEN = [
    ("postgres://bob:s3cr@et/x@db:5432/app", "postgres://[redacted]@db:5432/app"),
    ("https://t0ken@host/path", "https://[redacted]@host/path"),
    ("redis://:pw@cache", "redis://[redacted]@cache"),
    ("password: hunter2 is wrong", "password: [redacted] is wrong"),
    ("password: correcthorse", "password: [redacted]"),
    ("db_pass=abc", "db_pass=[redacted]"),
    ("Server=a;Password=b;Encrypt=yes", "Server=a;Password=[redacted];Encrypt=yes"),
    ("{'password': 'a b c', 'user': 'u'}", "{'password': '[redacted]', 'user': 'u'}"),
    ('{"client_secret": "zzz"}', '{"client_secret": "[redacted]"}'),
    ("/v1?api_key=abc&page=2", "/v1?api_key=[redacted]&page=2"),
    ("AccountKey=abc==;EndpointSuffix=x", "AccountKey=[redacted];EndpointSuffix=x"),
    ("Invalid API key: abc123def", "Invalid API key: [redacted]"),
    ("Authorization: Basic dXNlcjpwdw==", "Authorization: [redacted]"),
    ("sent Bearer abcdef1 to it", "sent Bearer [redacted] to it"),
    ("key sk-proj-abcdefgh1234 is revoked", "key [redacted] is revoked"),
    ("ghp_abcdefghijklmnop1234", "[redacted]"),
    ("AKIAABCDEFGHIJKLMNOP", "[redacted]"),
    ("jwt eyJhbGciOiJI.eyJzdWIi.c2ln end", "jwt [redacted] end"),
    ("AbCdEfGhIjKlMnOpQrStUvWxYz0123456789==", "[redacted]"),
    (
        "a\n-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nb",
        "a\n[redacted]\nb",
    ),
]

SHOWN = [
    "the bank said no",
    "password: must be at least 8 characters",
    "token: expected identifier",
    "max_tokens: 4096 exceeded",
    "Unexpected token } in JSON at position 5",
    "signature: invalid",
    "pass: 5 of 6 tests",
    "keyword: value, compass = 45, primary_key=5",
    "Bearer authentication failed",
    "Basic configuration is missing",
    "https://host:8080/p?x=a@b.c",
    "no such order 7c1d6a2e-1111-4444-8888-0123456789ab",
    "commit 1234567890abcdef1234567890abcdef12345678",
    "/usr/lib/python3.11/site-packages/Some/Thing1/Other2/Path3/foo",
    "KeyError: 'amount'",
    "write to ann@example.com",
]


@pytest.mark.parametrize(("text", "left"), HIDDEN)
def test_secrets_are_taken_out(text: str, left: str) -> None:
    assert redact(text) == left
    assert redact(left) == left


@pytest.mark.parametrize("text", SHOWN)
def test_what_a_model_needs_stays(text: str) -> None:
    assert redact(text) == text


def test_values_of_the_environment_by_their_names() -> None:
    text = "it said: a plain sentence, short"
    assert redact(text, {"SHOP_TOKEN": "a plain sentence"}) == "it said: [redacted], short"
    assert redact(text, {"SHOP_NAME": "a plain sentence", "SHOP_KEY": "short"}) == text


def test_an_exception_that_cannot_be_printed() -> None:
    class EvilError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert safe_text(EvilError()) == ""
    assert safe_text(ValueError("pwd=x")) == "pwd=[redacted]"


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "password",
        "://",
        "a:",
        "Aa1",
        'password="',
        "https://a:",
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_no_text_takes_long(text: str) -> None:
    since = time.process_time()
    redact(text * 50_000)
    assert time.process_time() - since < 2
