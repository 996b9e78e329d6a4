"""What of a conversation the model is shown: compaction, and other sessions' messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.compacting import Compaction, Summarize, compact
from perdure.checkpoint_bridge.stored_messages import stored_messages
from perdure.sessions.base import SessionPart

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.messages import Message


class History(SessionPart):
    """The part of a session object that shapes what the model is shown."""

    async def messages(self) -> list[Message]:
        """The conversation as the log has it now; the messages are read-only and shared.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await stored_messages(self.store, self.session_id)

    async def compact(
        self,
        *,
        keep_last: int,
        summary: str | None = None,
        summarize: Summarize | None = None,
    ) -> Compaction | None:
        """Replace all but the newest turns by one user message, which sums them up.

        The system prompt stays. Later requests and checkpoints have the summary; the log, the
        earlier checkpoints and forks of earlier steps have the messages themselves.

        Args:
            keep_last: how many turns stay as they are, from 1.
            summary: the text of the summary.
            summarize: gets the messages that go and gives the text, at once or awaited; default:
                the beginnings of what was said.

        Returns:
            What was done; ``None`` when there are no more turns than are kept.

        Raises:
            SessionNotFoundError: there is no such session.
            SessionConflictError: a run goes on or was cut off, calls have no result yet, or the
                session was ended.
            ConfigurationError: an argument is wrong; nothing was done.
        """
        return await compact(
            self.store,
            self.session_id,
            keep_last=keep_last,
            summary=summary,
            summarize=summarize,
        )
