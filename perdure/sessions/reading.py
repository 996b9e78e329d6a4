"""What a session holds: its events, its transcript, and other views of its log.

Everything here reads the store alone, so it works while no worker runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.activities.providers.base import ModelRequest, ToolSpec
from perdure.checkpoint_bridge.errors import ConfigurationError, LogConflictError
from perdure.checkpoint_bridge.following import Follower
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.derived import kv_of, messages_of
from perdure.checkpoint_bridge.log.entries import Entry, entries_of
from perdure.checkpoint_bridge.log.fold import SessionState
from perdure.checkpoint_bridge.log.request_messages import recorded_messages
from perdure.checkpoint_bridge.log.request_record import capped
from perdure.checkpoint_bridge.log.views import check_view, in_view
from perdure.checkpoint_bridge.pages import PAGE_EVENTS, EventPage, place_of, read_page
from perdure.checkpoint_bridge.turn_list import Turn, read_turns
from perdure.sessions.base import SessionPart, check_sequence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.checkpoint_bridge.format.messages import Message
    from perdure.checkpoint_bridge.log.events import Event


class Transcript(NamedTuple):
    """The messages that the model is given, and up to where in the log they are its meaning."""

    messages: list[Message]
    through_sequence: int
    """``derive_messages`` of the events up to this sequence gives the messages."""


class Reading(SessionPart):
    """The reading part of a session object."""

    async def events(self, after: int = 0, *, view: str | None = None) -> AsyncIterator[Event]:
        """Iterate over the committed events behind a cursor, in order; it ends with the newest.

        Pages are read as the iteration goes on, so a long session is never in memory as a whole.

        Args:
            after: the ``sequence`` of the last event that was handled; 0: from the beginning.
            view: ``brain`` for the event names of that system, at the same sequences.

        Raises:
            SessionNotFoundError: there is no such session.
            ConfigurationError: the cursor is negative, or there is no such view.
        """
        check_view(view)
        more = True
        while more:
            page = await self.events_page(after)
            for event in page.events:
                yield in_view(event, view)
            after, more = page.cursor, page.has_more

    async def events_page(self, after: int = 0, limit: int = PAGE_EVENTS) -> EventPage:
        """One page: at most 1,000 events and about 8 MiB; one that is larger comes alone.

        Raises:
            SessionNotFoundError: there is no such session.
            ConfigurationError: the cursor or the limit is not possible.
        """
        check_sequence("after", after)
        if limit < 1:
            raise ConfigurationError(f"The limit is at least 1, not {limit}.", field="limit")
        return await self.store.database.read(read_page, self.session_id, after, limit)

    async def stream(self, after: int = 0, *, view: str | None = None) -> AsyncIterator[Event]:
        """Iterate over committed events, then over what is committed from then on.

        No event is left out and none comes twice. It ends when the session is ended, or when
        the consumer stops. Follow again from the last ``sequence`` that was handled.

        Raises:
            SessionNotFoundError: there is no such session, or it was deleted meanwhile.
            ConfigurationError: the cursor is negative, or there is no such view.
        """
        check_view(view)
        async with Follower(self.store.database, self.session_id) as follower:
            while True:
                page = await self.events_page(after)
                follower.check(page.log_id)
                for event in page.events:
                    yield in_view(event, view)
                    if event.type == ev.SESSION_ENDED:
                        return
                after = page.cursor
                if not page.has_more:
                    await follower.wait(after)

    async def transcript(self, through_sequence: int | None = None) -> Transcript:
        """The messages that the model is given, with their position in the log.

        Args:
            through_sequence: as it was at this event; default: now.

        Raises:
            SessionNotFoundError: there is no such session.
            SessionFormatUnsupportedError: the log holds an event that is not known here.
            ConfigurationError: the log does not reach so far.
        """
        state = await self._state(through_sequence)
        return Transcript(messages_of(state), state.through)

    async def kv(self, through_sequence: int | None = None) -> dict[str, Any]:
        """The key-value state that the session's tools keep (``ctx.kv``).

        Args:
            through_sequence: as it was at this event; default: now.

        Returns:
            The values by their keys, as copies. ``None`` is a value that was set; what was
            deleted has no key.

        Raises:
            SessionNotFoundError: there is no such session.
            SessionFormatUnsupportedError: the log holds an event that is not known here.
            ConfigurationError: the log does not reach so far.
        """
        return kv_of(await self._state(through_sequence))

    async def _state(self, through_sequence: int | None) -> SessionState:
        log_id, head = await self.store.database.read(place_of, self.session_id)
        through = head if through_sequence is None else through_sequence
        check_sequence("through_sequence", through)
        if through > head:
            msg = f"The log of {self.session_id} ends at sequence {head}, before {through}."
            raise ConfigurationError(msg, field="through_sequence")
        try:
            return await self.store.state(log_id, through)
        except LogConflictError:
            await self.store.database.read(place_of, self.session_id)
            raise

    async def request_at(self, sequence: int) -> ModelRequest:
        """The request that the answer at a sequence came to, as the provider got it.

        Args:
            sequence: of an ``assistant/message``.

        Raises:
            SessionNotFoundError: there is no such session.
            ConfigurationError: no model call of a run was answered there.
        """
        check_sequence("sequence", sequence)
        log_id, _ = await self.store.database.read(place_of, self.session_id)
        page = await self.events_page(sequence - 1, 1) if sequence else None
        answer = page.events[0] if page and page.events else None
        state = await self.store.state(log_id, sequence - 1) if answer else SessionState()
        config = state.request_config
        if answer is None or answer.type != ev.ASSISTANT_MESSAGE or config is None:
            msg = f"No answer of a model is at sequence {sequence} of {self.session_id}."
            raise ConfigurationError(msg, field="sequence")
        return ModelRequest(
            model=config["model"],
            messages=recorded_messages(
                state.messages,
                answer.data.get("history") or {"places": None},
                shown=partial(capped, config),
            ),
            tools=[
                ToolSpec(tool["name"], tool["description"], tool["inputSchema"])
                for tool in config["tools"]
            ],
            settings=config["settings"],
            session_id=self.session_id,
            run_id=(state.open_turn or {}).get("runId", ""),
            step=answer.data["step"],
        )

    async def entries(self) -> list[Entry]:
        """The conversation as people read it, oldest first (``entries.schema.json``).

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return entries_of([event async for event in self.events()])

    async def turns(self) -> list[Turn]:
        """The session's turns, oldest first; no message is read.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await self.store.database.read(read_turns, self.session_id)
