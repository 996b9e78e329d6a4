"""The turns of a session: sending input, outcomes, and what is unfinished."""

from __future__ import annotations

from perdure.sessions.base import SessionPart


class Turns(SessionPart):
    """The part of a session object that runs turns."""
