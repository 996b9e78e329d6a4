"""What changed in an agent, said in one line."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.checkpoint_bridge import describe_drift, drift_of, fingerprint

BASE = fingerprint("m1", {"a": {"type": "object"}, "b": None}, "Be kind.")


def drift(model: str | None, tools: dict[str, Any], instructions: str | None) -> Any:
    return drift_of(BASE, fingerprint(model, tools, instructions).to_json())


def test_the_same_agent_has_not_drifted() -> None:
    assert drift("m1", {"b": {}, "a": {"type": "object"}}, "Be kind.") is None
    assert drift_of(None, BASE) is None
    assert drift_of(BASE.to_json(), None) is None


def test_everything_that_changed_is_named() -> None:
    changed = drift("m2", {"a": {"type": "string"}, "c": {}, "b2": {}}, "Be brief.")
    assert changed == {
        "model": {"from": "m1", "to": "m2"},
        "toolsAdded": ["b2", "c"],
        "toolsRemoved": ["b"],
        "toolsChanged": ["a"],
        "instructions": True,
    }
    assert describe_drift(changed) == (
        "model m1 -> m2; tools added: b2, c; tools removed: b; "
        "tools changed (input schema): a; instructions changed"
    )


def test_a_model_can_become_unknown() -> None:
    tools = {"a": {"type": "object"}, "b": {}}
    changed = drift(None, tools, "Be kind.")
    assert changed["model"] == {"from": "m1"}
    assert describe_drift(changed) == "model m1 -> unknown"
    assert describe_drift(drift("m1", tools, None)) == "instructions changed"


def test_other_versions_are_not_compared() -> None:
    later = fingerprint("m2", {}, "").to_json() | {"version": 2}
    assert drift_of(BASE, later) is None


def test_the_order_of_tools_and_schema_keys_does_not_count() -> None:
    one = fingerprint("m", {"a": {"x": 1, "y": 2}, "b": {}}, "")
    two = fingerprint("m", {"b": {}, "a": {"y": 2, "x": 1}}, None)
    assert one == two
    assert list(two.tools) == ["a", "b"]
    assert "model" not in fingerprint(None, None, None)


def test_a_lone_surrogate_is_hashed_as_a_text_encoder_writes_it() -> None:
    assert (
        fingerprint("m", {}, "\ud800").instructions == fingerprint("m", {}, "\ufffd").instructions
    )
    pair = fingerprint("m", {}, "\ud83d\ude00")
    assert pair.instructions == fingerprint("m", {}, "\U0001f600").instructions


@pytest.mark.parametrize("odd", [{}, {"version": 1, "hash": "x", "tools": 5, "model": []}, 5, []])
def test_odd_fingerprints_are_compared(odd: Any) -> None:
    drift_of(BASE, odd)
    drift_of(odd, BASE)
