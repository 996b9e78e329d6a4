"""The session object: everything that can be done with one conversation."""

from __future__ import annotations

from perdure.sessions.history import History
from perdure.sessions.lifecycle import Lifecycle
from perdure.sessions.reading import Reading
from perdure.sessions.turns import Turns


class Session(Reading, Turns, History, Lifecycle):
    """One conversation, by its id. ``client.sessions.get(id)`` makes it without reading."""
