"""Answers of sub-agents, read from their sessions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from temporalio import activity

from perdure.activities.content import content_of
from perdure.activities.deps import Deps
from perdure.activities.failures import boundary
from perdure.activities.liveness import kept_alive
from perdure.activities.wire import ACTIVITY_CHILD, AnswerTask, CallPlace, ToolOutcome
from perdure.checkpoint_bridge.child_answers import answer_message
from perdure.checkpoint_bridge.errors import SessionNotFoundError
from perdure.checkpoint_bridge.log.events import INLINE_LIMIT, dump

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore


class Answers(Deps):
    """Brings answers that are too large for a workflow's result."""

    @activity.defn(name=ACTIVITY_CHILD)
    @boundary
    @kept_alive
    async def read_answer(self, task: AnswerTask) -> ToolOutcome:
        """Make a call's result of what a sub-agent's session ended with.

        Raises:
            SessionNotFoundError: the session was deleted meanwhile.
        """
        message = await answer_message(self.store, task.child_session, task.call_id, task.tool)
        if message is None:
            msg = f"Session {task.child_session!r} has no answer any more."
            raise SessionNotFoundError(msg)
        content = dump(message)
        ref = await self.store.put_content(message) if len(content) > INLINE_LIMIT else None
        return ToolOutcome(
            content=content_of(message, ref, len(content)), is_error="isError" in message
        )


async def delegated_input(store: SqlStore, place: CallPlace) -> str:
    """What a call's arguments say that its sub-agent is to do."""
    state = await store.state(place.log_id, place.seq + 1)
    raw = state.calls[place.index]["function"]["arguments"]
    return str(json.loads(raw)["input"])
