"""Events that a tool puts into the log while its call runs: an application's own, and its state.

The run is the only writer of a log; a tool that emits writes beside it. So its events say nothing
of the conversation, are marked as ignorable (who does not know the type can read the messages
without it), and a run's own events go behind them
(:func:`.event_log.append`). That holds as long as the call has no result: after that, nothing is
taken from it any more.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, or_, select, update

from perdure.checkpoint_bridge.errors import ConfigurationError, LogConflictError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.tables.notices import tell_followers
from perdure.checkpoint_bridge.tables.schema import events, sessions

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["EMITTED_LIMIT", "Emission", "check_emission", "emit"]

EMITTED_LIMIT = 1024 * 1024
"""Bytes of JSON that the tools of one turn may emit."""

_TYPE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w./-]+", re.ASCII)
_TYPE_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Emission:
    """An event to emit, and the call that it comes from."""

    session_id: str
    log_id: int
    run_id: str
    seq: int
    index: int
    """The call, as the ledger names it."""
    name: str
    """Of this emission among all of the call: the same one again is not stored again."""
    type: str
    data: dict[str, Any]


def check_emission(type_: Any, data: Any) -> None:
    """Refuse what a tool may not emit.

    Raises:
        ConfigurationError: the type is not one of an application, or JSON cannot hold the data.
    """
    if not isinstance(type_, str) or not _TYPE.fullmatch(type_) or len(type_) > _TYPE_LENGTH:
        msg = f"{type_!r} is no type for an event: a prefix of your own and a name, 'app/progress'."
        raise ConfigurationError(msg, field="type")
    if not ev.is_of_application(type_):
        prefix = type_.partition("/")[0]
        msg = f"Events of {prefix}/… are perdure's own; give yours a prefix of your own."
        raise ConfigurationError(msg, field="type")
    if not isinstance(data, dict) or not ev.is_plain_json(data):
        msg = f"The data of {type_} is not an object of plain JSON."
        raise ConfigurationError(msg, field="data")


def emit(connection: Connection, emission: Emission, time_ms: int) -> int:
    """Append an event of a call that runs; returns its sequence.

    Raises:
        LogConflictError: the call's run is not the session's writer any more.
        ConfigurationError: the call has its result, or its turn has emitted too much.
    """
    query = select(sessions).where(
        sessions.c.session_id == emission.session_id, sessions.c.log_id == emission.log_id
    )
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None or row.writer != emission.run_id:
        raise LogConflictError.of(emission.session_id, kept=row is not None)
    origin, there = _look(connection, emission)
    if there is not None:
        return there
    made = ev.encode(ev.NewEvent(emission.type, emission.data))
    if row.emitted + len(made.data) > EMITTED_LIMIT:
        msg = f"The tools of one turn emit at most {EMITTED_LIMIT:,} bytes."
        raise ConfigurationError(msg, field="data")
    connection.execute(
        insert(events).values(
            log_id=emission.log_id,
            seq=row.head,
            type=emission.type,
            time_ms=time_ms,
            data=made.data,
            digest=made.digest,
            origin=origin,
            ignorable=True,
        )
    )
    connection.execute(
        update(sessions)
        .where(sessions.c.session_id == emission.session_id)
        .values(head=row.head + 1, emitted=row.emitted + len(made.data), updated_at=time_ms)
    )
    tell_followers(connection, emission.log_id, row.followed_until)
    return int(row.head) + 1


def _look(connection: Connection, emission: Emission) -> tuple[str, int | None]:
    """The origin that names this emission, and its sequence if it is there already."""
    rows = connection.execute(
        select(events.c.seq, events.c.type, events.c.data, events.c.origin)
        .where(
            events.c.log_id == emission.log_id,
            events.c.seq > emission.seq,
            or_(
                events.c.type.in_((ev.TOOL_CALL, ev.TOOL_RESULT)),
                events.c.origin.endswith(f":{emission.name}", autoescape=True),
            ),
        )
        .order_by(events.c.seq)
    )
    origins: list[str] = []
    for row in rows.all():
        if row.type not in (ev.TOOL_CALL, ev.TOOL_RESULT):
            if row.origin in origins:
                return row.origin, row.seq + 1
            continue
        data = json.loads(row.data)
        if (data["seq"], data["index"]) != (emission.seq, emission.index):
            continue
        if row.type == ev.TOOL_RESULT:
            msg = "The call has its result already; nothing of it is recorded any more."
            raise ConfigurationError(msg, field="type")
        origins.append(f"{ev.TOOL}:{row.seq + 1}:{emission.name}")
    if not origins:
        msg = f"The session {emission.session_id} does not have the call that wants to emit."
        raise LogConflictError(msg)
    return origins[-1], None
