"""Idempotency keys: a request that is sent again under its key happens once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    IdempotencyAmbiguousError,
    IdempotencyMismatchError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionConflictError,
    SessionEndedError,
    SessionExistsError,
    SessionIdInvalidError,
    SessionNotFoundError,
)
from perdure.checkpoint_bridge.log.events import digest_of, dump
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables.claims import (
    COMPLETED,
    Claim,
    complete_claim,
    release_claim,
    take_claim,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

KEY_LENGTH = 255

NOT_ADMITTED = (
    ConfigurationError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionConflictError,
    SessionEndedError,
    SessionExistsError,
    SessionIdInvalidError,
    SessionNotFoundError,
)
"""After these nothing has happened, so the key was not used."""


class Claims:
    """The claims of one store."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def once(
        self,
        scope: str,
        key: str | None,
        request: Any,
        make: Callable[[], Awaitable[Any]],
        *,
        find: Callable[[], Awaitable[Any]] | None = None,
    ) -> Any:
        """Do something once for a key, and give the same response to whoever asks again.

        A response is kept for 24 hours; after that the key is new. A request that was begun and
        has no response (its process died, or still waits) is never made again.

        Args:
            scope: what is done and to what, such as ``submit:SESSION``; keys of different scopes
                have nothing to do with each other.
            key: the caller's key; without one, ``make`` is simply called.
            request: JSON of all that matters in the request.
            make: does it, and gives the response as JSON. After one of :data:`NOT_ADMITTED`
                nothing has happened, and the key is given back; after any other error nobody
                knows.
            find: gives the response of a request that was begun earlier, if it can be recognised
                by what it left behind, else ``None``.

        Raises:
            ConfigurationError: the key is none.
            IdempotencyMismatchError: the key was used for another request.
            IdempotencyAmbiguousError: it was begun, and what it did is not known.
        """
        if key is None:
            return await make()
        _check(key)
        request_hash = _digest(request)
        database = self._store.database
        there = await database.write(take_claim, scope, key, request_hash, now_ms())
        if there is not None and there.request_hash != request_hash:
            msg = f"The idempotency key {key!r} was used for another request."
            raise IdempotencyMismatchError(msg, key=key)
        if there is not None and there.state == COMPLETED:
            return there.response
        try:
            response = await (make if there is None else find or _nothing)()
        except NOT_ADMITTED:
            await database.write(release_claim, scope, key)
            raise
        if there is not None and response is None:
            raise _ambiguous(there)
        await database.write(complete_claim, scope, key, response, now_ms())
        return response


def claim_id(scope: str, key: str) -> str:
    """What a run carries of the key that it was started under, so that it can be recognised."""
    return digest_of(dump([scope, key]))[:32]


async def _nothing() -> None:
    """What is found where nothing can be looked for."""


def _digest(request: Any) -> str:
    try:
        return digest_of(dump(request))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"The request is not JSON: {error}"
        raise ConfigurationError(msg, field="input") from error


def _check(key: Any) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= KEY_LENGTH or not key.isprintable():
        msg = f"An idempotency key is a text of 1 to {KEY_LENGTH} printable characters."
        raise ConfigurationError(msg, field="idempotency_key")


def _ambiguous(claim: Claim) -> IdempotencyAmbiguousError:
    msg = (
        f"A request under the idempotency key {claim.key!r} was begun, and its response is "
        "unknown: it may have happened."
    )
    return IdempotencyAmbiguousError(msg, key=claim.key)
