"""The event loop of workers."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop for Windows")
def test_servers_run_on_uvloop():
    """In a process of its own: the heap of this one stays as it is."""
    program = (
        "import asyncio, gc\n"
        "from perdure.event_loop import run_server\n"
        "async def main(): return type(asyncio.get_running_loop()).__module__\n"
        "print(run_server(main()), gc.get_freeze_count() > 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.split() == ["uvloop", "True"]
