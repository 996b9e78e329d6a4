"""Idempotency keys on the real stores: row F107 of the features."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    IdempotencyAmbiguousError,
    IdempotencyMismatchError,
    SessionBusyError,
)
from perdure.claims import Claims

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOUR = 60 * 60 * 1000


class Work:
    """Something that must happen once."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.done = 0

    async def __call__(self) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        self.done += 1
        return {"done": self.done}


@pytest.fixture
async def store(sql_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(sql_url) as opened:
        yield opened


async def test_f107_a_completed_response_is_replayed_for_a_day(
    store: SqlStore, sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000_000_000]
    monkeypatch.setattr("perdure.claims.now_ms", lambda: now[0])
    work = Work()
    assert await Claims(store).once("submit:s", "k", "body", work) == {"done": 1}
    now[0] += 23 * HOUR
    async with SqlStore(sql_url) as another:  # as after a restart
        assert await Claims(another).once("submit:s", "k", "body", work) == {"done": 1}
    now[0] += 2 * HOUR
    assert await Claims(store).once("submit:s", "k", "other body", work) == {"done": 2}


async def test_f107_a_claim_without_a_response_is_never_executed_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000_000_000]
    monkeypatch.setattr("perdure.claims.now_ms", lambda: now[0])
    work = Work(OSError("the process died"))
    with pytest.raises(OSError, match="died"):
        await Claims(store).once("submit:s", "k", "body", work)
    now[0] += 1000 * HOUR
    with pytest.raises(IdempotencyAmbiguousError, match="may have happened"):
        await Claims(store).once("submit:s", "k", "body", work)
    assert work.done == 0

    async def find() -> Any:
        return "what it left behind"

    # What it did can be recognised after all; from then on that is the response.
    claims = Claims(store)
    assert await claims.once("submit:s", "k", "body", work, find=find) == "what it left behind"
    assert await claims.once("submit:s", "k", "body", work) == "what it left behind"
    assert work.done == 0


async def test_f107_scopes_bodies_and_rejections(store: SqlStore) -> None:
    claims, work = Claims(store), Work(SessionBusyError("busy"))
    with pytest.raises(SessionBusyError):
        await claims.once("send:s", "k", "body", work)
    assert await claims.once("send:s", "k", "another body", work) == {"done": 1}  # not consumed
    assert await claims.once("submit:s", "k", "body", work) == {"done": 2}
    with pytest.raises(IdempotencyMismatchError, match="'k' was used for another request"):
        await claims.once("submit:s", "k", "changed", work)
    assert await claims.once("submit:s", None, "body", work) == {"done": 3}
    assert await claims.once("submit:s", None, "body", work) == {"done": 4}
    for key in ("", "x" * 256, "a\nb", 7):
        with pytest.raises(ConfigurationError, match="1 to 255 printable"):
            await claims.once("submit:s", key, "body", work)  # type: ignore[arg-type]


async def test_f107_many_at_once(store: SqlStore) -> None:
    work = Work()
    asked = [Claims(store).once("create:a", "k", "body", work) for _ in range(10)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert work.done == 1
    assert all(a == {"done": 1} or isinstance(a, IdempotencyAmbiguousError) for a in answers)


async def test_f107_a_request_that_turns_out_to_be_rejected_uses_no_key(store: SqlStore) -> None:
    claims, work = Claims(store), Work(OSError("died"))
    with pytest.raises(OSError, match="died"):
        await claims.once("send:s", "k", "body", work)

    async def rejected() -> Any:
        msg = "no such agent"
        raise ConfigurationError(msg)

    with pytest.raises(ConfigurationError, match="no such agent"):
        await claims.once("send:s", "k", "body", work, find=rejected)
    assert await claims.once("send:s", "k", "body", work) == {"done": 1}
    with pytest.raises(ConfigurationError, match="is not JSON"):
        await claims.once("send:s", "other", object(), work)
