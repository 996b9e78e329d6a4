"""``perdure worker --mirror``, ``import``, ``export --to`` and ``mirror`` as processes."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def rows(path: Path) -> Any:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT session_id, step, status, saved_at, payload FROM checkpoint_history"
        return (
            connection.execute("SELECT * FROM checkpoints").fetchall(),
            connection.execute(f"{query} ORDER BY id").fetchall(),
        )


async def test_sessions_go_there_and_come_back(program: Any, wait_for_line: Any) -> None:
    theirs = program.folder / "theirs.db"
    address = f"lousho-sqlite:{theirs}"
    worker = await program.start(
        "worker", "app:several", "--mirror", address, "--mirror", "lousho-files:files"
    )
    await wait_for_line(worker.stderr, "Serving trip, echo")
    run = await program("run", "trip", "Plan it", "--session-id", "trip")
    assert run.code == 3, run.errors
    approved = await program("approve", (await program("approvals", "--json")).json[0]["id"])
    assert approved.code == 0, approved.errors
    worker.send_signal(signal.SIGTERM)
    await worker.wait()

    ours = (await program("export", "trip", "--history")).json
    checkpoints, history = rows(theirs)
    assert len(checkpoints) == 1
    assert [row[1:3] for row in history] == [
        (entry["step"], entry["status"]) for entry in reversed(ours)
    ]
    state = await program("mirror", "--mirror", address, "--mirror", "lousho-files:files")
    assert (state.code, state.out.count("is up to date")) == (0, 2), state.errors

    # Written again, it is the same.
    with closing(sqlite3.connect(theirs)) as connection:
        connection.execute("DELETE FROM checkpoint_history WHERE id % 2")
        connection.execute("UPDATE checkpoints SET payload = '{}'")
        connection.commit()
    rebuilt = await program("mirror", "--rebuild", "trip", "--mirror", address)
    assert rebuilt.code == 0, rebuilt.errors
    assert rows(theirs) == (checkpoints, history)

    # Into another store, and from there on.
    other = {"PERDURE_STORE": f"sqlite:///{program.folder / 'other.db'}"}
    came = await program("import", address, "--json", **other)
    assert came.json == [{"sessionId": "trip", "saves": len(ours)}], came.errors
    assert (await program("export", "trip", "--history", **other)).json == ours
    again = await program("import", "lousho-files:files", "trip", **other)
    assert (again.code, again.out) == (0, "trip\n")
    assert "0 sessions imported, 1 there already" in again.errors
    exported = await program("export", "trip", "--to", "lousho-sqlite:copy.db", **other)
    assert exported.code == 0, exported.errors
    _, copied = rows(program.folder / "copy.db")
    assert [row[:4] for row in copied] == [row[:4] for row in history]
    assert [json.loads(row[4]) for row in copied] == [json.loads(row[4]) for row in history]


async def test_a_session_of_a_mirror_is_resumed(program: Any, wait_for_line: Any) -> None:
    elsewhere = {"PERDURE_STORE": f"sqlite:///{program.folder / 'first.db'}"}
    worker = await program.start("worker", "app:several", **elsewhere)
    await wait_for_line(worker.stderr, "Serving trip, echo")
    run = await program("run", "echo", "Hi", "--session-id", "hello", **elsewhere)
    assert run.code == 0, run.errors
    done = await program("export", "hello", "--to", "lousho-files:theirs", **elsewhere)
    assert done.code == 0, done.errors
    worker.send_signal(signal.SIGTERM)
    await worker.wait()

    mirror = {"PERDURE_MIRROR": "lousho-files:theirs"}
    worker = await program.start("worker", "app:several", **mirror)
    await wait_for_line(worker.stderr, "Serving trip, echo")
    run = await program("run", "echo", "And?", "--session-id", "hello", **mirror)
    assert run.code == 0, run.errors
    assert "Grüße" in run.out
    unknown = await program("resume", "nobody", **mirror)
    assert unknown.code == 2
    assert "PERDURE_SESSION_NOT_FOUND" in unknown.errors


async def test_what_is_wrong_is_told_and_leaves_nothing(program: Any) -> None:
    before = program.files()
    for words, code, text in (
        (("import", "lousho-sqlite:none.db"), 1, "There is no store at"),
        (("import", "lousho-files:none"), 1, "There is no directory"),
        (("import", "nonsense"), 2, "not the address of a store"),
        (("import", "lousho-sqlite:"), 2, "names no file"),
        (("mirror",), 2, "Name the mirror"),
        (("worker", "app", "--mirror", "redis:x"), 2, "not the address of a store"),
    ):
        done = await program(*words)
        assert (done.code, done.out) == (code, ""), done
        assert text in done.errors
        assert done.errors.count("\n") <= 2
    assert program.files() == before
