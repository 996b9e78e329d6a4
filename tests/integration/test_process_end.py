"""A process in which temporalio ran, this test run included, ends with its own exit code."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = """
import asyncio, sys
from temporalio.client import Client
from perdure.process import run_program

async def main():
    client = await Client.connect(sys.argv[1])
    await asyncio.gather(*(client.count_workflows("") for _ in range(20)))
    print("done")
    return 3

run_program(lambda: asyncio.run(main()))
"""


async def test_clients_of_temporal_end_with_their_own_code(temporal_address: str) -> None:
    at_once = asyncio.Semaphore(4)  # more than the cores of a small machine: ends that overlap

    async def run() -> tuple[int | None, bytes, bytes]:
        async with at_once:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", CLIENT, temporal_address),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            out, err = await process.communicate()
            return process.returncode, out, err

    ends = await asyncio.gather(*(run() for _ in range(10)))
    assert set(ends) == {(3, b"done\n", b"")}


def run_pytest(folder: Path, conftest: str, test: str) -> subprocess.CompletedProcess[str]:
    (folder / "tests").mkdir()
    ours = (Path(__file__).parents[1] / "conftest.py").read_text("utf-8")
    (folder / "tests" / "conftest.py").write_text(ours + conftest, "utf-8")
    (folder / "tests" / "test_it.py").write_text(test, "utf-8")
    shutil.copy(Path(__file__).parents[2] / "pyproject.toml", folder)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("conftest", "test", "status", "summary"),
    [
        ("", "def test_it(): pass", 0, "1 passed in"),
        ("", "def test_it(): assert 0", 1, "1 failed in"),
        ("", "", 5, "no tests ran in"),
        ("", "import no_such_module", 2, "1 error in"),
        (
            "\ndef pytest_configure(config): config.add_cleanup(lambda: 1 / 0)\n",
            "def test_it(): pass",
            1,
            "1 passed in",
        ),
    ],
    ids=["green", "red", "empty", "broken", "clean-up fails"],
)
def test_a_test_run_keeps_its_status_and_its_summary(
    tmp_path: Path, conftest: str, test: str, status: int, summary: str
) -> None:
    conftest += "\nimport atexit; atexit.register(print, 'exit functions ran')\n"
    done = run_pytest(tmp_path, conftest, test)
    assert done.returncode == status, done.stdout + done.stderr
    assert summary in done.stdout
    assert done.stdout.endswith("exit functions ran\n")
