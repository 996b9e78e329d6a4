"""What every part of a session object stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.client import Client

_SEQUENCES = 1 << 63


class SessionPart:
    """A session by its id. Making one reads nothing."""

    def __init__(self, client: Client, session_id: str) -> None:
        self.client = client
        self.session_id = session_id

    def __repr__(self) -> str:
        return f"Session({self.session_id!r})"

    @property
    def store(self) -> SqlStore:
        """The store that the session is in."""
        return self.client.store


def check_sequence(name: str, value: int) -> None:
    """Refuse what no event can have as its sequence.

    Raises:
        ConfigurationError: it is no whole number, or below 0, or more than a store can count.
    """
    if type(value) is not int or not 0 <= value < _SEQUENCES:
        raise ConfigurationError(f"{name} is a sequence: 0 or more, not {value!r}.", field=name)
