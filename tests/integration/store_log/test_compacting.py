"""Compaction: the log keeps what a summary stands for."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import derive_messages
from perdure.checkpoint_bridge import Checkpoint
from perdure.checkpoint_bridge.compacting import compact
from perdure.checkpoint_bridge.ending import begin_end, finish_end
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    SessionConflictError,
    SessionEndedError,
)
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.cli.main import run as run_command

if TYPE_CHECKING:
    from perdure.checkpoint_bridge import SqlStore
    from perdure.checkpoint_bridge.format.messages import Message


async def converse(store: SqlStore, begin: Any, make: Any, turns: int) -> None:
    """Finished turns, each in a run of its own, with a tool in the first one."""
    for number in range(1, turns + 1):
        run = await begin(store, run_id=f"run-{number}", text=f"q{number}")
        if number == 1:
            await run.turn("weather")
        await run.finish(f"A{number}")


SYSTEM = {"role": "system", "content": "S"}


async def texts(store: SqlStore) -> list[str]:
    return [message.text for message in derive_messages(await store.events("trip"))]


async def test_f34_compaction_by_replacement(store, begin, make):
    await converse(store, begin, make, 30)
    before, history = await store.events("trip"), await store.history("trip")
    given: list[Message] = []

    async def summarize(messages: list[Message]) -> str:
        given.extend(messages)
        return "Twenty questions."

    done = await compact(store, "trip", keep_last=10, summarize=summarize)
    assert done is not None
    assert (done.turns, done.summary, len(given)) == (20, "Twenty questions.", done.replaced)
    assert (await texts(store))[-21:] == [
        "Twenty questions.",
        *(text for number in range(21, 31) for text in (f"q{number}", f"A{number}")),
    ]
    # All that was said is in the log, in earlier checkpoints and in what is forked from them.
    after = await store.events("trip")
    assert after[:-1] == before
    said = [event for event in after if event.type == ev.USER_MESSAGE]
    assert [event.data["message"]["content"] for event in said] == [f"q{n}" for n in range(1, 31)]
    now, *earlier = await store.history("trip")
    assert earlier == history
    assert now.checkpoint.messages == derive_messages(after)
    assert (now.status, now.checkpoint.finish_reason) == (history[0].status, "")
    fork_id, _ = await store.fork("trip", from_step=history[1].step)
    assert fork_id != "trip"
    # The event is the rewrite that any consumer can follow.
    delta = after[-1]
    assert (delta.type, delta.data["append"][0]["content"]) == (ev.TRANSCRIPT_DELTA, done.summary)
    kept = [message.raw for message in derive_messages(before)][: delta.data["keep"]]
    assert [message.raw for message in now.checkpoint.messages] == [*kept, *delta.data["append"]]


async def test_f34_the_system_prompt_stays_and_a_fork_of_an_earlier_step_has_all(
    store, begin, make
):
    run = await begin(store, text="q1")
    await run.append(NewEvent(ev.TRANSCRIPT_DELTA, {"keep": 0, "append": [SYSTEM, Q1]}))
    await run.turn("weather")
    await run.finish("A1")
    second = await begin(store, run_id="run-2", text="q2")
    await second.turn("hotels")
    await second.finish("A2")
    assert await compact(store, "trip", keep_last=2) is None
    done = await compact(store, "trip", keep_last=1)
    assert done is not None
    assert done.summary.splitlines()[1:] == ["user: q1", "assistant: A1"]
    assert await texts(store) == ["S", done.summary, "q2", "", '"hotels"', "A2"]
    assert await compact(store, "trip", keep_last=1, summary="Again.") is None
    _, fork = await store.fork("trip", from_step=1)
    assert [message.text for message in fork.messages] == ["S", "q1", "", '"weather"']


Q1 = {"role": "user", "content": "q1"}


async def test_calls_without_results_are_not_compacted_away(store, begin, make):
    run = await begin(store)
    await run.finish()
    run = await begin(store, run_id="run-2")
    await run.append(make.answer("", "book"), save=ev.IN_PROGRESS)
    with pytest.raises(SessionConflictError, match="goes on or was cut off"):
        await compact(store, "trip", keep_last=1, summary="S")
    await run.append(NewEvent(ev.TURN_END, {"turn": 2, "reason": {"kind": "error"}}))
    with pytest.raises(SessionConflictError, match="no result yet"):
        await compact(store, "trip", keep_last=1, summary="S")


async def test_an_ended_session_stays_as_it_is(store, begin, make):
    await converse(store, begin, make, 2)
    await begin_end(store, "trip")
    await finish_end(store, "trip")
    with pytest.raises(SessionEndedError):
        await compact(store, "trip", keep_last=1)


async def test_a_record_from_outside_is_compacted(store):
    messages = [Q1, {"role": "assistant", "content": "A1"}, {**Q1, "content": "q2"}]
    record = {"sessionId": "trip", "messages": messages, "status": "finished", "later": 1}
    await store.save("trip", Checkpoint.from_json({**record, "finishReason": "stop"}))
    assert await compact(store, "trip", keep_last=1, summary="Short.") is not None
    checkpoint = await store.load("trip")
    assert [message.text for message in checkpoint.messages] == ["Short.", "q2"]
    assert (checkpoint.status, checkpoint.finish_reason) == ("finished", "stop")
    assert checkpoint.to_json()["later"] == 1
    row = await store.session("trip")
    assert (await store.state(row.log_id, row.head)).finished


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_last": 0},
        {"keep_last": True},
        {"keep_last": 1, "summary": " "},
        {"keep_last": 1, "summary": "S", "summarize": str},
        {"keep_last": 1, "summarize": lambda _: ""},
    ],
)
async def test_arguments_that_are_wrong(store, begin, make, wrong):
    await converse(store, begin, make, 2)
    before = await store.events("trip")
    with pytest.raises(ConfigurationError):
        await compact(store, "trip", **wrong)
    assert await store.events("trip") == before


async def test_a_long_conversation_has_a_short_summary(store, begin, make):
    await converse(store, begin, make, 31)
    done = await compact(store, "trip", keep_last=1)
    assert done is not None
    assert done.summary.splitlines()[1:3] == ["(20 more before)", "user: q11"]


async def test_the_command(store, begin, make, sql_url, capsys):
    await converse(store, begin, make, 3)
    for arguments, shown in (
        (("--keep-last", "2", "--summary", "S1"), "S1\n"),
        (("--keep-last", "2"), ""),
        (("--keep-last", "2", "--json"), "null\n"),
    ):
        command = ["compact", "trip", "--store", sql_url, *arguments]
        assert await asyncio.to_thread(run_command, command) == 0
        captured = capsys.readouterr()
        assert captured.out == shown
        assert ("This summary replaces 1 turn (" in captured.err) is (shown == "S1\n")
    command = ["compact", "trip", "--store", sql_url, "--keep-last", "1", "--json"]
    assert await asyncio.to_thread(run_command, command) == 0
    assert json.loads(capsys.readouterr().out) == {
        "sessionId": "trip",
        "turns": 1,
        "replacedMessages": 3,
        "summary": "[Summary of the earlier conversation]\nuser: S1\nuser: q2\nassistant: A2",
    }
