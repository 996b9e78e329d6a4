"""What a hook gets when a turn ends, and what it may leave for the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.checkpoint_bridge.stored_messages import stored_messages

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.messages import Message
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message that the next request shows as the user's, although no user wrote it."""

    content: str | list[Any]
    """A text, or parts of the documented format."""
    source: str = "memory"
    """Who put it there; the log's event and the message's ``metadata`` say so."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The turn that has just ended."""

    session_id: str
    run_id: str
    agent: str
    turn: int
    """The session's turn, from 1."""
    finish_reason: str
    messages: list[Message] = field(repr=False)
    """The whole conversation with this turn; the messages are read-only."""
    _store: SqlStore = field(repr=False)

    async def messages_of(self, session_id: str) -> list[Message]:
        """The messages of another session, read-only.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await stored_messages(self._store, session_id)


TurnHook: TypeAlias = Callable[[TurnContext], Awaitable[Sequence[UserMessage | str] | None]]
"""An async function; a plain text is a :class:`UserMessage` whose source is the function's name."""
