"""Claims of idempotency keys: one row for every request that was sent with a key.

A claim says *taken* before the request does anything and holds the response after it. So whoever
sends the same request again gets the same response, and a request whose response nobody recorded
is never made again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from perdure.checkpoint_bridge.log.events import dump
from perdure.checkpoint_bridge.tables.schema import claims

if TYPE_CHECKING:
    from sqlalchemy import Connection

TAKEN = "taken"
COMPLETED = "completed"

KEPT_MS = 24 * 60 * 60 * 1000
"""Milliseconds for which a response is kept and given again; without a response there is no end."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One request under a key."""

    scope: str
    key: str
    request_hash: str
    """Digest of the request; another request under the same key is a mistake."""
    state: str
    """``taken`` or ``completed``."""
    response: Any
    claimed_at: int
    """Unix milliseconds, as all times."""
    completed_at: int | None


def take_claim(
    connection: Connection, scope: str, key: str, request_hash: str, time_ms: int
) -> Claim | None:
    """Claim a key; ``None`` when it is ours now, else the claim that is there.

    Responses that have been kept for their time are dropped on the way, whoever's they are.
    """
    connection.execute(delete(claims).where(claims.c.completed_at <= time_ms - KEPT_MS))
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    values = {
        "scope": scope,
        "key": key,
        "request_hash": request_hash,
        "state": TAKEN,
        "claimed_at": time_ms,
    }
    taken = connection.execute(
        insert(claims).values(values).on_conflict_do_nothing().returning(claims.c.key)
    ).one_or_none()
    return None if taken is not None else find_claim(connection, scope, key)


def find_claim(connection: Connection, scope: str, key: str) -> Claim | None:
    """The claim of a key, or ``None``."""
    row = connection.execute(select(claims).where(*_is(scope, key))).one_or_none()
    if row is None:
        return None
    values = dict(row._mapping)  # noqa: SLF001 - public in SQLAlchemy
    values["response"] = None if row.response is None else json.loads(row.response)
    return Claim(**values)


def complete_claim(
    connection: Connection, scope: str, key: str, response: Any, time_ms: int
) -> None:
    """Record the response. The first one stays."""
    connection.execute(
        update(claims)
        .where(*_is(scope, key), claims.c.state == TAKEN)
        .values(state=COMPLETED, response=dump(response), completed_at=time_ms)
    )


def release_claim(connection: Connection, scope: str, key: str) -> None:
    """Give a key back that did nothing: its request was not admitted."""
    connection.execute(delete(claims).where(*_is(scope, key), claims.c.state == TAKEN))


def _is(scope: str, key: str) -> tuple[Any, ...]:
    return claims.c.scope == scope, claims.c.key == key
