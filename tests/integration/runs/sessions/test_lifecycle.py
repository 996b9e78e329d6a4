"""The life of sessions: made, listed, opened, ended, deleted."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine
from temporalio.client import WorkflowFailureError

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge import Checkpoint, SessionHooks, SqlStore, creating
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    IdempotencyAmbiguousError,
    IdempotencyMismatchError,
    SessionActiveError,
    SessionEndedError,
    SessionExistsError,
    SessionIdInvalidError,
    SessionNotFoundError,
)
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.cli.main import run
from perdure.client import connect
from perdure.sessions import directory
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench

TRANSCRIPT = [
    {"role": "user", "content": "A table for 2"},
    {"role": "assistant", "content": "At eight?"},
]


def said(request: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in request.messages]


async def test_f1_a_session_is_one_conversation(bench: Bench) -> None:
    model = bench.model("Booked for 2.", "Booked for 3.")
    async with bench.serving(Agent("host", provider=model)):
        await bench.client.execute("host", "table for 2", session_id=bench.session)
        # Another client, as in another process: it knows the id and nothing else.
        async with connect(
            bench.store_url, temporal=bench.temporal, task_queue=bench.queue
        ) as other:
            await other.execute("host", "make it 3", session_id=bench.session)
    asked = [content for role, content in said(model.requests[-1]) if role == "user"]
    assert asked == ["table for 2", "make it 3"]


async def test_f2_create_is_idempotent_under_a_key(bench: Bench) -> None:
    create = bench.client.sessions.create
    given: dict[str, Any] = {"transcript": TRANSCRIPT, "idempotency_key": bench.session}
    made = await create("host", **given)
    assert (await create("host", **given)).session_id == made.session_id
    assert len(await bench.client.sessions.list()) == 1
    with pytest.raises(IdempotencyMismatchError) as caught:
        await create("host", **{**given, "transcript": TRANSCRIPT[:1]})
    assert caught.value.code == "PERDURE_IDEMPOTENCY_MISMATCH"
    with pytest.raises(IdempotencyMismatchError):
        await create("host", session_id="other", **given)
    assert len(await bench.client.sessions.list()) == 1


@pytest.mark.parametrize("written", [False, True])
async def test_f2_a_create_that_is_cut_off_is_whole_or_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    async def cut_off(*args: Any, **kwargs: Any) -> None:
        if written:
            await creating.create_session(*args, **kwargs)
        raise KeyboardInterrupt

    given: dict[str, Any] = {"session_id": bench.session, "idempotency_key": bench.session}
    with monkeypatch.context() as patched:
        patched.setattr(directory, "create_session", cut_off)
        with pytest.raises(KeyboardInterrupt):
            await bench.client.sessions.create("host", **given)
    if written:
        session = await bench.client.sessions.create("host", **given)
        assert (await session.info()).status == "idle"
        return
    with pytest.raises(IdempotencyAmbiguousError):
        await bench.client.sessions.create("host", **given)
    assert await bench.client.sessions.list() == []


async def test_f3_a_session_begins_with_a_transcript(bench: Bench) -> None:
    model = bench.model("unused", "At nine, then.")
    session = await bench.client.sessions.create(
        "host", session_id=bench.session, transcript=TRANSCRIPT
    )
    first = await bench.events()
    assert [each.type for each in first] == [
        "user/message",
        "transcript_delta",
        "session/end-seed",
    ]
    assert (await session.info()).status == "idle"
    assert await bench.client.resume(bench.session) is None
    async with bench.serving(Agent("host", provider=model, instructions="Be brief.")):
        await bench.client.execute("host", "At nine", session_id=bench.session)
    (request,) = model.requests
    assert said(request)[0] == ("system", "Be brief.")
    assert said(request)[1:] == [
        *((message["role"], message["content"]) for message in TRANSCRIPT),
        ("user", "At nine"),
    ]
    assert (await bench.events())[: len(first)] == first


async def test_f3_a_session_begins_with_events(bench: Bench) -> None:
    model = bench.model("One.", "Two.")
    async with bench.serving(Agent("host", provider=model)):
        await bench.client.execute("host", "First", session_id=bench.session)
        given = await bench.events()
        seeded = await bench.client.sessions.create("host", seed=given)
        await bench.client.execute("host", "Second", session_id=seeded.session_id)
    log = await bench.events(session_id=seeded.session_id)
    seen = [(each.seq, each.type, each.time_ms, each.data) for each in log]
    # Who wrote them is not taken from a seed, which anybody can make up.
    assert seen[: len(given)] == [(e.seq, e.type, e.time_ms, e.data) for e in given]
    assert log[len(given)].type == "session/end-seed"
    assert [content for _, content in said(model.requests[-1])] == ["First", "One.", "Second"]
    # What it began with was paid for elsewhere.
    assert (await seeded.usage(own=True)).total_tokens == 110
    assert (await seeded.usage()).total_tokens == 220


@pytest.mark.parametrize(
    "arguments",
    [
        {"transcript": TRANSCRIPT, "seed": []},
        {"transcript": [{"role": "tool", "content": "?", "toolCallId": "a"}]},
        {"seed": [{"seq": 1, "type": "user/message", "data": {"message": {}}}]},
        {"seed": [{"seq": 0, "type": "turn/start", "data": {}}]},
        {"seed": ["no event"]},
        {"metadata": {"x": float("nan")}},
        {"metadata": []},
        {"cwd": 7},
        {"agent": ""},
    ],
)
async def test_what_cannot_be_created_leaves_nothing(
    bench: Bench, arguments: dict[str, Any]
) -> None:
    given = {"agent": "host", "session_id": bench.session, **arguments}
    with pytest.raises(ConfigurationError):
        await bench.client.sessions.create(**given)
    with pytest.raises(SessionIdInvalidError):
        await bench.client.sessions.create("host", session_id="no id")
    assert await bench.store.session(bench.session) is None


async def test_a_new_session_needs_a_new_id(bench: Bench) -> None:
    create = bench.client.sessions.create
    await create("host", session_id=bench.session)
    with pytest.raises(SessionExistsError, match="already"):
        await create("host", session_id=bench.session)


async def test_f4_the_list_is_by_activity_and_reads_no_log(bench: Bench) -> None:
    model = bench.model("a", "b", "c")
    sessions = bench.client.sessions
    async with bench.serving(Agent("host", provider=model), Agent("other", provider=model)):
        for session_id in ("b", "c", "a"):
            await bench.client.execute("host", "Hi", session_id=f"{bench.session}-{session_id}")
        await bench.client.execute("other", "Hi", session_id=f"{bench.session}-other")
    # Reading one is no activity.
    await (await sessions.open(f"{bench.session}-b")).info()
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        page = await sessions.list("host", limit=2)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert not [each for each in statements if "perdure_events" in each]
    assert [each.session_id[-1] for each in page] == ["a", "c"]
    assert page.next_cursor is not None
    rest = await sessions.list("host", limit=2, cursor=page.next_cursor)
    assert ([each.session_id[-1] for each in rest], rest.next_cursor) == (["b"], None)
    assert len(await sessions.list(status="finished")) == 4
    assert await sessions.list(status="ended") == []
    with pytest.raises(ConfigurationError, match="cursor"):
        await sessions.list(cursor="nonsense")


async def test_f5_opening_an_unknown_session_is_an_error(bench: Bench) -> None:
    with pytest.raises(SessionNotFoundError):
        await bench.client.sessions.open(bench.session)
    assert await bench.client.running(bench.session) is None
    assert bench.client.sessions.get(bench.session).cached is None


async def test_f7_the_record_is_read_afresh(bench: Bench) -> None:
    model = bench.model([call("look", {})], "Done.")
    gate = bench.gate()

    @tool(read_only=True)
    async def look() -> str:
        await gate.hold()
        raise ValueError("nothing there")

    async with bench.serving(Agent("host", provider=model, tools=[look])):
        handle = await bench.client.start("host", "Look", session_id=bench.session)
        await gate.reached()
        session = await bench.client.sessions.open(bench.session)
        before = session.cached
        assert before is not None
        assert (before.status, before.open_tools) == ("running", ["call_1_1"])
        gate.open()
        await handle.result()
        assert session.cached is before
        now = await session.info()
    assert (now.status, now.open_tools, now.tool_errors) == ("idle", [], 1)
    assert now.last_turn == {"kind": "completed"}
    assert now.through_sequence > before.through_sequence
    assert now.to_json()["header"]["id"] == bench.session


async def test_f8_the_header_never_changes_and_no_model_sees_it(bench: Bench) -> None:
    model = bench.model(*(f"Answer {n}" for n in range(10)))
    session = await bench.client.sessions.create(
        "host", session_id=bench.session, cwd="/w", metadata={"user": "ann"}
    )
    before = (await session.info()).header
    assert (before.version, before.cwd, before.is_seeded) == (1, "/w", False)
    for turns in (5, 5):
        async with bench.serving(Agent("host", provider=model, instructions="Help.")):
            for n in range(turns):
                await bench.client.execute("host", f"Message {n}", session_id=bench.session)
    assert (await session.info()).header.to_json() == before.to_json()
    shown = str([request.messages for request in model.requests])
    assert "/w" not in shown
    assert "ann" not in shown


async def test_f10_an_ended_session_takes_no_messages(bench: Bench) -> None:
    model = bench.model([call("wait", {})], "unused")
    gate = bench.gate()
    cleaned: list[str] = []

    @tool(read_only=True)
    async def wait(ctx: ToolContext) -> str:
        try:
            await gate.hold()
        finally:
            cleaned.append(ctx.tool_call_id)
        return "never"

    async with bench.serving(Agent("host", provider=model, tools=[wait])):
        await bench.client.start("host", "Wait", session_id=bench.session)
        await gate.reached()
        session = bench.client.sessions.get(bench.session)
        await session.end()
        assert cleaned == ["call_1_1"]
        assert (await session.info()).status == "ended"
        assert await bench.client.running(bench.session) is None
        log = await bench.events()
        assert [each.type for each in log][-2:] == ["turn/end", "session/ended"]
        with pytest.raises(SessionEndedError) as caught:
            await bench.client.execute("host", "More", session_id=bench.session)
        assert caught.value.code == "PERDURE_SESSION_ENDED"
        with pytest.raises(SessionEndedError):
            await bench.client.resume(bench.session)
        # A program in any language is told so too.
        started = await bench.start_plain({"agent": "host", "input": "More"})
        with pytest.raises(WorkflowFailureError) as failed:
            await started.result()
        assert "takes no more messages" in str(failed.value.cause)
        await session.end()
        assert await bench.events() == log


async def test_f10_an_end_that_was_cut_off_lets_nothing_in(bench: Bench) -> None:
    from perdure.checkpoint_bridge.ending import begin_end

    model = bench.model("Hi.")
    async with bench.serving(Agent("host", provider=model)):
        await bench.client.execute("host", "Hi", session_id=bench.session)
        await begin_end(bench.store, bench.session)
        session = await bench.client.sessions.open(bench.session)
        assert (await session.info()).status == "ending"
        with pytest.raises(SessionEndedError):
            await bench.client.execute("host", "More", session_id=bench.session)
    await session.end()
    assert (await session.info()).status == "ended"


async def test_f11_only_what_has_ended_is_deleted(bench: Bench) -> None:
    model = bench.model("Hi.")
    sessions = bench.client.sessions
    async with bench.serving(Agent("host", provider=model)):
        await bench.client.execute("host", "Hi", session_id=bench.session)
        before = await bench.events()
        with pytest.raises(SessionActiveError) as caught:
            await sessions.delete(bench.session)
        assert caught.value.code == "PERDURE_SESSION_ACTIVE"
        assert await bench.events() == before
        await sessions.get(bench.session).end()
        await sessions.delete(bench.session)
        with pytest.raises(SessionNotFoundError):
            await sessions.open(bench.session)
        assert await bench.client.history(bench.session) == []
        await bench.client.execute("host", "Hi", session_id=bench.session)
        await sessions.delete(bench.session, force=True)
    assert await bench.store.session(bench.session) is None
    with pytest.raises(SessionNotFoundError):
        await sessions.delete(bench.session)


async def test_f13_a_session_starts_over_under_its_id(bench: Bench) -> None:
    model = bench.model("First.")
    async with bench.serving(Agent("host", provider=model)):
        for keep_history in (False, True):
            await bench.client.execute("host", "My name is Ann", session_id=bench.session)
            await bench.client.delete(bench.session, keep_history=keep_history)
            await bench.client.execute("host", "hi", session_id=bench.session)
            assert said(model.requests[-1]) == [("user", "hi")]
            await bench.client.delete(bench.session)


async def test_a_lost_run_ends_with_its_session(bench: Bench) -> None:
    model = bench.model([call("pay", {})])

    @tool(needs_approval=True, idempotent=True)
    async def pay() -> str:
        return "paid"

    async with bench.serving(Agent("host", provider=model, tools=[pay])):
        await bench.client.execute("host", "Pay", session_id=bench.session)
        await bench.workflow().terminate()
    session = await bench.client.sessions.open(bench.session)
    assert (await session.info()).status == "awaiting-approval"
    await session.end()
    info = await session.info()
    assert (info.status, info.last_turn) == ("ended", {"kind": "interrupted"})
    assert await bench.client.approvals.list() == []
    assert info.updated_at <= now_ms()


async def test_f15_a_hook_vetoes_a_session(bench: Bench) -> None:
    async def refuse(_session_id: str) -> None:
        raise PermissionError("no sessions today")

    hooks = SessionHooks(on_session_created=refuse)
    store = SqlStore(bench.store_url, hooks=hooks)
    async with connect(store, temporal=bench.temporal, task_queue=bench.queue) as client:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="no sessions today"):
                await client.sessions.create("host", idempotency_key=bench.session)
        assert await client.sessions.list() == []


async def test_f103_a_record_without_a_status_is_unfinished(bench: Bench) -> None:
    done: list[str] = []

    @tool(idempotent=True)
    async def look() -> str:
        done.append("look")
        return "seen"

    asked = {"role": "assistant", "content": "", "toolCalls": [call("look", id="c1")]}
    record = {
        "agentId": "host",
        "sessionId": bench.session,
        "stepIndex": 1,
        "messages": [{"role": "user", "content": "Look"}, asked],
    }
    await bench.store.save(bench.session, Checkpoint.from_json(record))
    async with bench.serving(Agent("host", provider=bench.model("unused", "Seen."), tools=[look])):
        result = await bench.client.resume(bench.session)
    assert result is not None
    assert (result.text, done) == ("Seen.", ["look"])


async def test_f10_the_command_ends_a_session(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    await bench.client.sessions.create("host", session_id=bench.session)
    where = [
        "--store",
        bench.store_url,
        "--temporal",
        bench.temporal.service_client.config.target_host,
    ]
    assert await asyncio.to_thread(run, ["end", bench.session, "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "ended"
    assert (await bench.client.sessions.list(status="ended"))[0].state == "ended"
    assert await asyncio.to_thread(run, ["end", "nope", *where]) == 2
