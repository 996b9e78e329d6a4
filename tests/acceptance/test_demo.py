"""``perdure demo``: the whole story in under a minute, with facts that are counted."""

from __future__ import annotations

import asyncio
import re
import resource
import signal
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_demo_tells_the_truth(program: Any, tmp_path: Path) -> None:
    before = computed()
    run = await program("demo", "--json", TMPDIR=str(tmp_path))
    # The rest of a minute is what it waits until the killed worker counts as dead: seven seconds.
    assert computed() - before < 45
    assert run.code == 0, run.errors
    told = run.json
    assert told["ok"] is True
    assert [check["claim"] for check in told["checks"] if not check["holds"]] == []
    facts = told["facts"]
    assert facts["toolStarts"] == {
        "trip": {"weather": 1, "hold_hotel": 2, "book_boat": 1},
        "trip.fork-1": {"reserve_museum": 1},
    }
    assert facts["effects"] == {
        "trip": {"hold_hotel": 1, "book_boat": 1},
        "trip.fork-1": {"reserve_museum": 1},
    }
    assert set(facts["effectsByKey"].values()) == {1}
    assert facts["modelRequests"] == {"trip": 3, "trip.fork-1": 2}
    killed, second = told["workers"]
    assert killed["exitCode"] == -signal.SIGKILL
    assert not psutil.pid_exists(second["pid"])
    assert told["comparison"]["divergedAt"] == 1
    assert told["comparison"]["drift"][0]["field"] == "tools"
    assert told["fork"]["sessionId"] == "trip.fork-1"
    assert told["fork"]["sourceBefore"] == told["fork"]["sourceAfter"]
    assert left_in(tmp_path) == []


async def test_a_demo_that_is_stopped_leaves_nothing(
    program: Any, tmp_path: Path, wait_for_line: Any
) -> None:
    demo = await program.start("demo", TMPDIR=str(tmp_path))
    line = await wait_for_line(demo.stdout, "Killed worker")
    assert re.search(r"Killed worker \d+ with SIGKILL", line)
    children = psutil.Process(demo.pid).children(recursive=True)
    assert children
    demo.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        await demo.communicate()
    assert demo.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert left_in(tmp_path) == []


def computed() -> float:
    """Seconds of a core that processes we started, and have ended, took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("perdure-demo-*"))
