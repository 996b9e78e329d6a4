"""A worker is killed with SIGKILL, and the agents' policies end the turns that it served.

All sessions go on at the same time in one worker, each is held at its own moment, and then that
worker is killed (rows F25, F68, F69; conflicts C3 to C5).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from perdure.checkpoint_bridge.errors import PerdureError
from perdure.client import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.client import Client

TOOL, MODEL = "before:gamma", "model:1"
HELD = {
    "brain-tool": TOOL,
    "brain-model": MODEL,
    "dsh-tool": TOOL,
    "dsh-model": MODEL,
    "once-model": MODEL,
}
"""What is held where; a session's agent is the first word of its name."""

Fate = tuple[str, str, list[dict[str, Any]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(new_rig: Any) -> Any:
    return new_rig("policies")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(rig: Any) -> AsyncIterator[Client]:
    async with connect(rig.store_url, temporal=rig.address, task_queue=rig.task_queue) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fates(rig: Any, client: Client) -> dict[str, Fate]:
    """For each session: the code of its turn's failure, the reason in the log, the results."""
    first = rig.start_worker()
    for session, point in HELD.items():
        rig.hold(session, point)
    turns = {}
    for session, point in HELD.items():
        talk = client.sessions.get(session)
        turns[session] = await talk.submit("Go", agent=session.split("-")[0])
        await rig.held(session, point)
    runs = {session: await client.running(session) for session in HELD}
    rig.kill(first)
    for session, point in HELD.items():
        rig.release(session, point)
    rig.start_worker()
    fates = {}
    for session, run in runs.items():
        assert run is not None
        with pytest.raises(PerdureError) as caught:
            await run.result()
        talk = client.sessions.get(session)
        outcome = await talk.outcome(turns[session])
        assert (outcome.state, outcome.open_tools) == ("failed", [])
        assert outcome.reason is not None
        checkpoint = await client.checkpoint(session)
        messages = [] if checkpoint is None else [each.to_json() for each in checkpoint.messages]
        results = [json.loads(each["content"]) for each in messages if each["role"] == "tool"]
        fates[session] = caught.value.code, outcome.reason["kind"], results
    return fates


@pytest.mark.parametrize(("session", "kind"), [("brain", "error"), ("dsh", "interrupted")])
async def test_f68_a_turn_whose_worker_is_killed_ends_and_nothing_is_run_again(
    fates: dict[str, Fate], rig: Any, client: Client, session: str, kind: str
) -> None:
    code, reason, results = fates[f"{session}-tool"]
    assert (code, reason) == ("interrupted", kind)
    assert [each["code"] for each in results] == ["TOOL_OUTCOME_UNKNOWN"]
    (began,) = rig.lines("tool-start", f"{session}-tool")
    assert rig.lines("tool-effect", f"{session}-tool") == []
    (unknown,) = await client.sessions.get(f"{session}-tool").ambiguous()
    assert (unknown.tool, unknown.arguments) == ("gamma", {"number": 8})
    assert unknown.idempotency_key == began["key"]
    # The session goes on: the model reads what became of the call.
    assert (await client.sessions.get(f"{session}-tool").send("What now?")).text == "Noted."


@pytest.mark.parametrize(("session", "kind"), [("brain", "error"), ("dsh", "interrupted")])
async def test_f68_a_turn_whose_worker_is_killed_in_a_model_call_asks_nobody_again(
    fates: dict[str, Fate], rig: Any, session: str, kind: str
) -> None:
    assert fates[f"{session}-model"] == ("interrupted", kind, [])
    assert len(rig.lines("model", f"{session}-model")) == 1


async def test_f25_a_model_call_whose_worker_is_killed_is_sent_once(
    fates: dict[str, Fate], rig: Any
) -> None:
    assert fates["once-model"] == ("MODEL_OUTCOME_UNKNOWN", "error", [])
    assert len(rig.lines("model", "once-model")) == 1
