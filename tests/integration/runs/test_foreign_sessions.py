"""Sessions that the TypeScript SDK left in its file are continued here, and handed back."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, ForkPatch, tool
from perdure.checkpoint_bridge import Checkpoint, LoushoSqliteStore
from perdure.checkpoint_bridge.errors import SessionAwaitingApprovalError, SessionConflictError
from perdure.checkpoint_bridge.mirrors.importing import import_session
from perdure.client import connect
from perdure.testing import call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from perdure.client import Client

SESSION = "trip-of-theirs"
TABLES = (
    """
    CREATE TABLE sessions (id TEXT PRIMARY KEY, payload TEXT NOT NULL,
      created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL);
    CREATE INDEX a1 ON sessions (updated_at);
    CREATE TABLE checkpoints (session_id TEXT PRIMARY KEY, payload TEXT NOT NULL,
      created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL);
    CREATE INDEX a2 ON checkpoints (updated_at);
    CREATE TABLE approvals (id TEXT PRIMARY KEY, payload TEXT NOT NULL,
      created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, resolved_at INTEGER);
    CREATE INDEX a3 ON approvals (resolved_at);
    """,
    """
    CREATE TABLE checkpoint_history (id INTEGER PRIMARY KEY AUTOINCREMENT,
      session_id TEXT NOT NULL, step INTEGER NOT NULL, status TEXT NOT NULL,
      saved_at INTEGER NOT NULL, payload TEXT NOT NULL);
    CREATE INDEX b1 ON checkpoint_history (session_id, id);
    CREATE INDEX b2 ON checkpoint_history (saved_at);
    """,
    """
    CREATE TABLE memory_items (scope_key TEXT PRIMARY KEY, payload TEXT NOT NULL,
      updated_at INTEGER NOT NULL);
    """,
    """
    CREATE TABLE oauth_tokens (key TEXT PRIMARY KEY, payload TEXT NOT NULL,
      updated_at INTEGER NOT NULL);
    CREATE TABLE oauth_pending (state TEXT PRIMARY KEY, payload TEXT NOT NULL,
      expires_at INTEGER NOT NULL);
    """,
)


def asked(*names: str) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{name}",
            "type": "function",
            "function": {"name": name, "arguments": '{"city": "Rome"}'},
        }
        for name in names
    ]
    return {"role": "assistant", "content": "I look.", "toolCalls": calls}


def answered(name: str, content: str = '"theirs"') -> dict[str, Any]:
    call_id = f"call_{name}"
    return {
        "role": "tool",
        "content": content,
        "name": name,
        "toolCallId": call_id,
        "toolName": name,
    }


def checkpoint(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = [{"role": "system", "content": "Theirs."}, {"role": "user", "content": "Plan it"}]
    calls = [each for message in messages for each in message.get("toolCalls", [])]
    return {
        "agentId": "trip",
        "sessionId": SESSION,
        "stepIndex": 1,
        "messages": head + list(messages),
        "toolCalls": calls,
        "usage": {"promptTokens": 7, "completionTokens": 3, "totalTokens": 10},
        "finishReason": "tool_calls",
        "businessState": None,
        "theirOwnKey": {"kept": [1.5, None]},
        **more,
    }


def make_file(
    path: Path,
    version: int,
    record: dict[str, Any],
    history: list[dict[str, Any]] | None = None,
    approval: dict[str, Any] | None = None,
) -> None:
    """A file as the TypeScript SDK of that version leaves it."""
    with closing(sqlite3.connect(path)) as connection:
        for tables in TABLES[:version]:
            connection.executescript(tables)
        insert = "INSERT INTO checkpoints VALUES (?, ?, 1, 2)"
        connection.execute(insert, [SESSION, json.dumps(record)])
        if version > 1:
            for number, each in enumerate(history or []):
                connection.execute(
                    "INSERT INTO checkpoint_history (session_id, step, status, saved_at, payload)"
                    " VALUES (?, ?, 'in-progress', ?, ?)",
                    [SESSION, each["stepIndex"], 1_700_000_000_000 + number, json.dumps(each)],
                )
        if approval is not None:
            insert = "INSERT INTO approvals VALUES (?, ?, 1, 1, NULL)"
            connection.execute(insert, [approval["pending"]["id"], json.dumps(approval)])
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()


class Trip:
    """An agent that is to go on, and what it did."""

    def __init__(self, bench: Any, *turns: Any, gated: str = "") -> None:
        self.ran: list[str] = []
        self.model = bench.model(*turns)

        def named(name: str) -> Any:
            @tool(name=name, idempotent=True, needs_approval=name == gated)
            def run(city: str) -> str:
                self.ran.append(name)
                return f"{name} of {city}"

            return run

        self.agent = Agent(
            "trip", provider=self.model, tools=[named(name) for name in ("weather", "hotel", "car")]
        )


@contextlib.asynccontextmanager
async def mirrored(bench: Any, path: Path, trip: Trip) -> AsyncIterator[Client]:
    async with (
        bench.serving(trip.agent),
        connect(
            bench.store_url,
            mirror=f"lousho-sqlite:{path}",
            temporal=bench.temporal,
            task_queue=bench.queue,
        ) as client,
    ):
        yield client
        await bench.until(lambda: is_up_to_date(client))


async def is_up_to_date(client: Client) -> bool:
    return await client.mirrors[0].lag() == 0


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("first", [True, False])
async def test_exactly_the_missing_call_of_an_interrupted_turn_runs(
    bench, tmp_path, version, first
):
    path = tmp_path / "theirs.db"
    names = ("weather", "hotel")
    there, missing = names if first else names[::-1]
    turn = asked(*names)
    before, now = checkpoint(turn), checkpoint(turn, answered(there))
    make_file(path, version, now, [before, now])
    trip = Trip(bench, None, "All done.")
    async with mirrored(bench, path, trip) as client:
        result = await client.resume(SESSION)
        assert result is not None
        assert (result.text, result.finish_reason, result.steps) == ("All done.", "stop", 2)
        assert trip.ran == [missing]
        (request,) = trip.model.requests
        assert request.messages[:3] == now["messages"][:3]
        contents = {there: '"theirs"', missing: f'"{missing} of Rome"'}
        assert request.messages[3:] == [answered(name, contents[name]) for name in names]
        ours = await client.history(SESSION)
    async with LoushoSqliteStore(path) as file:
        loaded = await file.load(SESSION)
        assert loaded is not None
        assert loaded.status == "finished"
        assert loaded.to_json() == (await bench.record(SESSION))
        assert loaded.raw["theirOwnKey"] == {"kept": [1.5, None]}
        assert loaded.raw["businessState"] is None
        entries = await file.history(SESSION)
        assert [entry.to_json() for entry in entries] == [entry.to_json() for entry in ours]
        # Theirs, the missing result, the end; version 1 had no history.
        assert len(entries) == (3 if version == 1 else 4)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)


async def test_new_input_goes_on_with_a_session_of_theirs(bench, tmp_path):
    path = tmp_path / "theirs.db"
    done = checkpoint({"role": "assistant", "content": "Go to Rome."}, status="finished")
    make_file(path, 4, done, [done])
    trip = Trip(bench, None, "By train.", "By plane.")
    async with mirrored(bench, path, trip) as client:
        assert await client.resume(SESSION) is None
        result = await client.execute("trip", "How?", session_id=SESSION)
        assert result.text == "By train."
        assert [message["content"] for message in trip.model.requests[0].messages] == [
            "Theirs.",
            "Plan it",
            "Go to Rome.",
            "How?",
        ]
        fork = await client.fork(SESSION, 1, ForkPatch(append_input="And back?"))
        await bench.until(lambda: is_up_to_date(client))
        async with LoushoSqliteStore(path) as file:
            assert [entry.step for entry in await file.history(SESSION)] == [1, 1]
            assert (await file.load(fork.session_id)) == fork.checkpoint
        resumed = await client.resume(fork.session_id)
        assert resumed is not None
        assert resumed.text == "By plane."


def paused(**snapshot: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint that waits for a decision on the second of three calls, and its approval."""
    turn = asked("weather", "hotel", "car")
    record = checkpoint(
        turn,
        answered("weather"),
        {"role": "user", "content": "And hurry"},
        status="awaiting-approval",
        finishReason="awaiting-approval",
        approvalId="their-approval",
    )
    calls = turn["toolCalls"]
    pending = {
        "id": "their-approval",
        "toolCallId": "call_hotel",
        "toolName": "hotel",
        "args": {"city": "Rome"},
        "createdAt": "2026-01-02T03:04:05.678Z",
        "theirOwnKey": 1,
    }
    made = {
        "agent": "trip",
        "currentMessages": record["messages"],
        "pendingToolCall": calls[1],
        "steps": 1,
        "sessionId": SESSION,
        "remainingToolCalls": calls[2:],
        **snapshot,
    }
    approval = {"pending": pending, "snapshot": {k: v for k, v in made.items() if v is not None}}
    return record, approval


@pytest.mark.parametrize("approved", [True, False])
async def test_what_waits_there_is_decided_here(bench, tmp_path, approved):
    path = tmp_path / "theirs.db"
    record, approval = paused()
    make_file(path, 4, record, [record], approval)
    trip = Trip(bench, None, "Booked.", gated="hotel")
    async with mirrored(bench, path, trip) as client:
        with pytest.raises(SessionAwaitingApprovalError) as refused:
            await client.execute("trip", "Well?", session_id=SESSION)
        assert refused.value.approval_id == "their-approval"
        (waiting,) = await client.approvals.list()
        assert waiting.to_json() == {**approval["pending"], "sessionId": SESSION}
        assert await bench.record(SESSION) == record
        result = await client.approvals.resolve(waiting.id, approved=approved, note="ok")
        assert result.text == "Booked."
        assert trip.ran == (["hotel", "car"] if approved else ["car"])
        roles = [message["role"] for message in trip.model.requests[0].messages]
        assert roles == ["system", "user", "assistant", "tool", "tool", "tool", "user"]
    async with LoushoSqliteStore(path) as file:
        assert await file.pending_approvals() == []


async def test_an_old_pause_leaves_its_later_calls_alone(bench, tmp_path):
    path = tmp_path / "theirs.db"
    record, approval = paused(remainingToolCalls=None)
    make_file(path, 4, record, [record], approval)
    trip = Trip(bench, None, "Booked.", gated="hotel")
    async with mirrored(bench, path, trip) as client:
        with pytest.raises(SessionAwaitingApprovalError):
            await client.resume(SESSION)
        assert await bench.record(SESSION) == record
        await client.approvals.resolve("their-approval", approved=True)
        assert trip.ran == ["hotel"]
        *_, car, _ = trip.model.requests[0].messages
        assert car["isError"] is True
        assert json.loads(car["content"]) == {
            "error": "ToolNotRunError",
            "toolName": "car",
            "message": "Tool call was not run because the run paused before reaching it",
            "kind": "not-run",
            "toolCallId": "call_car",
        }


async def test_a_pause_without_its_approval_is_gated_again(bench, tmp_path):
    path = tmp_path / "theirs.db"
    record, _ = paused()
    make_file(path, 4, record, [record])
    trip = Trip(bench, None, "Booked.", gated="hotel")
    async with mirrored(bench, path, trip) as client:
        result = await client.resume(SESSION)
        assert result is not None
        assert result.finish_reason == "awaiting-approval"
        assert result.approval_id not in (None, "their-approval")
        assert trip.ran == []
        await client.approvals.resolve(str(result.approval_id), approved=True)
        assert trip.ran == ["hotel", "car"]


async def test_a_record_saved_into_our_store_is_gated_again_too(bench):
    record, _ = paused()
    await bench.store.save(SESSION, Checkpoint.from_json(record))
    trip = Trip(bench, None, "Booked.", gated="hotel")
    async with bench.serving(trip.agent):
        result = await bench.client.resume(SESSION)
        assert result.finish_reason == "awaiting-approval"
        await bench.client.approvals.resolve(result.approval_id, approved=False)


async def test_a_deleted_session_does_not_come_back_from_the_mirror(bench, tmp_path):
    path = tmp_path / "theirs.db"
    trip = Trip(bench, "One.", "Two.")
    async with mirrored(bench, path, trip) as client:
        await client.execute("trip", "Hi", session_id=bench.session)
        await bench.until(lambda: is_up_to_date(client))
        await client.delete(bench.session)
        assert await client.resume(bench.session) is None
        result = await client.execute("trip", "Hello", session_id=bench.session)
        assert result.text == "One."


async def test_a_mirror_that_is_down_stops_no_run(bench, tmp_path, caplog):
    path = tmp_path / "no" / "such" / "folder.db"
    trip = Trip(bench, "Hi.")
    async with (
        bench.serving(trip.agent),
        connect(
            bench.store_url,
            mirror=f"lousho-sqlite:{path}",
            temporal=bench.temporal,
            task_queue=bench.queue,
        ) as client,
    ):
        result = await client.execute("trip", "Hello", session_id=bench.session)
        assert result.text == "Hi."
        await bench.until(lambda: "lags by 1 saves" in caplog.text)
    assert "is not known" in caplog.text


async def test_a_run_that_goes_on_takes_no_record_from_outside(bench):
    gate = bench.gate()

    @tool(idempotent=True)
    async def slow() -> str:
        await gate.hold()
        return "done"

    model = bench.model([call("slow")], "Done.")
    async with bench.serving(Agent("slow", provider=model, tools=[slow])):
        handle = await bench.client.start("slow", "Go", session_id=bench.session)
        await gate.reached()
        current = await bench.client.checkpoint(bench.session)
        with pytest.raises(SessionConflictError, match="goes on or was cut off"):
            await bench.store.save(bench.session, current)
        gate.open()
        assert (await handle.result()).text == "Done."
    await bench.store.save(bench.session, current)
    assert await bench.record() == current.to_json()


async def test_an_import_says_who_goes_on(bench, tmp_path):
    path = tmp_path / "theirs.db"
    turn = asked("weather")
    make_file(path, 4, checkpoint(turn, agentId=""))
    trip = Trip(bench, None, "Sun.")
    async with LoushoSqliteStore(path) as file:
        await import_session(file, bench.store, SESSION, agent="trip")
    async with bench.serving(trip.agent):
        result = await bench.client.resume(SESSION)
    assert result.text == "Sun."
