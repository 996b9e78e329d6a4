"""The fault campaign in its short form; ``make faults`` is the long one."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "runs"), [("worker", 20), ("server", 8), ("store", 8)])
async def test_random_faults_change_no_run(fault: str, runs: int) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.acceptance.faults.campaign"),
        *("--fault", fault, "--runs", str(runs), "--wave", str(runs)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = (await program.communicate())[0].decode()
    print(output)
    assert program.returncode == 0, output
    disturbed = re.search(r"disturbed runs: (\d+)", output)
    assert disturbed is not None
    assert int(disturbed[1]) == runs
