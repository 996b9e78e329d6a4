"""The turns of a session, without its messages."""

from __future__ import annotations

import json
from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.turn_states import FORKED, turn_state
from perdure.checkpoint_bridge.pages import place_of
from perdure.checkpoint_bridge.tables.event_log import in_lineage, lineage
from perdure.checkpoint_bridge.tables.schema import events

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["Turn", "read_turns"]

_ENDS = (ev.TURN_END, ev.END_SEED)


@dataclass(slots=True)
class Turn:
    """One turn: what a run did about its input."""

    turn: int
    run_id: str
    start_sequence: int
    started_at: int
    """Unix milliseconds, as all times."""
    end_sequence: int | None = None
    ended_at: int | None = None
    reason: dict[str, Any] | None = None
    """``{kind, error?}`` of its end; ``None`` while it is open."""
    steps: int = 0
    """Model answers in this turn."""

    @property
    def outcome(self) -> str:
        """``pending``, ``ended`` or ``failed`` (:func:`.turn_state`)."""
        return turn_state(self.reason)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with camelCase keys; absent values have no key."""
        value = {
            "turn": self.turn,
            "runId": self.run_id,
            "outcome": self.outcome,
            "reason": self.reason,
            "steps": self.steps,
            "startSequence": self.start_sequence,
            "endSequence": self.end_sequence,
            "startedAt": self.started_at,
            "endedAt": self.ended_at,
        }
        return {key: item for key, item in value.items() if item is not None}


def read_turns(connection: Connection, session_id: str) -> list[Turn]:
    """The turns of a session, oldest first.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    log_id, _ = place_of(connection, session_id)
    here = in_lineage(lineage(connection, log_id), 0)
    answers = select(events.c.seq).where(here, events.c.type == ev.ASSISTANT_MESSAGE)
    seqs = list(connection.scalars(answers.order_by(events.c.seq)))
    rows = connection.execute(
        select(events.c.seq, events.c.type, events.c.time_ms, events.c.data)
        .where(here, events.c.type.in_((ev.TURN_START, *_ENDS)))
        .order_by(events.c.seq)
    )
    turns: list[Turn] = []
    is_cut = False
    for row in rows:
        data = json.loads(row.data)
        if row.type == ev.TURN_START:
            turns.append(Turn(data["turn"], data.get("runId", ""), row.seq + 1, row.time_ms))
            is_cut = False
        elif turns and (turns[-1].reason is None or (is_cut and row.type == ev.TURN_END)):
            # Where a beginning from elsewhere leaves a turn open, its end follows if it has one.
            is_cut = row.type == ev.END_SEED
            last = turns[-1]
            last.end_sequence, last.ended_at = row.seq + 1, row.time_ms
            last.reason = {"kind": FORKED} if is_cut else data["reason"]
    starts = [turn.start_sequence for turn in turns]
    for seq in seqs:
        at = bisect(starts, seq) - 1
        if at >= 0:
            turns[at].steps += 1
    return turns
