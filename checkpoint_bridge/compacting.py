"""Compaction: the oldest turns of a conversation give way to one message that sums them up.

One event of the log says so (``transcript_delta``). The messages that it replaces stay in the
log, in the history, and in whatever was forked before.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    LogConflictError,
    SessionConflictError,
)
from perdure.checkpoint_bridge.format._record import member
from perdure.checkpoint_bridge.format.messages import Message, text_of
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.derived import frozen_messages
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.stores.store import run_goes_on
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables.event_log import Batch
from perdure.checkpoint_bridge.tables.sessions import refuse_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

Summarize: TypeAlias = Callable[[list[Message]], str | Awaitable[str]]

_TRIES = 5
_LINE_LENGTH = 200
_LINES = 40


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did."""

    session_id: str
    turns: int
    """How many turns were replaced."""
    replaced: int
    """How many messages they had, with an older summary."""
    summary: str
    """The text of the message in their place."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with camelCase keys."""
        return {
            "sessionId": self.session_id,
            "turns": self.turns,
            "replacedMessages": self.replaced,
            "summary": self.summary,
        }


async def compact(
    store: SqlStore,
    session_id: str,
    *,
    keep_last: int,
    summary: str | None = None,
    summarize: Summarize | None = None,
) -> Compaction | None:
    """Replace all but the newest turns of a session by a summary (see ``Session.compact``)."""
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
        msg = f"keep_last is a whole number of turns from 1, not {keep_last!r}."
        raise ConfigurationError(msg, field="keepLast")
    if summary is not None and (summarize is not None or not summary.strip()):
        msg = "Give summary, a text that is not empty, or summarize, a function; not both."
        raise ConfigurationError(msg, field="summary")
    for remaining in reversed(range(_TRIES)):
        row = await store.known_session(session_id)
        refuse_ended(row)
        state = await store.state(row.log_id, row.head)
        _check_idle(session_id, state)
        cut = _cut(state, keep_last)
        checkpoint = await store.load(session_id)
        if cut is None or checkpoint is None:
            return None
        done = replace(cut, session_id=session_id)
        text = summary if summary is not None else await _summary(state, done, summarize)
        done = replace(done, summary=text)
        save = NewSave(1, checkpoint.status, str(checkpoint.finish_reason or ""))
        batch = Batch(
            session_id, row.log_id, None, row.head, now_ms(), [_rewrite(state, done)], [save]
        )
        try:
            await store.append(batch)
        except LogConflictError:
            if not remaining:
                raise
        else:
            return done
    raise AssertionError


def _check_idle(session_id: str, state: SessionState) -> None:
    if state.open_turn is not None:
        raise run_goes_on(session_id)
    if state.results < len(state.calls):
        msg = f"Session {session_id!r} has calls that have no result yet; it was not compacted."
        raise SessionConflictError(msg, hint="Resume the session, then compact it.")


def _cut(state: SessionState, keep_last: int) -> Compaction | None:
    """What is to be replaced; ``None``: nothing."""
    spans = state.spans.all
    # What a hook has left for the next turn is no turn yet.
    count = len(spans) - (bool(spans) and spans[-1].reason is None)
    turns = count - keep_last
    if turns < 1:
        return None
    return Compaction("", turns, spans[turns].start - _prompts(state), "")


def _prompts(state: SessionState) -> int:
    """How many messages the system prompt is: they stay."""
    count = 0
    while count < len(state.messages) and member(state.messages[count], "role") == "system":
        count += 1
    return count


def _rewrite(state: SessionState, done: Compaction) -> NewEvent:
    keep = _prompts(state)
    tail = keep + done.replaced
    message = {"role": "user", "content": done.summary}
    turns = [
        {**span.to_json(), "at": span.start - done.replaced + 1}
        for span in state.spans.all[done.turns :]
    ]
    return NewEvent(
        ev.TRANSCRIPT_DELTA,
        {
            "keep": keep,
            "append": [message, *state.messages[tail:]],
            "turns": turns,
            "compacted": {"turns": done.turns, "messages": done.replaced},
        },
    )


async def _summary(state: SessionState, cut: Compaction, summarize: Summarize | None) -> str:
    start = _prompts(state)
    found = frozen_messages(state)[start : start + cut.replaced]
    replaced = [message for message in found if message is not None]
    if summarize is None:
        return extract(replaced)
    made = summarize(replaced)
    text = await made if inspect.isawaitable(made) else made
    if not isinstance(text, str) or not text.strip():
        msg = f"summarize gives a text that is not empty, not {text!r}."
        raise ConfigurationError(msg, field="summarize")
    return text


def extract(messages: Sequence[Message]) -> str:
    """A summary that needs no model: how what was said began, the newest lines of it."""
    lines = []
    for message in messages:
        words = " ".join(text_of(message)[: _LINE_LENGTH * 4].split())
        if message.role not in ("user", "assistant") or not words:
            continue
        cut = words if len(words) <= _LINE_LENGTH else words[: _LINE_LENGTH - 1] + "…"
        lines.append(f"{message.role}: {cut}")
    left_out = [f"({len(lines) - _LINES} more before)"] if len(lines) > _LINES else []
    return "\n".join(["[Summary of the earlier conversation]", *left_out, *lines[-_LINES:]])
