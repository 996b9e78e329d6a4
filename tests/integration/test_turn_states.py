"""What a turn has come to is the same, whoever says it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.branching import fork_behind
from perdure.checkpoint_bridge.creating import create_session
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.answers import answer_entry
from perdure.checkpoint_bridge.log.events import Event, NewEvent
from perdure.checkpoint_bridge.tables.event_log import Batch
from perdure.checkpoint_bridge.tables.ledger import Effect
from perdure.checkpoint_bridge.turn_list import read_turns
from perdure.checkpoint_bridge.turn_log import outcome_of
from perdure.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path

ANSWER = {"model": "m", "usage": {}, "finishReason": "tool_calls"}


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("completed", "ended"),
        ("max-tokens", "ended"),
        ("blocked", "ended"),
        ("forked", "ended"),
        ("error", "failed"),
        ("aborted", "failed"),
        ("interrupted", "failed"),
        (None, "pending"),
    ],
)
def test_f44_everybody_says_the_same_of_a_turn(
    kind: str | None,
    state: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    monkeypatch.setenv("PERDURE_STORE", url)
    assert asyncio.run(_said_of_a_turn(url, kind)) == (state, state, kind, kind)
    assert run(["outcome", "s", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == state


async def _said_of_a_turn(url: str, kind: str | None) -> tuple[str, str, str | None, str | None]:
    """State and reason of a turn by its outcome and by the list of turns."""
    async with SqlStore(url) as store:
        start = {"turn": 1, "runId": "r1", "agent": "trip", "fresh": True}
        first = [NewEvent(ev.TURN_START, start)]
        if kind is not None:
            first.append(NewEvent(ev.TURN_END, {"turn": 1, "reason": {"kind": kind}}))
        # A turn that came later changes nothing.
        first += [NewEvent(ev.TURN_START, {**start, "turn": 2})] if kind is not None else []
        await store.open_session("s", agent="trip", run_id="r1", head=0, time_ms=1, events=first)
        return await _both(store, "s")


async def _both(store: SqlStore, session_id: str) -> tuple[str, str, str | None, str | None]:
    row = await store.session(session_id)
    assert row is not None
    outcome = await store.database.read(outcome_of, row.log_id, 1)
    turn = (await store.database.read(read_turns, session_id))[0]
    assert (turn.end_sequence is None) == (outcome.event is None)
    if outcome.event is not None:
        assert turn.end_sequence == outcome.event.sequence
    reasons = [(reason or {}).get("kind") for reason in (outcome.reason, turn.reason)]
    return outcome.state, turn.outcome, reasons[0], reasons[1]


async def test_f44_a_turn_that_a_fork_cut_off_has_ended(tmp_path: Path) -> None:
    start = {"turn": 1, "runId": "r1", "agent": "trip", "fresh": True}
    asked = {"role": "user", "content": "Go"}
    said = {
        "role": "assistant",
        "content": "",
        "toolCalls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    }
    async with SqlStore(f"sqlite:///{tmp_path / 'perdure.db'}") as store:
        log_id, head = await store.open_session(
            "s",
            agent="trip",
            run_id="r1",
            head=0,
            time_ms=1,
            events=[
                NewEvent(ev.TURN_START, start),
                NewEvent(ev.USER_MESSAGE, {"message": asked}),
            ],
        )
        answer = Effect("m", outcome=ANSWER, message=said)
        entry = answer_entry(head, 1, 1, answer, [(0, "c", "look", None)])[1]
        await store.append(Batch("s", log_id, "r1", head, 2, entry.events, entry.saves))
        # At an event inside the turn, which is closed there; and at the step that was saved.
        closed = await fork_behind(store, "s", 4, close_open_turn=True)
        cut, _ = await store.fork("s", from_step=1)
        again, _ = await store.fork(cut, from_step=1)
        for session_id, end in ((closed, ev.TURN_END), (cut, ev.END_SEED), (again, ev.END_SEED)):
            assert await _both(store, session_id) == ("ended", "ended", "forked", "forked")
            row = await store.session(session_id)
            assert row is not None
            outcome = await store.database.read(outcome_of, row.log_id, 1)
            assert outcome.event is not None
            assert outcome.event.type == end
            # The call of a closed turn got a result, which says that it was not run here.
            closed_here = end == ev.TURN_END
            assert (outcome.tool_errors, outcome.open_tools) == (
                (1, []) if closed_here else (0, ["c"])
            )
        assert await _both(store, "s") == ("pending", "pending", None, None)


async def test_f44_a_turn_that_a_seed_left_open_was_interrupted(tmp_path: Path) -> None:
    start = {"turn": 1, "runId": "r1", "agent": "trip", "fresh": True}
    asked = {"role": "user", "content": "Go"}
    seed = [Event(0, ev.TURN_START, 1, start), Event(1, ev.USER_MESSAGE, 1, {"message": asked})]
    async with SqlStore(f"sqlite:///{tmp_path / 'perdure.db'}") as store:
        await create_session(store, "s", agent="trip", beginning=seed)
        assert await _both(store, "s") == ("failed", "failed", "interrupted", "interrupted")
