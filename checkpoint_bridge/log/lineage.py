"""Whose sub-agent a session is: its id says it.

The id is made of the parent's session, its log and the place of the call. So the same call finds
the same session after any crash, two calls never share one, and a session that starts over under
its old id (with a new log) does not meet the sub-agents of its former life.
"""

from __future__ import annotations

import re

__all__ = [
    "ID_LIMIT",
    "ancestors",
    "call_of",
    "child_session_id",
    "child_session_prefix",
    "depth_of",
    "is_within",
]

ID_LIMIT = 200
"""Characters of a session id."""

_CHILD = re.compile(r"(?P<parent>.+)\.sub-(?P<log>\d+)\.(?P<seq>\d+)\.(?P<index>\d+)", re.DOTALL)


def child_session_id(parent: str, log_id: int, seq: int, index: int) -> str:
    """The session of the sub-agent that a call runs.

    Args:
        parent: the session that holds the call.
        log_id: that session's log.
        seq: place of the model turn in it.
        index: of the call in the turn.
    """
    return f"{child_session_prefix(parent)}{log_id}.{seq}.{index}"


def child_session_prefix(parent: str) -> str:
    """What the ids of all sub-agents below a session begin with, and ids of some others, too."""
    return f"{parent}.sub-"


def call_of(session_id: str) -> tuple[str, int, int, int] | None:
    """What :func:`child_session_id` made an id of; ``None`` for a session of its own.

    A fork of a sub-agent's session is a session of its own.
    """
    found = _CHILD.fullmatch(session_id)
    if found is None:
        return None
    return found["parent"], int(found["log"]), int(found["seq"]), int(found["index"])


def ancestors(session_id: str) -> list[str]:
    """The sessions above a sub-agent's, the nearest first."""
    found = []
    call = call_of(session_id)
    while call is not None:
        found.append(call[0])
        call = call_of(call[0])
    return found


def depth_of(session_id: str) -> int:
    """How many agents are above a session's: 0 for one that a person started."""
    return len(ancestors(session_id))


def is_within(session_id: str, top: str) -> bool:
    """Whether a session is ``top`` or of a sub-agent below it."""
    return session_id == top or top in ancestors(session_id)
