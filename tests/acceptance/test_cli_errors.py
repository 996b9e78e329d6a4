"""Errors of the program as a subprocess: one line, no traceback. More are in tests/integration."""

from __future__ import annotations

from typing import Any

BROKEN = "import os\n\nos.nothing_like_this()\n"


async def test_errors_are_lines_on_standard_error(program: Any) -> None:
    before = program.files()
    for arguments, code in {
        ("show", "unknown"): 1,  # no store is there yet
        ("show",): 2,
        ("run", "echo", "Hi", "--temporal", "127.0.0.1:1"): 1,
        ("worker", "nothing_here"): 2,
    }.items():
        run = await program(*arguments)
        assert (run.code, run.out) == (code, "")
        message, *hint = run.errors.splitlines()
        assert message.startswith("perdure: ")
        assert [line[:6] for line in hint] in ([], ["hint: "])
    assert program.files() == before


async def test_an_unknown_agent_is_the_callers_error(program: Any, wait_for_line: Any) -> None:
    worker = await program.start("worker", "app:several")
    await wait_for_line(worker.stderr, "Serving trip, echo on")
    run = await program("run", "nobody", "Hi", "--session-id", "lost", "--json")
    assert (run.code, run.out) == (2, "")
    assert "There is no agent 'nobody'; this worker serves: echo, trip." in run.errors
    assert (await program("show", "lost")).code == 2
    other = await program("run", "trip", "Hi", "--store", f"sqlite:///{program.folder}/other.db")
    assert (other.code, other.out) == (2, "")
    assert "was not begun: its worker uses another store" in other.errors
    assert "[LOUSHO_CONFIG_INVALID]" in other.errors
    assert not (program.folder / "other.db").exists()


async def test_the_users_own_traceback_is_there_for_the_asking(program: Any) -> None:
    (program.folder / "broken.py").write_text(BROKEN, "utf-8")
    for run in (
        await program("worker", "broken", "--traceback"),
        await program("worker", "broken", PERDURE_TRACEBACK="1"),
    ):
        assert run.code == 2
        assert "Traceback (most recent call last)" in run.errors
        assert "os.nothing_like_this()" in run.errors


async def test_arguments_that_are_no_text(program: Any) -> None:
    run = await program("run", "echo", "caf\udce9")
    assert (run.code, run.out) == (2, "")
    assert run.errors == "perdure: An argument is not text in UTF-8.\n"


async def test_version_and_help(program: Any) -> None:
    version = await program("--version")
    assert (version.code, version.out) == (0, "perdure 0.1.0\n")
    for arguments in ((), ("--help",), ("run", "-h")):
        help_ = await program(*arguments)
        assert (help_.code, help_.errors) == (0, "")
        assert "Usage: perdure" in help_.out
