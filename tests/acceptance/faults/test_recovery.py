"""Tools whose calls are never repeated: what began and was lost has an unknown outcome (R2)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest_asyncio

from perdure.client import connect

POINTS = {"never-began": "begin:wire", "began": "before:wire", "happened": "after:wire"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def results(new_rig: Any) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The tool message and the ledger's lines of each session."""
    rig = new_rig("recovery")
    async with connect(rig.store_url, temporal=rig.address, task_queue=rig.task_queue) as client:
        first = rig.start_worker()
        for session, point in POINTS.items():
            rig.hold(session, point)
        runs = [await client.start("careful", "Wire it", session_id=name) for name in POINTS]
        for session, point in POINTS.items():
            await rig.held(session, point)
        rig.kill(first)
        for session, point in POINTS.items():
            rig.release(session, point)
        rig.start_worker()
        ended = await asyncio.gather(*(run.result() for run in runs))
    assert [each.text for each in ended] == ["Done."] * len(POINTS)
    messages = [next(m for m in each.messages if m.role == "tool") for each in ended]
    return {
        session: (message.to_json(), rig.lines(session=session))
        for session, message in zip(POINTS, messages, strict=True)
    }


def test_a_call_that_provably_never_began_runs(results: Any) -> None:
    message, lines = results["never-began"]
    assert json.loads(message["content"]) == {"tool": "wire", "number": 7}
    assert [line["kind"] for line in lines].count("tool-effect") == 1


def test_a_call_that_had_begun_is_not_repeated(results: Any) -> None:
    for session, effects in (("began", 0), ("happened", 1)):
        message, lines = results[session]
        assert message["isError"]
        assert json.loads(message["content"])["kind"] == "unknown-outcome"
        assert [line["kind"] for line in lines].count("tool-start") == 1
        assert [line["kind"] for line in lines].count("tool-effect") == effects
