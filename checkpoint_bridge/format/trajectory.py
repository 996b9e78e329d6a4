"""Where two runs part (format page, "compareTrajectories(a, b)")."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from perdure.checkpoint_bridge.format._record import member, plain, plain_list
from perdure.checkpoint_bridge.format.messages import text_of
from perdure.checkpoint_bridge.format.stable_json import (
    Json,
    JsonObject,
    normalize_arguments,
    stable_json,
)
from perdure.checkpoint_bridge.format.transcript import calls_of, id_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.checkpoint_bridge.format.checkpoint import Checkpoint
    from perdure.checkpoint_bridge.format.messages import Message

    Run: TypeAlias = Checkpoint | JsonObject | Sequence[Message] | Sequence[JsonObject]

__all__ = ["TrajectoryComparison", "compare_trajectories"]


@dataclass(frozen=True, slots=True)
class TrajectoryComparison:
    """The steps of two runs and how the second differs from the first."""

    a: list[JsonObject]
    """One ``{text, tools: [{id, name, args, result?}]}`` per assistant message."""

    b: list[JsonObject]
    """The same of the other run."""

    diverged_at: int | None
    """The first step, from 1, that differs (call ids aside); ``None`` when none does."""

    drift: list[JsonObject]
    """``{field, committed, current}`` entries: ``tools``, ``args``, ``steps``, ``finishReason``."""

    def to_json(self) -> JsonObject:
        """The comparison under the format's names; ``divergedAt`` only when there is one."""
        made: JsonObject = {"a": self.a, "b": self.b}
        if self.diverged_at is not None:
            made["divergedAt"] = self.diverged_at
        made["drift"] = self.drift
        return made


def compare_trajectories(a: Run, b: Run) -> TrajectoryComparison:
    """Compare two checkpoints or transcripts step by step.

    Model-made call ids differ from run to run and say nothing, so they are left aside.
    """
    run_a, run_b = plain(a), plain(b)
    steps_a, steps_b = _steps(run_a), _steps(run_b)
    pairs = enumerate(zip_longest(steps_a, steps_b), 1)
    diverged_at = next((n for n, (x, y) in pairs if _meaning(x) != _meaning(y)), None)
    return TrajectoryComparison(
        steps_a, steps_b, diverged_at, _drift(run_a, run_b, steps_a, steps_b)
    )


def _steps(run: Json) -> list[JsonObject]:
    messages = plain_list(run["messages"] if isinstance(run, dict) and "messages" in run else run)
    # Over the whole transcript, the last result of an id wins, as the format's own code does.
    results = {
        id_key(member(message, "toolCallId")): text_of(message)
        for message in messages
        if member(message, "role") == "tool" and member(message, "toolCallId") is not None
    }
    return [
        {
            "text": text_of(message),
            "tools": [_tool(call, results) for call in calls_of(message)],
        }
        for message in messages
        if member(message, "role") == "assistant"
    ]


def _tool(call: Json, results: dict[str, str]) -> JsonObject:
    function, call_id = member(call, "function"), member(call, "id")
    name = member(function, "name")
    made: JsonObject = {} if call_id is None else {"id": call_id}
    made["name"] = name if isinstance(name, str) else ""
    made["args"] = _args(member(function, "arguments"))
    result = results.get(id_key(call_id))
    if result is not None:
        made["result"] = result
    return made


def _args(raw: Json) -> str:
    if isinstance(raw, str):
        return normalize_arguments(raw)
    return "" if raw is None else stable_json(raw)


def _meaning(step: JsonObject | None) -> object:
    """What must be equal for two steps to be the same; a missing step equals none."""
    if step is None:
        return None
    return step["text"], [(t["name"], t["args"], t.get("result")) for t in step["tools"]]


def _drift(
    run_a: Json, run_b: Json, steps_a: list[JsonObject], steps_b: list[JsonObject]
) -> list[JsonObject]:
    tools_a = [tool for step in steps_a for tool in step["tools"]]
    tools_b = [tool for step in steps_b for tool in step["tools"]]
    names_a, names_b = [t["name"] for t in tools_a], [t["name"] for t in tools_b]
    drift: list[JsonObject] = []
    if names_a != names_b:
        drift += _entry("tools", " > ".join(names_a) or "none", " > ".join(names_b) or "none")
    else:
        for x, y in zip(tools_a, tools_b, strict=True):
            drift += _entry("args", f"{x['name']} {x['args']}", f"{y['name']} {y['args']}")
    drift += _entry("steps", str(len(steps_a)), str(len(steps_b)))
    drift += _entry("finishReason", _finish_reason(run_a), _finish_reason(run_b))
    return drift


def _entry(field: str, committed: str, current: str) -> list[JsonObject]:
    if committed == current:
        return []
    return [{"field": field, "committed": committed, "current": current}]


def _finish_reason(run: Json) -> str:
    """Known only for checkpoints that have one."""
    reason = member(run, "finishReason")
    return reason if isinstance(reason, str) else "-"
