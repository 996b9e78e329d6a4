"""Workflow code of today replays what workflow code of other days has done."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

import perdure.worker
from perdure import Agent, tool
from perdure.testing import call
from perdure.workflows.agent_workflow import AgentWorkflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.runs.conftest import Bench

FOLDER = Path(__file__).parents[2] / "histories"
NOBODY = ("recorder", "history-service")
"""Identities that tell nothing: the recorder's, and the server's own."""
FILES = sorted(FOLDER.glob("*.json"))


def read(file: Path) -> list[Any]:
    """The histories of a run's executions, in order."""
    histories: list[Any] = json.loads(file.read_text(encoding="utf-8"))
    return histories


def new_replayer() -> Replayer:
    return Replayer(
        workflows=[AgentWorkflow],
        workflow_runner=perdure.worker.workflow_runner(),
        debug_mode=True,  # a busy machine is no deadlock
    )


def recorder() -> Any:
    spec = importlib.util.spec_from_file_location("record_histories", FOLDER / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_r20_recorded_histories_replay(file: Path, shorten: Callable[..., None]) -> None:
    if file.stem.startswith("rolled-over"):
        shorten(recorder().ROLL_OVER_AFTER)
    replayer = new_replayer()
    for history in read(file):
        started = history["events"][0]["workflowExecutionStartedEventAttributes"]
        await replayer.replay_workflow(WorkflowHistory.from_json(started["workflowId"], history))


def test_there_is_a_history_of_every_kind() -> None:
    assert {file.stem for file in FILES} == set(recorder().SCENARIOS)


async def test_a_replay_would_notice() -> None:
    """The runs that rolled over do not replay where they would not have."""
    history = read(FOLDER / "rolled-over.json")[0]
    replayer = new_replayer()
    with pytest.raises(Exception, match="Nondeterminism"):
        await replayer.replay_workflow(WorkflowHistory.from_json("rolled-over", history))


def texts(value: Any) -> Iterator[str]:
    """All texts of a history, payloads decoded."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "data" and isinstance(each, str):
                yield base64.b64decode(each).decode("utf-8", "replace")
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_histories_tell_nothing_of_where_they_were_made(file: Path) -> None:
    histories = read(file)
    found = list(texts(histories))
    paths = [text for text in found if re.search(r"(^|[\\s\"'])/\w+/|\.py\b|Traceback|\d@", text)]
    assert paths == []
    for history in histories:
        for event in history["events"]:
            for attributes in event.values():
                if isinstance(attributes, dict):
                    assert attributes.get("identity", "recorder") in NOBODY


async def test_a_live_run_replays(bench: Bench, session: str) -> None:
    """As every run of these tests does, at the end of its test; here for all to see."""

    @tool(read_only=True, needs_approval=True)
    def gated() -> str:
        return "done"

    agent = Agent("agent", provider=bench.model([call("gated")] * 2, "Done."), tools=[gated])
    async with bench.serving(agent):
        paused = await bench.client.execute("agent", "Go", session_id=session)
        while paused.approval_id is not None:
            paused = await bench.client.approvals.resolve(paused.approval_id, approved=True)
    (history,) = await bench.histories()
    replayer = new_replayer()
    result = await replayer.replay_workflow(history)
    assert result.replay_failure is None
