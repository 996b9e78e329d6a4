"""What commands print: strict JSON, plain tables, texts that do nothing to a terminal."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from perdure.checkpoint_bridge.errors import (
    ApprovalDecidedError,
    ApprovalNotFoundError,
    CheckpointNotFoundError,
    ConfigurationError,
    PerdureError,
    SessionAwaitingApprovalError,
    SessionNotFoundError,
    StorageError,
)
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry, WaitingApproval
from perdure.checkpoint_bridge.format.trajectory import compare_trajectories
from perdure.cli import exits, render
from perdure.cli.options import DEFAULT_TASK_QUEUE, Where, json_option, seconds_option
from perdure.cli.output import json_text, show
from perdure.cli.render_compare import comparison
from perdure.cli.text import clean, local_time, one_line
from perdure.connection import DEFAULT_TASK_QUEUE as QUEUE_OF_THE_CLIENT
from perdure.results import SessionInfo


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "value",
    [{"a": [1, "ü", None]}, "\ud83d", {"\udc00": "x\ud83d\ude00"}, 12345678901234567890123],
)
def test_json_loses_nothing(value: Any, indent: int | None) -> None:
    text = json_text(value, indent=indent)
    text.encode("utf-8")
    back = json.loads(text, parse_constant=refuse)
    assert json.dumps(back) == json.dumps(json.loads(json.dumps(value)))


@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_strict(indent: int | None) -> None:
    made = json.loads(json_text({"n": math.nan}, indent=indent), parse_constant=refuse)
    assert made == {"n": None}


def test_json_may_be_deep() -> None:
    value: Any = []
    for _ in range(50_000):
        value = [value]
    assert json_text(value, indent=2) == "[" * 50_001 + "]" * 50_001


def test_text_does_nothing_to_a_terminal() -> None:
    assert clean("a\x1b[2J\x9b\u202eb\ud800\tc\n") == "a\\x1b[2J\\x9b\\u202eb\\ud800\tc\n"
    assert one_line("a\n\n b\x1b", 3) == "a …"


def test_moments() -> None:
    assert local_time("2026-01-02T03:04:05.678Z")[:8] == "2026-01-"
    assert len(local_time(1_767_323_045_678)) == len("2026-01-02 03:04:05")
    assert local_time("soon") == "soon"
    assert local_time(10**30) == str(10**30)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x", field="f"), exits.USAGE),
        (SessionNotFoundError("x"), exits.USAGE),
        (CheckpointNotFoundError("x"), exits.USAGE),
        (ApprovalNotFoundError("x"), exits.USAGE),
        (ApprovalDecidedError("x"), exits.FAILED),
        (StorageError("x"), exits.FAILED),
        (PerdureError("x"), exits.FAILED),
        (SessionAwaitingApprovalError("x"), exits.AWAITING_APPROVAL),
    ],
)
def test_exit_codes(error: PerdureError, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.tell(error) == code
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.splitlines()[0] == f"perdure: x [{error.code}]"


def test_the_queue_is_that_of_the_client() -> None:
    assert DEFAULT_TASK_QUEUE == QUEUE_OF_THE_CLIENT


def test_commands_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    monkeypatch.delenv("PERDURE_TASK_QUEUE", raising=False)
    assert Where("sqlite:///perdure.db").command("resume", "a") == "perdure resume a"
    where = Where("sqlite:///my store.db", "h:1", "n", "q")
    assert where.command("resume", "a", store_only=True) == (
        "perdure resume a --store 'sqlite:///my store.db'"
    )
    assert where.command("resume").endswith("--temporal h:1 --namespace n --task-queue q")
    monkeypatch.setenv("PERDURE_STORE", "sqlite:///my store.db")
    assert "--store" not in where.command("resume")


def test_commands_to_copy_keep_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_TASK_QUEUE", "kq")
    where = Where("sqlite:///a.db")
    assert where.task_queue == "kq"
    assert where.command("approve", "a1") == "perdure approve a1 --store sqlite:///a.db"


def test_options_that_are_read() -> None:
    assert json_option("--x", '{"a": [1]}') == {"a": [1]}
    assert seconds_option("--x", 0.5) == 0.5
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="above 0"):
            seconds_option("--x", value)


CHECKPOINT = {
    "agentId": "trip",
    "sessionId": "trip",
    "stepIndex": 1,
    "status": "finished",
    "finishReason": "stop",
    "businessState": {"seat": 1},
    "usage": {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7, "costUsd": 0.5},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image"}]},
        {
            "role": "assistant",
            "content": "\x1b[2Jlet me look",
            "toolCalls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{"}}
            ],
        },
        {"role": "tool", "toolCallId": "c1", "toolName": "look", "content": "x" * 900},
    ],
}
LONG_ID = "s" * 150


def test_tables_into_a_pipe_cut_no_id(capsys: pytest.CaptureFixture[str]) -> None:
    info = SessionInfo(LONG_ID, "trip", "finished", 3, "[bold]Plan[/bold] :smile:", 1, 2)
    show(render.sessions([info]))
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["SESSION", "AGENT", "STATUS", "STEP", "UPDATED", "TITLE"]
    assert row.startswith(LONG_ID)
    assert row.endswith("[bold]Plan[/bold] :smile:")


def test_a_session_is_shown_harmless_and_short(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = Checkpoint.from_json(CHECKPOINT)
    info = SessionInfo("trip", "trip", "finished", 1, "Hi", 1, 2, parent_session="old")
    show(render.session(info, checkpoint, full=False))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    for part in ("fork of", "$0.5000", '{"seat":1}', "Hi [image]", "→ look {", "(500 characters"):
        assert part in out
    show(render.session(info, checkpoint, full=True))
    assert "x" * 900 in capsys.readouterr().out


def test_history_and_approvals(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"step": 1, "savedAt": "2026-01-02T03:04:05.678Z", "status": "in-progress"}
    show(render.history([HistoryEntry.from_json({**entry, "checkpoint": CHECKPOINT})]))
    assert "look gave xxx" in capsys.readouterr().out
    wanted = WaitingApproval(id="a-1", session_id=LONG_ID, tool_name="book", args={"n": 1})
    show(render.approvals([wanted]))
    out = capsys.readouterr().out
    assert LONG_ID in out
    assert 'book  {"n":1}' in out


def turn(text: str, **calls: str) -> list[dict[str, Any]]:
    made: dict[str, Any] = {"role": "assistant", "content": text}
    made["toolCalls"] = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in calls
    ]
    results = [{"role": "tool", "toolCallId": n, "content": c} for n, c in calls.items()]
    return [made, *results]


def test_two_runs_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    a = [*turn("same"), *turn("", weather="sunny"), *turn("boat")]
    b = [*turn("same"), *turn("", weather="rain")]
    show(comparison(compare_trajectories(a, b), "trip", LONG_ID))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["A  trip", f"B  {LONG_ID}"]
    assert [line.split()[:2] for line in lines if line[:1].isdigit()] == [
        ["1", "same"],
        ["2", "≠"],
        ["3", "boat"],
    ]
    assert any("= sunny" in line and "= rain" in line for line in lines)
    assert any("(no such step)" in line for line in lines)
    assert "The runs part at step 2 (≠)." in lines
    show(comparison(compare_trajectories(a, a), "trip", "trip"), Text(""))
    assert "The two runs are the same." in capsys.readouterr().out


def test_a_failed_and_a_cancelled_run_show(capsys: pytest.CaptureFixture[str]) -> None:
    end = {"outcome": "failed", "code": "LOUSHO_X", "message": "no key"}
    failed = SessionInfo("trip", "trip", "in-progress", 1, "Hi", 1, 2, last_run=end)
    show(render.session(failed, None, full=False))
    assert "last run  failed: no key [LOUSHO_X]\n" in capsys.readouterr().out
    cancelled = SessionInfo(
        "trip", "trip", "in-progress", 1, "Hi", 1, 2, last_run={"outcome": "cancelled"}
    )
    show(render.sessions([failed, cancelled]))
    listed = capsys.readouterr().out
    assert "failed" in listed
    assert "cancelled" in listed
    assert "in-progress" not in listed
    # One whose worker died, and whose agent does not go on, is not in progress either.
    lost = SessionInfo("a", "a", "in-progress", 1, "", 1, 2, last_run={"outcome": "interrupted"})
    assert lost.state == "interrupted"
    # What has gone on since is what counts.
    assert SessionInfo("a", "a", "finished", 1, "", 1, 2, last_run=end).state == "finished"


def test_a_narrow_terminal_cuts_no_id() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=40, force_terminal=False)
    pending = WaitingApproval(
        id="0123456789" * 4,
        session_id="a-session-with-a-name",
        tool_name="book",
        args={"hotel": "Sole"},
        kind="ambiguous",
        question="Was it?",
    )
    console.print(render.approvals([pending]))
    lines = stream.getvalue().replace("\n", "")
    assert "0123456789" * 4 in lines
    assert "a-session-with-a-name" in lines
    assert "ambiguous: Was it?" in lines
