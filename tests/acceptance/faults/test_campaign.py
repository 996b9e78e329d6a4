"""The fault campaign in its short form; ``make faults`` is the long one.

A form for each kind of fault, all at the same time: mostly they wait for what was lost to be
noticed.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio

ROOT = Path(__file__).parents[3]
RUNS = {"worker": 8, "cancel": 8, "server": 4, "store": 4, "postgres": 4}


async def campaign(fault: str) -> tuple[int | None, str]:
    runs = str(RUNS[fault])
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.acceptance.faults.campaign"),
        *("--fault", fault, "--runs", runs, "--wave", runs),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = (await program.communicate())[0].decode()
    return program.returncode, output


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def campaigns() -> dict[str, tuple[int | None, str]]:
    found = await asyncio.gather(*map(campaign, RUNS))
    return dict(zip(RUNS, found, strict=True))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", RUNS)
def test_random_faults_change_no_run(
    campaigns: dict[str, tuple[int | None, str]], fault: str
) -> None:
    code, output = campaigns[fault]
    print(output)
    assert code == 0, output
    disturbed = re.search(r"disturbed runs: (\d+)", output)
    assert disturbed is not None
    assert int(disturbed[1]) == RUNS[fault]
