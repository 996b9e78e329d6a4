"""A run from the first prompt to the comparison of its fork, by commands alone."""

from __future__ import annotations

import asyncio
import re
import signal
import uuid
from typing import Any

import pytest

# One worker and one event loop serve the module.
pytestmark = pytest.mark.asyncio(loop_scope="session")


async def paused(perdure: Any, session: str) -> str:
    """Bring a trip to its approval; gives the approval's id."""
    run = await perdure("run", "trip", "Plan my trip", "--session-id", session, "--json")
    assert run.code == 3, run.errors
    approval_id: str = run.json["approvalId"]
    return approval_id


async def test_an_answer_is_printed_and_the_session_named(perdure: Any) -> None:
    run = await perdure("run", "echo", "Hi")
    assert (run.code, run.out) == (0, "Hello.\n")
    assert re.search(r"Session [0-9a-f-]{36} finished: 1 step, 100 in, 10 out tokens\.", run.errors)


async def test_a_session_goes_on_and_takes_what_is_given(perdure: Any, session: str) -> None:
    options = ("--business-state", '{"seat": "12a"}', "--metadata", '{"team": "x"}')
    first = await perdure("run", "echo", "Hi", "--session-id", session, *options, "--json")
    assert first.code == 0
    assert first.json["finishReason"] == "stop"
    assert first.json["sessionId"] == session
    second = await perdure("run", "echo", "And?", "--session-id", session, "--max-steps", "1")
    # What a model said reaches a pipe as it is; what no encoding can hold is replaced.
    assert (second.code, second.out) == (0, "\x1b[31mGrüße �\n")
    exported = await perdure("export", session)
    assert exported.json["businessState"] == {"seat": "12a"}
    assert [m["role"] for m in exported.json["messages"]] == ["user", "assistant"] * 2
    # Strict JSON in UTF-8, nothing lost: a lone surrogate is escaped.
    assert "Grüße \\ud83d" in exported.out
    shown = await perdure("show", session, "--full")
    assert "\x1b" not in shown.out
    assert "\\x1b[31mGrüße \\ud83d" in shown.out
    log = await perdure("events", session, "--limit", "2", "--json")
    assert [(e["seq"], e["type"]) for e in log.json] == [
        (0, "turn/start"),
        (1, "business_state/set"),
    ]
    assert log.json[0]["data"]["metadata"] == {"team": "x"}


async def test_a_prompt_can_come_from_standard_input(perdure: Any, session: str) -> None:
    empty = await perdure("run", "echo", "-", "--session-id", session)
    assert empty.code == 2
    assert empty.errors.startswith("perdure: The prompt is empty")


async def test_the_whole_story(perdure: Any, session: str) -> None:
    run = await perdure("run", "trip", "Plan my trip", "--session-id", session)
    assert (run.code, run.out) == (3, "")
    command = re.search(r"^Approve it: perdure (approve [0-9a-f-]{36})$", run.errors, re.MULTILINE)
    assert command is not None, run.errors
    again = await perdure("run", "trip", "And a car", "--session-id", session)
    assert again.code == 3
    assert "[LOUSHO_SESSION_AWAITING_APPROVAL]\nhint: Approve it: perdure approve" in again.errors
    assert (await perdure("resume", session)).code == 3

    pending = await perdure("approvals", "--session", session, "--json")
    assert [(p["toolName"], p["args"], p["sessionId"]) for p in pending.json] == [
        ("book", {"hotel": "Sole"}, session)
    ]
    listed = await perdure("approvals", "--session", session)
    assert pending.json[0]["id"] in listed.out
    shown = await perdure("show", session)
    assert "awaiting-approval" in shown.out
    assert pending.json[0]["id"] in shown.out

    approved = await perdure(*command[1].split(), "--by", "ana", "--note", "fine")
    assert (approved.code, approved.out) == (0, "All done.\n")
    late = await perdure(*command[1].split())
    assert late.code == 1
    assert "was already approved by ana. [PERDURE_APPROVAL_DECIDED]" in late.errors


async def test_history_fork_and_comparison(perdure: Any, session: str) -> None:
    approved = await perdure("approve", await paused(perdure, session))
    assert approved.code == 0
    history = await perdure("history", session, "--json")
    saves = [(entry["step"], entry["status"]) for entry in history.json]
    assert saves == [
        (3, "finished"),
        (2, "in-progress"),
        (2, "awaiting-approval"),
        (2, "in-progress"),
        (1, "in-progress"),
        (1, "in-progress"),
    ]
    assert (await perdure("history", session, "--limit", "1")).out.count("\n") == 2
    before = [(await perdure("export", session, *o)).out for o in ((), ("--history",))]

    result = 'call_weather={"forecast": "rain"}'
    fork = await perdure("fork", session, "--from-step", "1", "--tool-result", result)
    assert (fork.code, fork.out) == (0, f"{session}.fork-1\n")
    named = f"f-{uuid.uuid4().hex[:8]}"
    more = ("--append-input", "By train.", "--business-state", "[1]", "--as", named)
    second = await perdure("fork", session, "--from-step", "1", *more, "--json")
    assert (second.code, second.json["sessionId"], second.json["step"]) == (0, named, 1)
    assert second.json["checkpoint"]["messages"][-1]["content"] == "By train."
    assert second.json["checkpoint"]["businessState"] == [1]

    resumed = await perdure("resume", f"{session}.fork-1", "--json")
    assert resumed.code == 3
    rejected = await perdure("reject", resumed.json["approvalId"], "--note", "too dear", "--json")
    assert (rejected.code, rejected.json["text"]) == (0, "All done.")
    compared = await perdure("compare", session, f"{session}.fork-1", "--json")
    assert (compared.code, compared.json["divergedAt"]) == (0, 1)
    side_by_side = await perdure("compare", session, f"{session}.fork-1")
    assert "The runs part at step 1 (≠)." in side_by_side.out
    assert re.search(r'^1 ≠ .*"Rome".* "Rome"|^1 ≠ ', side_by_side.out, re.MULTILINE)
    assert before == [(await perdure("export", session, *o)).out for o in ((), ("--history",))]

    done = await perdure("resume", session)
    assert (done.code, done.out) == (0, "")
    assert "is finished" in done.errors
    nothing = await perdure("resume", session, "--json")
    assert nothing.json is None
    sessions = await perdure("sessions", "--json")
    found = {entry["sessionId"]: entry for entry in sessions.json}
    assert found[f"{session}.fork-1"]["parentSession"] == session
    only = await perdure("sessions", "--status", "in-progress", "--json")
    assert named in {entry["sessionId"] for entry in only.json}
    assert session in (await perdure("sessions")).out


async def test_a_failed_run_says_how_it_goes_on(perdure: Any, session: str) -> None:
    run = await perdure("run", "failing", "Hi", "--session-id", session, "--json")
    assert (run.code, run.out) == (1, "")
    message, hint = run.errors.splitlines()[-2:]  # behind what it says while it waits
    assert message == "perdure: the model is away [LOUSHO_PROVIDER_REQUEST_FAILED]"
    assert hint.endswith(f"Then go on: perdure resume {session}")
    shown = await perdure("show", session)
    assert "failed: the model is away [LOUSHO_PROVIDER_REQUEST_FAILED]\n" in shown.out
    assert (await perdure("show", session, "--json")).json["session"]["status"] == "in-progress"
    assert (await perdure("resume", session)).code == 1


async def test_a_long_run_is_waited_for_left_alone_cancelled_and_deleted(
    perdure: Any, session: str
) -> None:
    started = await perdure("run", "slow", "Go", "--session-id", session, "--no-wait")
    assert (started.code, started.out) == (0, f"{session}\n")
    late = await perdure("resume", session, "--timeout", "0.5")
    assert late.code == 1
    assert "No end after 0.5 s; the run goes on. [PERDURE_WAIT_TIMEOUT]" in late.errors
    waiting = await perdure.start("resume", session)
    await _line(waiting, "is at work")
    waiting.send_signal(signal.SIGINT)
    rest = (await waiting.communicate())[1].decode()
    assert waiting.returncode == 130
    assert f"Wait for it: perdure resume {session}" in rest
    refused = await perdure("delete", session, "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert f"hint: Stop it first: perdure cancel {session}" in refused.errors
    cancelled = await perdure("cancel", session)
    assert cancelled.code == 0
    assert "was stopped" in cancelled.errors
    shown = await perdure("show", session)
    assert re.search(r"last run +cancelled\n", shown.out)
    assert f"Go on with it: perdure resume {session}" in shown.errors
    assert (await perdure("cancel", session)).code == 0
    unasked = await perdure("delete", session)
    assert unasked.code == 2
    assert "needs --yes" in unasked.errors
    kept = await perdure("delete", session, "--keep-history", "--yes")
    assert kept.code == 0
    assert (await perdure("export", session)).code == 2
    assert (await perdure("history", session, "--json")).json != []
    unreachable = await perdure("delete", session, "--yes", "--temporal", "127.0.0.1:1")
    assert unreachable.code == 1
    assert "--force" in unreachable.errors
    gone = await perdure("delete", session, "--yes", "--force", "--temporal", "127.0.0.1:1")
    assert gone.code == 0
    assert (await perdure("show", session)).code == 2


async def test_twenty_commands_end_with_their_own_code(perdure: Any, session: str) -> None:
    approvals = [await paused(perdure, f"{session}-{n}") for n in range(3)]
    at_once = asyncio.Semaphore(4)

    async def end(*arguments: str) -> tuple[str, int]:
        async with at_once:
            return arguments[0], (await perdure(*arguments)).code

    commands = [("sessions",), ("approvals",), ("history", f"{session}-0")] * 5
    commands += [("approve", each) for each in approvals]
    commands += [("history", "unknown"), ("approve", "unknown")]
    expected = [0] * 18 + [2, 2]
    ends = await asyncio.gather(*(end(*command) for command in commands))
    assert ends == [(c[0], code) for c, code in zip(commands, expected, strict=True)]


async def _line(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(120):
        while text not in (await process.stderr.readline()).decode():
            assert process.returncode is None
