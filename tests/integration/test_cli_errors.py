"""Whatever a user does wrong gets one line, the right code, and changes nothing on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.cli.main import run

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = """
import asyncio

from perdure import Agent
from perdure.testing import ScriptedModel

trip = Agent("trip", provider=ScriptedModel(["Hello."]))
echo = Agent("echo", provider=ScriptedModel(["Hello."]))
"""

MODULES = {
    "app.py": APP,
    "broken.py": "import os\n\nos.nothing_like_this()\n",
    "syntax.py": "def oops(:\n",
    "empty.py": "value = 3\n",
    "leaves.py": "import sys\n\nsys.exit(4)\n",
    "needs.py": "import a_module_that_nobody_has\n",
    "wrong.py": "from perdure import Agent\n\nbad = Agent('a b', model='openai/x')\n",
}

# What is typed: the exit code, and what the line on standard error holds.
ERRORS: dict[tuple[str, ...], tuple[int, str]] = {
    ("nosuch",): (2, "No such command 'nosuch'"),
    ("sessions", "--colour"): (2, "--colour"),
    ("sessions", "--limit", "0"): (2, "--limit"),
    ("sessions", "--limit", "99999999999999999999"): (2, "--limit"),
    ("sessions", "--status", "lost"): (2, "--status"),
    ("show",): (2, "Missing argument"),
    ("run", "trip", "Hi", "--task-queue", ""): (2, "--task-queue is a text that is not empty"),
    ("sessions", "--store", "mysql://x"): (2, "'mysql' is not supported"),
    ("sessions", "--store", "perdure.db"): (2, "is not a store address"),
    ("sessions", "--store", "sqlite://"): (2, "is in memory"),
    ("sessions", "--store", "sqlite:///missing.db"): (1, "There is no store at missing.db."),
    ("approvals", "--store", "sqlite:///no/such/dir.db"): (1, "[LOUSHO_STORAGE_FAILED]"),
    ("sessions", "--store", "sqlite:///text.db"): (1, "text.db is not a SQLite database"),
    ("sessions", "--store", "sqlite:///other.db"): (1, "of something else"),
    ("sessions", "--store", "sqlite:///newer.db"): (1, "newer version"),
    ("sessions", "--store", "sqlite:///folder"): (1, "is a directory"),
    ("sessions", "--store", "sqlite:///nothing.db"): (1, "nothing.db is empty"),
    ("sessions", "--store", "sqlite:///damaged.db"): (1, "is damaged"),
    ("show", "unknown"): (2, "There is no session 'unknown'"),
    ("show", "unknown", "--json"): (2, "[PERDURE_SESSION_NOT_FOUND]"),
    ("history", "unknown"): (2, "There is no session"),
    ("events", "unknown"): (2, "There is no session"),
    ("export", "unknown"): (2, "There is no session"),
    ("compare", "unknown", "other"): (2, "There is no session"),
    ("approvals", "--session", "unknown"): (2, "There is no session"),
    ("resume", "unknown"): (2, "There is no session"),
    ("cancel", "unknown"): (2, "There is no session"),
    ("delete", "unknown", "--yes"): (2, "There is no session"),
    ("approve", "unknown"): (2, "There is no approval 'unknown'. [LOUSHO_APPROVAL_NOT_FOUND]"),
    ("reject", "unknown", "--json"): (2, "[LOUSHO_APPROVAL_NOT_FOUND]"),
    ("fork", "unknown", "--from-step", "1"): (
        2,
        "(steps kept: none) [LOUSHO_CHECKPOINT_NOT_FOUND]",
    ),
    ("fork", "unknown", "--from-step", "1", "--append-input", " "): (2, "--append-input is empty"),
    ("compact", "unknown", "--keep-last", "1"): (2, "There is no session"),
    ("compact", "unknown", "--keep-last", "0"): (2, "--keep-last"),
    ("compact", "unknown"): (2, "--keep-last"),
    ("compact", "unknown", "--keep-last", "1", "--summary", " "): (2, "a text that is not empty"),
    ("export", "unknown", "--json"): (2, "There is no session"),
    ("delete", "unknown", "--json"): (2, "There is no session"),
    ("approve", "unknown", "--result", "{"): (2, "--result is not JSON"),
    ("fork", "unknown", "--from-step", "one"): (2, "--from-step"),
    ("fork", "unknown", "--from-step", "1", "--tool-result", "x"): (2, "CALL_ID=JSON"),
    ("fork", "unknown", "--from-step", "1", "--tool-result", "x={"): (2, "not JSON"),
    ("fork", "unknown", "--from-step", "1", "--as", "a/b"): (2, "[LOUSHO_SESSION_ID_INVALID]"),
    ("run", "echo", ""): (2, "The prompt is empty"),
    ("run", "echo", "Hi", "--session-id", ""): (2, "[LOUSHO_SESSION_ID_INVALID]"),
    ("run", "echo", "Hi", "--session-id", "x" * 129): (2, "[LOUSHO_SESSION_ID_INVALID]"),
    ("run", "echo", "Hi", "--business-state", "{x}"): (2, "--business-state is not JSON"),
    ("run", "echo", "Hi", "--business-state", "NaN"): (2, "--business-state is not JSON"),
    ("run", "echo", "Hi", "--metadata", "[]"): (2, "--metadata is a JSON object"),
    ("run", "echo", "Hi", "--max-steps", "0"): (2, "--max-steps"),
    ("run", "echo", "Hi", "--timeout", "nan"): (2, "--timeout is a number of seconds"),
    ("run", "echo", "Hi", "--namespace", "nowhere"): (2, "has no namespace 'nowhere'"),
    ("run", "echo", "Hi", "--temporal", "127.0.0.1:1"): (1, "does not answer at 127.0.0.1:1"),
    ("run", "echo", "Hi", "--temporal", "what is this"): (2, "is not an address of Temporal"),
    ("run", "echo", "Hi", "--temporal", "http://localhost:7233"): (2, "without a scheme"),
    ("run", "echo", "Hi", "--namespace", ""): (2, "namespace is empty"),
    ("worker", "app.py", "--namespace", "nowhere"): (2, "has no namespace 'nowhere'"),
    ("dev", "app.py"): (2, "cannot be kept in .perdure"),
    ("worker", "app.py", "--temporal", "127.0.0.1:1"): (1, "[PERDURE_TEMPORAL_UNAVAILABLE]"),
    ("worker", "app.py", "--store", "mysql://x"): (2, "'mysql' is not supported"),
    ("worker", "app.py", "--log-level", "loud"): (2, "--log-level"),
    ("worker", "nothing_here"): (2, "There is no module 'nothing_here'"),
    ("worker", "nothing.py"): (2, "There is no file nothing.py"),
    ("worker", "not a module"): (2, "is no module"),
    ("worker", "app:"): (2, "names no agents"),
    ("worker", "app:nobody"): (2, "its agents are: trip, echo"),
    ("worker", "app.py:APP"): (2, "has no attribute 'APP'"),
    ("worker", "app:asyncio"): (2, "is no Agent"),
    ("worker", "empty"): (2, "empty holds no agent"),
    ("worker", "broken.py"): (2, "AttributeError: module 'os' has no attribute"),
    ("worker", "broken"): (2, "broken.py:3)"),
    ("worker", "syntax"): (2, "syntax.py:1)"),
    ("worker", "leaves"): (2, "ends the program when it is imported"),
    ("worker", "needs"): (2, "No module named 'a_module_that_nobody_has'"),
    ("dev", "wrong"): (
        2,
        "not 'a b'. (",
    ),
    ("dev", "nothing_here"): (2, "There is no module"),
}


@pytest.fixture
def folder(
    tmp_path: Path, temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A user's directory, with a store and files that look like one, and Temporal's address."""
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "text.db").write_text("This is no database, but a text." * 40, "utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / ".perdure").write_text("where a directory should be", "utf-8")
    (tmp_path / "nothing.db").touch()
    store = tmp_path / "perdure.db"
    asyncio.run(_make_store(store))
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE shop (id INTEGER)")
    (tmp_path / "newer.db").write_bytes(store.read_bytes())
    with contextlib.closing(sqlite3.connect(tmp_path / "newer.db")) as newer:
        query = "SELECT name FROM sqlite_master WHERE name LIKE '%version%'"
        (table,) = newer.execute(query).fetchone()
        newer.execute(f"UPDATE {table} SET version_num = '9999'")
        newer.commit()
    (tmp_path / "damaged.db").write_bytes(store.read_bytes())
    with contextlib.closing(sqlite3.connect(tmp_path / "damaged.db")) as damaged:
        damaged.execute(f"UPDATE {table} SET version_num = 'None'")
        damaged.commit()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_STORE", f"sqlite:///{store}")
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_address)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if f"{name}.py" in MODULES:
            del sys.modules[name]


async def _make_store(path: Path) -> None:
    async with SqlStore(f"sqlite:///{path}"):
        pass


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [pytest.param(a, c, t, id=" ".join(a)[:60]) for a, (c, t) in ERRORS.items()],
)
def test_errors_are_one_line_and_change_nothing(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    before = files(folder)
    assert run(arguments) == code
    out, errors = capsys.readouterr()
    message, *hint = errors.splitlines()
    assert message.startswith("perdure: ")
    assert text in message
    assert [line[:6] for line in hint] in ([], ["hint: "])
    assert out == ""
    assert files(folder) == before


def test_a_driver_that_is_not_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert run(("sessions", "--store", "postgresql://u:p@localhost:1/db")) == 2
    assert "hint: Install it with: pip install 'perdure[postgres]'" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("command", ["sessions --json", "--help"])
def test_output_that_cannot_be_written(folder: Path, command: str) -> None:
    line = f'exec "$0" -m perdure {command}'
    full = ["sh", "-c", f"{line} > /dev/full", sys.executable]
    ended = subprocess.run(full, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "perdure: Output cannot be written: No space left on device\n"
    closed = ["sh", "-c", f"{line} >&-", sys.executable]
    ended = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_hint_says_what_the_message_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("fork", "unknown", "--from-step", "1")) == 2
    assert "hint: There is no session 'unknown'" in capsys.readouterr().err
    assert run(("run", "echo", "Hi", "--session-id", "a b")) == 2
    assert capsys.readouterr().err.count("A-Z a-z") == 1


def test_standard_input_that_is_no_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00")))
    assert run(("run", "echo", "-")) == 2
    assert "Standard input is not text" in capsys.readouterr().err
