"""``perdure outcome``, in this process."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.answers import answer_entry
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.checkpoint_bridge.tables.event_log import Batch
from perdure.checkpoint_bridge.tables.ledger import Effect
from perdure.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path

ANSWER = {"model": "m", "usage": {}, "finishReason": "stop"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    monkeypatch.setenv("PERDURE_STORE", url)

    async def fill() -> None:
        async with SqlStore(url) as opened:
            start = {"turn": 1, "runId": "r1", "agent": "trip", "fresh": True}
            log_id, head = await opened.open_session(
                "s",
                agent="trip",
                run_id="r1",
                head=0,
                time_ms=1_000,
                events=[NewEvent(ev.TURN_START, start)],
            )
            said = {"role": "assistant", "content": "\x1b[31mRed."}
            answer = Effect("m", outcome=ANSWER, message=said)
            more = answer_entry(head, 1, 1, answer, [])[1].events
            failed = {"kind": "error", "error": {"code": "model_call_limit", "message": "Enough."}}
            more += [
                NewEvent(ev.TURN_START, {**start, "turn": 2}),
                NewEvent(ev.TURN_END, {"turn": 2, "reason": failed}),
                NewEvent(ev.TURN_START, {**start, "turn": 3}),
            ]
            await opened.append(Batch("s", log_id, "r1", head, 2_000, more))

    asyncio.run(fill())


@pytest.mark.usefixtures("store")
def test_f44_the_outcome_of_a_turn_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = []
    for sequence in (1, 6, 8):
        assert run(["outcome", "s", str(sequence), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [each["state"] for each in found] == ["ended", "failed", "pending"]
    assert (found[0]["answer"], found[0]["event"]["sequence"]) == ("\x1b[31mRed.", 5)
    assert found[1]["event"]["data"]["reason"]["error"]["code"] == "model_call_limit"
    assert run(["outcome", "s", "6"]) == 0
    assert "model_call_limit: Enough." in capsys.readouterr().out
    assert run(["outcome", "s", "1"]) == 0
    assert "\\x1b[31mRed." in capsys.readouterr().out


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["s", "2"], "PERDURE_NOT_A_TURN"),
        (["s", "99"], "PERDURE_NOT_A_TURN"),
        (["nobody", "1"], "PERDURE_SESSION_NOT_FOUND"),
    ],
)
def test_what_is_no_turn(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["outcome", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"[{code}]" in shown.err
