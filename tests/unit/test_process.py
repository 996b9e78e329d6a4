"""Programs are run for real, since what is tested is how a process ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEADER = "import atexit, os, sys, threading\nfrom perdure.process import leave, run_program\n"


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEADER + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("code", [0, 1, 2, 3, 255])
def test_leaves_with_the_code_given_and_all_output(code: int) -> None:
    done = run(f"print('out'); print('err', file=sys.stderr); leave({code})")
    assert (done.returncode, done.stdout, done.stderr) == (code, "out\n", "err\n")


@pytest.mark.parametrize(
    ("main", "code", "stderr"),
    [
        ("lambda: None", 0, ""),
        ("lambda: 3", 3, ""),
        ("lambda: sys.exit(2)", 2, ""),
        ("sys.exit", 0, ""),
        ("lambda: sys.exit('no such thing')", 1, "no such thing\n"),
    ],
)
def test_the_exit_code_is_what_main_returns_or_exits_with(
    main: str, code: int, stderr: str
) -> None:
    done = run(f"run_program({main})")
    assert (done.returncode, done.stderr) == (code, stderr)


def test_an_interrupt_is_quiet_and_130() -> None:
    done = run("""
        import signal
        # A program that a shell put into the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_program(lambda: os.kill(os.getpid(), signal.SIGINT))
    """)
    assert (done.returncode, done.stderr) == (130, "")


def test_an_unexpected_error_shows_its_traceback_and_is_1() -> None:
    done = run("run_program(lambda: 1 / 0)")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_reader_that_went_away_is_quiet() -> None:
    body = "def main():\n    for n in range(100_000):\n        print(n)\nrun_program(main)\n"
    with subprocess.Popen(
        [sys.executable, "-c", HEADER + body],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline() == "0\n"
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(30) == 141


def test_a_reader_that_went_away_before_the_last_line_is_quiet() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HEADER + "sys.stdin.read(); run_program(lambda: print('late'))"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stderr is not None
        program.stdout.close()
        program.stdin.close()
        assert program.stderr.read() == ""
        assert program.wait(30) == 141


def test_functions_registered_for_the_exit_run_once_and_logs_are_flushed() -> None:
    done = run("""
        import logging, logging.handlers
        target = logging.StreamHandler(sys.stdout)
        logging.getLogger().addHandler(logging.handlers.MemoryHandler(10, target=target))
        atexit.register(print, "registered")
        logging.getLogger().warning("buffered")
        leave(0)
    """)
    assert sorted(done.stdout.split()) == ["buffered", "registered"]


def test_does_not_wait_for_a_thread_that_never_ends() -> None:
    done = run("threading.Thread(target=threading.Event().wait).start(); leave(4)")
    assert done.returncode == 4


def test_leaves_when_a_function_registered_for_the_exit_raises() -> None:
    done = run("atexit.register(lambda: 1 / 0); print('out'); leave(5)")
    assert (done.returncode, done.stdout) == (5, "out\n")
    assert "ZeroDivisionError" in done.stderr
