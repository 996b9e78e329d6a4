"""A worker is killed with SIGKILL at every kind of moment; another one takes its runs over.

All runs below go on at the same time in one worker, each one is made to wait at its own moment,
and then that worker is killed (R1, R2, R13, R15, R21, R26).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import EventType, TimeoutType

from perdure.client import connect
from perdure.worker import _STICKY_TIMEOUT

if TYPE_CHECKING:
    from perdure.client import Client

BEFORE_THE_APPROVAL = {
    "opened": "append:turn/start",
    "model": "model:1",
    "model-stored": "stored:model",
    "before-tool": "begin:alpha",
    "async-tool": "before:alpha",
    "sync-tool": "before:beta",
    "effect-done": "after:alpha",
    "effect-done-in-thread": "after:beta",
    "tool-stored": "stored:gamma",
    "result-logged": "append:tool/result",
    "approval-logged": "append:approval/requested",
}
AT_THE_APPROVAL = "approval-waits"
BEHIND_THE_APPROVAL = {
    "decided": "decided",
    "decision-logged": "append:approval/decided",
    "approved-call": "before:pay",
    "approved-effect-done": "after:pay",
    "approved-stored": "stored:pay",
    "last-model": "model:3",
    "ended": "append:turn/end",
}
POINTS = BEFORE_THE_APPROVAL | BEHIND_THE_APPROVAL
MOMENTS = [*POINTS, AT_THE_APPROVAL]

HELD = "a workflow task that the dead worker held"
STUCK = "a workflow task that was offered to it"
SILENT = "a call without a heartbeat"

NEVER_TWICE = {"never-began": "begin:wire", "began": "before:wire", "happened": "after:wire"}
"""Calls of a tool with ``recovery="ambiguous"``."""


@dataclass
class Outcome:
    """What became of the runs."""

    rig: Any
    faults: dict[str, list[str]] = field(default_factory=dict)
    waits: dict[str, Counter[str]] = field(default_factory=dict)
    wired: dict[str, tuple[dict[str, Any], list[str]]] = field(default_factory=dict)
    """Of those that are never repeated: the call's result, and what the ledger noted."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcome(new_rig: Any, rig_module: Any) -> Outcome:
    rig = new_rig("killed")
    approve = rig_module.approve
    outcome = Outcome(rig)
    async with connect(rig.store_url, temporal=rig.address, task_queue=rig.task_queue) as client:

        async def start(session: str) -> Any:
            return await client.start("trip", "Plan my trip", session_id=session)

        async def finish(session: str, run: Any) -> None:
            approval = decided.get(session) or await approve(client, session)
            result = await run.result(after_approval=approval)
            assert result.text == "Done."

        first = rig.start_worker()
        undisturbed = await start("undisturbed")
        await undisturbed.result(after_approval=await approve(client, "undisturbed"))

        held = POINTS | NEVER_TWICE
        for session, point in held.items():
            rig.hold(session, point)
        wires = [await client.start("careful", "Wire it", session_id=name) for name in NEVER_TWICE]
        runs = {session: await start(session) for session in MOMENTS}
        decided = {
            session: await rig_module.approval_of(client, session)
            for session in BEHIND_THE_APPROVAL
        }
        decisions = [asyncio.create_task(approve(client, each)) for each in BEHIND_THE_APPROVAL]
        for session, point in held.items():
            await rig.held(session, point)
        await rig_module.approval_of(client, AT_THE_APPROVAL)

        rig.kill(first)
        for session, point in held.items():
            rig.release(session, point)
        rig.start_worker()
        ends = await asyncio.gather(
            *(finish(session, run) for session, run in runs.items()), return_exceptions=True
        )
        await asyncio.gather(*decisions)
        for session, wire in zip(NEVER_TWICE, wires, strict=True):
            wired = await wire.result()
            assert wired.text == "Done."
            (message,) = [each.to_json() for each in wired.messages if each.role == "tool"]
            outcome.wired[session] = message, [line["kind"] for line in rig.lines(session=session)]
        judge = rig_module.Judge(client, rig, "undisturbed")
        for session, end in zip(MOMENTS, ends, strict=True):
            outcome.faults[session] = await judge.faults(session)
            if end is not None:
                outcome.faults[session].append(f"{session} ended with {end!r}")
            outcome.waits[session] = await _waits(client, session, first.pid)
    print(f"\nwaited for: {outcome.waits}")
    print(rig.log_tail())
    return outcome


async def _waits(client: Client, session: str, dead: int) -> Counter[str]:
    """What a run waited for until Temporal took it for lost; each has a length of its own.

    Counted, and not measured: how long the rest takes is a matter of the machine. And what the
    next worker loses because the machine is busy is not this test's.
    """
    waits = Counter[str]()
    lost: set[int] = set()
    workflow = client.temporal.get_workflow_handle(session)
    async for event in workflow.fetch_history_events():
        kind = event.WhichOneof("attributes")
        facts = getattr(event, str(kind))
        if event.event_type in (
            EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
            EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED,
        ):
            if facts.identity.startswith(f"{dead}@"):
                lost.add(event.event_id)
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
            if facts.timeout_type == TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START:
                waits[STUCK] += 1
            else:
                waits[HELD] += facts.started_event_id in lost
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
            silent = facts.failure.timeout_failure_info.timeout_type
            assert silent == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
            waits[SILENT] += facts.started_event_id in lost
        elif event.event_type == EventType.EVENT_TYPE_TIMER_FIRED:
            waits["a timer"] += 1
    return +waits


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_whose_worker_is_killed_ends_as_if_nothing_had_happened(
    outcome: Outcome, moment: str
) -> None:
    """R1, R2, R13, R15, R21, R26: at whichever moment."""
    assert outcome.faults[moment] == []


def test_an_approved_call_is_finished_within_five_seconds_of_the_death_being_noticed(
    outcome: Outcome,
) -> None:
    waits = outcome.waits["approved-call"]
    # Noticed by the call's silence. Then the run was offered to the dead worker for two seconds
    # (to a busy one perhaps, too), and it waited for nothing else.
    assert waits[SILENT] == 1
    assert waits.keys() == {SILENT, STUCK}
    assert _STICKY_TIMEOUT.total_seconds() < 5
    paid = outcome.rig.lines("tool-start", "approved-call")
    assert [(line["tool"], line["attempt"]) for line in paid][-3:] == [
        ("pay", 1),
        ("pay", 2),
        ("delta", 1),
    ]
    assert len({line["key"] for line in paid if line["tool"] == "pay"}) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_run_waits_longer_than_for_the_workflow_task_that_the_worker_held(
    outcome: Outcome, moment: str
) -> None:
    """Ten seconds for that one; those that were killed outside of one have no such wait."""
    waits = outcome.waits[moment]
    assert waits[HELD] <= 1
    assert waits.keys() <= {HELD, STUCK, SILENT}


def test_a_call_that_provably_never_began_runs_whatever_its_recovery(outcome: Outcome) -> None:
    message, noted = outcome.wired["never-began"]
    assert json.loads(message["content"]) == {"tool": "wire", "number": 7}
    assert noted.count("tool-effect") == 1


@pytest.mark.parametrize(("session", "effects"), [("began", 0), ("happened", 1)])
def test_a_call_that_must_not_run_twice_has_an_unknown_outcome(
    outcome: Outcome, session: str, effects: int
) -> None:
    message, noted = outcome.wired[session]
    assert message["isError"]
    assert json.loads(message["content"])["kind"] == "unknown-outcome"
    assert noted.count("tool-start") == 1
    assert noted.count("tool-effect") == effects
