"""What the demo claims, counted from the ledger and the store, and checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.demo.ledger import EFFECT, MODEL, REPEAT, START

if TYPE_CHECKING:
    from perdure.demo.ledger import Ledger


@dataclass(frozen=True)
class Check:
    """A claim, what was expected and what was found."""

    claim: str
    expected: Any
    found: Any

    @property
    def holds(self) -> bool:
        """Whether it is true."""
        return bool(self.expected == self.found)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "claim": self.claim,
            "expected": self.expected,
            "found": self.found,
            "holds": self.holds,
        }


def count(ledger: Ledger) -> dict[str, Any]:
    """Count what happened outside: starts, requests with a known key, effects, model requests."""
    lines = ledger.lines()
    effects = Counter(line["key"] for line in lines if line["event"] == EFFECT)
    return {
        "toolStarts": _by_session(lines, START),
        "effects": _by_session(lines, EFFECT),
        "repeats": _by_session(lines, REPEAT),
        "effectsByKey": dict(effects),
        "modelRequests": dict(Counter(line["session"] for line in lines if line["event"] == MODEL)),
    }


def _by_session(lines: list[dict[str, Any]], event: str) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for line in lines:
        if line["event"] == event:
            found.setdefault(line["session"], Counter())[line["tool"]] += 1
    return {session: dict(counter) for session, counter in found.items()}


def checks(told: dict[str, Any]) -> list[Check]:
    """Everything that the demo shows, as claims about what it found.

    Args:
        told: the demo's document, with its ``facts``.
    """
    facts, fork = told["facts"], told["fork"]["sessionId"]
    trip = told["session"]
    starts, effects = facts["toolStarts"], facts["effects"]
    comparison = told["comparison"]
    return [
        Check(
            "the killed worker's tool ran again, each other tool once",
            {"weather": 1, "hold_hotel": 2, "book_boat": 1},
            starts.get(trip),
        ),
        Check(
            "and yet each effect happened once",
            {"hold_hotel": 1, "book_boat": 1},
            effects.get(trip),
        ),
        Check(
            "because the repetition came with the same idempotency key",
            {"hold_hotel": 1},
            facts["repeats"].get(trip),
        ),
        Check("no key had two effects", [], [k for k, n in facts["effectsByKey"].items() if n > 1]),
        Check(
            "no model turn was asked for twice: 3 of the trip, and the 2 after the fork",
            {trip: 3, fork: 2},
            facts["modelRequests"],
        ),
        Check("the run waited for an approval", "book_boat", told["approval"]["tool"]),
        Check("the approving command ended with 0", 0, told["approval"]["exitCode"]),
        Check("the trip finished", "stop", told["finishReason"]),
        Check("the fork ran no tool of step 1", {"reserve_museum": 1}, starts.get(fork)),
        Check("the fork finished", "stop", told["fork"]["finishReason"]),
        Check("the two part at step 1", 1, comparison.get("divergedAt")),
        Check(
            "the drift names the tools",
            [
                {
                    "field": "tools",
                    "committed": "weather > hold_hotel > book_boat",
                    "current": "weather > hold_hotel > reserve_museum",
                }
            ],
            comparison["drift"],
        ),
        Check(
            "the fork changed nothing of the trip",
            told["fork"]["sourceBefore"],
            told["fork"]["sourceAfter"],
        ),
    ]
