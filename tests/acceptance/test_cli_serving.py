"""``perdure worker`` and ``perdure dev`` as processes: what they tell, and how they end."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import Any

import httpx
import psutil


async def test_a_worker_tells_what_it_serves_and_drains(program: Any, wait_for_line: Any) -> None:
    # Nobody serves yet: the run waits, and says why.
    run = await program.start("run", "echo", "Hi", "--session-id", "waits", "--timeout", "40")
    await wait_for_line(run.stderr, f"No worker seems to serve task queue '{program.queue}'")
    worker = await program.start("worker", "app.py:several")
    line = await wait_for_line(worker.stderr, "Serving trip, echo")
    for fact in (program.queue, program.environment["TEMPORAL_ADDRESS"], "perdure.db"):
        assert fact in line
    out, errors = await run.communicate()
    assert (run.returncode, out) == (0, b"Hello.\n"), errors
    worker.send_signal(signal.SIGTERM)
    await wait_for_line(worker.stderr, "Stopped")
    assert await worker.wait() == 0


async def test_a_second_interrupt_ends_a_worker_at_once(program: Any, wait_for_line: Any) -> None:
    worker = await program.start("worker", "app:slow", "--grace", "200")
    await wait_for_line(worker.stderr, "Serving slow")
    run = await program("run", "slow", "Go", "--session-id", "long", "--no-wait")
    assert run.code == 0
    await _until_called(program, "long")
    worker.send_signal(signal.SIGINT)
    await wait_for_line(worker.stderr, "Ctrl-C again ends at once")
    worker.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        assert await worker.wait() == 130


async def test_dev_runs_everything(program: Any, wait_for_line: Any) -> None:
    del program.environment["TEMPORAL_ADDRESS"]
    dev = await program.start("dev", "app:echo")
    line = await wait_for_line(dev.stderr, "Temporal  ")
    address = line.split()[1]
    ui = (await wait_for_line(dev.stderr, "Temporal UI")).split()[2]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", ui)
    command = await wait_for_line(dev.stderr, "perdure run")
    await wait_for_line(dev.stderr, "Serving echo")
    # The example works as it stands.
    assert ("--temporal" in command) == (address != "127.0.0.1:7233")
    run = await program(*command.split()[1:])
    assert (run.code, run.out) == (0, "Hello.\n"), run.errors
    dev.send_signal(signal.SIGINT)
    await wait_for_line(dev.stderr, "Stopped")
    assert await dev.wait() == 0
    state = program.folder / ".perdure"
    assert (state / "temporal.db").exists()
    assert (state / ".gitignore").read_text("utf-8") == "*\n"


async def test_dev_tells_what_the_environment_switches_on(program: Any, wait_for_line: Any) -> None:
    given = {
        "PERDURE_ENCRYPTION_KEYS": "k1:" + "MTEx" * 10 + "MTE=",
        "PERDURE_STORE": "sqlite:///sealed.db",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://me:hidden@127.0.0.1:9/v1/traces",
    }
    dev = await program.start("dev", "app:echo", "--ephemeral", **given)
    await wait_for_line(dev.stderr, "with the key k1 of PERDURE_ENCRYPTION_KEYS")
    assert "hidden" not in await wait_for_line(dev.stderr, "Sending traces to http://")
    ui = (await wait_for_line(dev.stderr, "Temporal UI")).split()[2]
    await wait_for_line(dev.stderr, "Serving echo")
    # Its UI, and no other page, can decrypt.
    async with httpx.AsyncClient() as http:
        codec = (await http.get(f"{ui}/api/v1/settings")).json()["Codec"]["Endpoint"]
        for origin, status in ((ui, 200), ("https://example.com", 403)):
            answer = await http.post(
                f"{codec}/decode", json={"payloads": []}, headers={"Origin": origin}
            )
            assert answer.status_code == status
    dev.send_signal(signal.SIGINT)
    await wait_for_line(dev.stderr, "Stopped")
    assert await dev.wait() == 0


async def test_dev_ends_when_its_server_dies(program: Any, wait_for_line: Any) -> None:
    dev = await program.start("dev", "app:echo", "--ephemeral")
    await wait_for_line(dev.stderr, "Serving echo")
    (server,) = psutil.Process(dev.pid).children()
    server.kill()
    line = await wait_for_line(dev.stderr, "perdure: The Temporal server at")
    assert "[PERDURE_TEMPORAL_UNAVAILABLE]" in line
    async with asyncio.timeout(120):
        assert await dev.wait() == 1


async def _until_called(program: Any, session: str) -> None:
    async with asyncio.timeout(120):
        while True:
            log = await program("events", session, "--json")
            if log.code == 0 and "tool/call" in {event["type"] for event in log.json}:
                return
