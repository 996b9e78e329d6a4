"""What a session holds: its events, its transcript, and other views of its log.

Everything here reads the store alone, so it works while no worker runs.
"""

from __future__ import annotations

from perdure.sessions.base import SessionPart


class Reading(SessionPart):
    """The reading part of a session object."""
