"""Input that is too large for a request: it waits in the store until its run takes it.

Each large message is stored as the event that it becomes will store it, so it is stored once; a
small list names them. A row for each keeps them while no event names them yet.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, exists, select
from sqlalchemy.dialects import postgresql, sqlite

from perdure.checkpoint_bridge.log.events import INLINE_LIMIT, dump
from perdure.checkpoint_bridge.tables.blobs import drop_unused, get_blob, put_blob
from perdure.checkpoint_bridge.tables.schema import inputs, sessions

if TYPE_CHECKING:
    from sqlalchemy import Connection

_PLACE = "input_ref"


def put_input(
    connection: Connection, session_id: str, messages: list[dict[str, Any]], time_ms: int
) -> str:
    """Store messages for a session; returns the digest under which they are found."""
    texts = [dump(message) for message in messages]
    large = {text for text in texts if len(text) > INLINE_LIMIT}
    # In one order for all writers, as an append has it.
    digests = {text: put_blob(connection, text, time_ms) for text in sorted(large)}
    named = [
        {_PLACE: digests[text]} if text in digests else message
        for text, message in zip(texts, messages, strict=True)
    ]
    whole = put_blob(connection, dump(named), time_ms)
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(
        dialect.insert(inputs).on_conflict_do_nothing(),
        [
            {"session_id": session_id, "digest": digest, "created_at": time_ms}
            for digest in sorted({whole, *digests.values()})
        ],
    )
    return whole


def get_input(connection: Connection, digest: str) -> Any:
    """The input under a digest, or ``None`` when it is not whole."""
    content = get_blob(connection, digest)
    if content is None:
        return None
    given = json.loads(content)
    if not isinstance(given, list):
        return given
    found = []
    for each in given:
        message = each
        if isinstance(each, dict) and set(each) == {_PLACE}:
            text = get_blob(connection, str(each[_PLACE]))
            if text is None:
                return None
            message = json.loads(text)
        found.append(message)
    return found


def drop_inputs(connection: Connection, session_id: str) -> None:
    """Forget what a session was given; its events keep what they name."""
    mine = inputs.c.session_id == session_id
    digests = connection.scalars(select(inputs.c.digest).where(mine)).all()
    if digests:
        connection.execute(delete(inputs).where(mine))
        drop_unused(connection, digests)


def drop_lost_inputs(connection: Connection, before_ms: int, *, dry_run: bool) -> int:
    """Forget what was given before a time to sessions that there are not; returns how many."""
    lost = and_(
        inputs.c.created_at < before_ms,
        ~exists().where(sessions.c.session_id == inputs.c.session_id),
    )
    digests = connection.scalars(select(inputs.c.digest).where(lost)).all()
    if digests and not dry_run:
        connection.execute(delete(inputs).where(lost))
        drop_unused(connection, digests)
    return len(set(digests))
