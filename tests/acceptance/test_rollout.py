"""A fleet of workers: its versions, and whether one takes work."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import uuid
from typing import Any

from perdure.dev_server import find_temporal


async def make_current(program: Any, deployment: str, build_id: str) -> None:
    """What the operator does when a version's workers are up."""
    words = ("worker", "deployment", "set-current-version", "--yes")
    of = ("--deployment-name", deployment, "--build-id", build_id)
    address = ("--address", program.environment["TEMPORAL_ADDRESS"])

    def run() -> subprocess.CompletedProcess[str]:
        command = [str(find_temporal()), *words, *of, *address]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    async with asyncio.timeout(120):
        # The server knows a version once its first worker has asked for each kind of work.
        early = ("not found", "no pollers", "missing active task queues")
        while (done := await asyncio.to_thread(run)).returncode:
            assert any(each in done.stderr for each in early), done.stderr


async def test_an_open_run_goes_on_with_the_new_version(program: Any, wait_for_line: Any) -> None:
    name = f"billing-{uuid.uuid4().hex[:8]}"
    ready = program.folder / "ready"
    fleet = ("worker", "app:trip", "--deployment", name, "--grace", "20")
    one = ("--build-id", "one", "--ready-file", str(ready))
    old = await program.start(*fleet, *one)
    await wait_for_line(old.stderr, "Serving trip")
    assert ready.read_text("utf-8") == f"{old.pid}\n"
    await make_current(program, name, "one")
    run = await program("run", "trip", "Go", "--session-id", "rolled", "--json")
    assert run.json["finishReason"] == "awaiting-approval", run.errors

    new = await program.start(*fleet, "--build-id", "two")
    await wait_for_line(new.stderr, "Serving trip")
    await make_current(program, name, "two")
    old.send_signal(signal.SIGTERM)
    await wait_for_line(old.stderr, "Stopped")
    assert await old.wait() == 0
    assert not ready.exists()

    done = await program("approve", run.json["approvalId"], "--json")
    assert done.json["finishReason"] == "stop", done.errors
    new.send_signal(signal.SIGTERM)
    assert await new.wait() == 0
