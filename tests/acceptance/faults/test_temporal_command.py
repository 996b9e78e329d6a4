"""A run that is started, watched and approved with the ``temporal`` command line alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import Any

import pytest

from perdure.dev_server import find_temporal


def temporal(address: str, *arguments: str) -> Any:
    """Run ``temporal workflow …``; gives what it prints as JSON."""
    done = subprocess.run(
        [str(find_temporal()), "workflow", *arguments, "--address", address, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("TEMPORAL_")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


@pytest.mark.parametrize("approved", [True, False])
async def test_start_query_signal_and_result(new_rig: Any, approved: bool) -> None:
    rig = new_rig("command")
    rig.start_worker()
    workflow_id = f"by-command-{approved}"
    of_it = ("--workflow-id", workflow_id)

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(temporal, rig.address, *arguments)

    async def state() -> dict[str, Any]:
        answer = await run("query", *of_it, "--type", "state")
        (result,) = answer["queryResult"]
        assert isinstance(result, dict)
        return result

    request = json.dumps({"agent": "trip", "input": "Plan my trip"})
    started = ("--type", "AgentWorkflow", "--task-queue", rig.task_queue, "--input", request)
    await run("start", *of_it, *started)

    waits = await state()
    while waits["status"] in ("opening", "running"):
        waits = await state()
    assert waits["status"] == "awaiting-approval"
    assert waits["step"] == 2
    (pending,) = waits["pending_approvals"]
    assert pending["tool_name"] == "pay"
    assert json.loads(pending["arguments"]) == {"number": 5}

    # What is no decision is not taken for one, and the run goes on waiting.
    signal = ("signal", *of_it, "--name", "resolve_approval", "--input")
    await run(*signal, json.dumps("yes, go ahead"))
    while not (now := await state())["problem"]:
        pass
    assert now["status"] == "awaiting-approval"

    decision = {"id": pending["id"], "approved": approved, "note": "as agreed", "by": "ann"}
    await run(*signal, json.dumps(decision))
    result = (await run("result", *of_it))["result"]

    assert result["status"] == "finished"
    assert result["finish_reason"] == "stop"
    assert result["text"] == "Done."
    assert result["steps"] == 3
    ran = [(line["tool"], line["args"]) for line in rig.lines("tool-start", workflow_id)]
    expected = [("alpha", 1), ("beta", 2), ("gamma", 3), ("alpha", 4), ("pay", 5), ("delta", 6)]
    assert sorted(ran) == sorted(e for e in expected if approved or e[0] != "pay")
    assert (await state())["status"] == "finished"
