"""The demo's checks can fail: each wrong fact is found."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from perdure.demo import facts
from perdure.demo.ledger import EFFECT, MODEL, REPEAT, START, Ledger

if TYPE_CHECKING:
    from pathlib import Path

TRUE: dict[str, Any] = {
    "session": "trip",
    "finishReason": "stop",
    "approval": {"tool": "book_boat", "exitCode": 0},
    "fork": {
        "sessionId": "trip.fork-1",
        "finishReason": "stop",
        "sourceBefore": "x",
        "sourceAfter": "x",
    },
    "comparison": {
        "divergedAt": 1,
        "drift": [
            {
                "field": "tools",
                "committed": "weather > hold_hotel > book_boat",
                "current": "weather > hold_hotel > reserve_museum",
            }
        ],
    },
    "facts": {
        "toolStarts": {
            "trip": {"weather": 1, "hold_hotel": 2, "book_boat": 1},
            "trip.fork-1": {"reserve_museum": 1},
        },
        "effects": {"trip": {"hold_hotel": 1, "book_boat": 1}, "trip.fork-1": {"r": 1}},
        "repeats": {"trip": {"hold_hotel": 1}},
        "effectsByKey": {"a": 1, "b": 1, "c": 1},
        "modelRequests": {"trip": 3, "trip.fork-1": 2},
    },
}


def test_what_is_true_holds() -> None:
    assert [check.claim for check in facts.checks(TRUE) if not check.holds] == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("facts", "toolStarts", "trip", "weather"), 2),
        (("facts", "toolStarts", "trip", "hold_hotel"), 1),
        (("facts", "toolStarts", "trip.fork-1", "weather"), 1),
        (("facts", "effects", "trip", "hold_hotel"), 2),
        (("facts", "repeats"), {}),
        (("facts", "effectsByKey", "a"), 2),
        (("facts", "modelRequests", "trip"), 4),
        (("approval", "tool"), "weather"),
        (("approval", "exitCode"), 1),
        (("finishReason",), "aborted"),
        (("fork", "finishReason"), "error"),
        (("fork", "sourceAfter"), "y"),
        (("comparison", "divergedAt"), 2),
        (("comparison", "drift"), []),
    ],
)
def test_what_is_wrong_is_found(place: tuple[str, ...], value: object) -> None:
    told = copy.deepcopy(TRUE)
    inner: Any = told
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert [check.claim for check in facts.checks(told) if not check.holds] != []


def test_the_ledger_counts_what_happened(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.lines() == []
    ledger.note(MODEL, session="trip", turn=1)
    ledger.note(START, session="trip", tool="hold", key="k", attempt=1)
    assert ledger.act("k", session="trip", tool="hold", what="a room")
    ledger.note(START, session="trip", tool="hold", key="k", attempt=2)
    assert not ledger.act("k", session="trip", tool="hold", what="a room")
    assert facts.count(ledger) == {
        "toolStarts": {"trip": {"hold": 2}},
        "effects": {"trip": {"hold": 1}},
        "repeats": {"trip": {"hold": 1}},
        "effectsByKey": {"k": 1},
        "modelRequests": {"trip": 1},
    }
    assert [line["event"] for line in ledger.lines()] == [MODEL, START, EFFECT, START, REPEAT]
