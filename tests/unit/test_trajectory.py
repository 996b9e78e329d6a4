"""Comparing runs, beyond the vectors."""

from __future__ import annotations

from typing import Any

from perdure.checkpoint_bridge import Checkpoint, compare_trajectories
from perdure.checkpoint_bridge.format.transcript import tool_message


def turn(*calls: dict[str, Any], text: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": text, "toolCalls": list(calls)}


def call(call_id: str, arguments: Any = "{}", name: str = "t") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_arguments_are_compared_by_meaning_and_ids_not_at_all() -> None:
    a = [turn(call("1", '{"a": 1.0, "b": 2}'))]
    b = [turn(call("2", '{"b":2,"a":1}'))]
    compared = compare_trajectories(a, b)
    assert compared.diverged_at is None
    assert compared.drift == []
    assert compared.a[0]["tools"] == [{"id": "1", "name": "t", "args": '{"a":1,"b":2}'}]


def test_a_result_that_one_side_lacks_is_a_difference() -> None:
    a = [turn(call("1")), tool_message(call("1"), "")]
    compared = compare_trajectories(a, a[:1])
    assert compared.diverged_at == 1
    assert compared.drift == []


def test_of_several_results_the_last_one_counts_everywhere() -> None:
    run = [turn(call("1")), tool_message(call("1"), "a"), turn(call("1"))]
    run.append(tool_message(call("1"), "b"))
    steps = compare_trajectories(run, run).a
    assert [step["tools"][0]["result"] for step in steps] == ["b", "b"]


def test_each_call_that_differs_has_its_entry() -> None:
    a = Checkpoint(messages=[turn(call("1", "[1]"), call("2", "[2]")), turn(text="x")])
    b = [turn(call("1", "[3]")), turn(call("2", "[4]")), turn(text="x")]
    compared = compare_trajectories(a, b)
    assert compared.diverged_at == 1
    assert compared.drift == [
        {"field": "args", "committed": "t [1]", "current": "t [3]"},
        {"field": "args", "committed": "t [2]", "current": "t [4]"},
        {"field": "steps", "committed": "2", "current": "3"},
    ]


def test_odd_runs_are_compared() -> None:
    odd: Any = [turn(call("1", None), call("2", {"b": 1, "a": 2}), {}), None, {"role": "tool"}]
    [step] = compare_trajectories(odd, {}).a
    assert [tool["args"] for tool in step["tools"]] == ["", '{"a":2,"b":1}', ""]
    assert compare_trajectories({"messages": None, "finishReason": 5}, []).to_json() == {
        "a": [],
        "b": [],
        "drift": [],
    }
