"""The life of a session: its record, its forks, its end."""

from __future__ import annotations

from perdure.sessions.base import SessionPart


class Lifecycle(SessionPart):
    """The part of a session object that is about the session as a whole."""
