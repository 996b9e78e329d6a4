"""What of a conversation the model is shown: compaction, and other sessions' messages."""

from __future__ import annotations

from perdure.sessions.base import SessionPart


class History(SessionPart):
    """The part of a session object that shapes what the model is shown."""
