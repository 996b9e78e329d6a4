"""Whole runs, mirrored: what other stores hold is what our own history says, save for save."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge import LoushoFileStore, LoushoSqliteStore
from perdure.client import connect
from perdure.testing import call
from perdure.worker import serving

if TYPE_CHECKING:
    from pathlib import Path


@tool(idempotent=True)
def weather(city: str) -> dict[str, str]:
    """Look it up."""
    return {"city": city, "sky": "clear é\ud83d"}


@tool(idempotent=True, needs_approval=True)
def book(hotel: str) -> str:
    """Book it."""
    return f"booked {hotel}"


@pytest.fixture
def stores(tmp_path: Path) -> list[Any]:
    """One of each of the TypeScript SDK's forms."""
    return [LoushoSqliteStore(tmp_path / "theirs.db"), LoushoFileStore(tmp_path / "theirs")]


async def is_done(mirrors: Any) -> bool:
    return not any([await mirror.lag() for mirror in mirrors])


def as_text(entries: Any) -> list[str]:
    return [json.dumps(entry.to_json(), sort_keys=True) for entry in entries]


async def test_a_run_is_there_entry_for_entry(bench, stores):
    model = bench.model(
        [call("weather", {"city": "Rome"}), call("weather", {"city": "Oslo"})],
        [call("weather", {"city": "x" * 9000})],
        "Go to Rome.",
    )
    agent = Agent("trip", provider=model, tools=[weather])
    async with serving(
        bench.temporal, [agent], bench.store, task_queue=bench.queue, mirrors=stores
    ):
        result = await bench.client.execute(
            "trip", "Plan it", session_id=bench.session, business_state={"a": 1}
        )
        assert result.text == "Go to Rome."
    # The worker that ends has let them catch up.
    ours = await bench.client.history(bench.session)
    assert len(ours) == 6
    for store in stores:
        assert as_text(await store.history(bench.session)) == as_text(ours)
        assert (await store.load(bench.session)).to_json() == await bench.record()
    await stores[0].close()


async def test_a_rejection_in_the_middle_of_a_batch_save_for_save(bench, stores):
    model = bench.model(
        [
            call("weather", {"city": "Rome"}),
            call("book", {"hotel": "Ritz"}),
            call("weather", {"city": "Oslo"}),
        ],
        "Then not.",
    )
    agent = Agent("trip", provider=model, tools=[weather, book])
    async with (
        bench.serving(agent),
        connect(
            bench.store_url, mirror=stores, temporal=bench.temporal, task_queue=bench.queue
        ) as client,
    ):
        paused = await client.execute("trip", "Plan it", session_id=bench.session)
        assert paused.approval_id is not None
        await bench.until(lambda: is_done(client.mirrors))
        (ours,) = await client.approvals.list()
        for store in stores:
            (waiting,) = await store.pending_approvals()
            assert {**waiting.pending.to_json(), "sessionId": bench.session} == ours.to_json()
            snapshot = waiting.snapshot
            assert snapshot.pending_tool_call.id == "call_1_2"
            assert [each.id for each in snapshot.remaining_tool_calls or []] == ["call_1_3"]
            assert snapshot.current_messages == paused.messages
            assert (snapshot.agent, snapshot.steps) == ("trip", 1)
            assert snapshot.session_id == bench.session
            assert snapshot.usage == paused.usage
            assert snapshot.agent_fingerprint == agent.fingerprint()
        done = await client.approvals.resolve(paused.approval_id, approved=False, note="not today")
        assert done.text == "Then not."
        await bench.until(lambda: is_done(client.mirrors))
    in_progress = [(1, "in-progress", "tool_calls", count) for count in (2, 3)]
    assert await bench.saves() == [
        *in_progress,
        (1, "awaiting-approval", "awaiting-approval", 3),
        (1, "in-progress", "tool_calls", 4),
        (1, "in-progress", "tool_calls", 5),
        (2, "finished", "stop", 6),
    ]
    (_, rejected, _) = await bench.results()
    assert json.loads(rejected["content"]) == {
        "error": "ToolRejectedError",
        "toolName": "book",
        "message": "Tool execution was rejected by the reviewer",
        "kind": "rejected",
        "toolCallId": "call_1_2",
        "note": "not today",
    }
    for store in stores:
        found = await store.history(bench.session)
        assert as_text(found) == as_text(await bench.client.history(bench.session))
        assert await store.pending_approvals() == []
        assert found[3].checkpoint.approval_id == paused.approval_id
    await stores[0].close()


async def test_a_pause_of_a_sub_agent_is_a_nested_snapshot(bench, stores):
    clerk = Agent(
        "clerk",
        provider=bench.model([call("book", {"hotel": "Alba"})], "Booked."),
        tools=[book],
    )
    model = bench.model(
        [call("weather", {"city": "Rome"}), call("clerk", {"input": "Go"})], "Done."
    )
    lead = Agent("lead", provider=model, tools=[weather, clerk.as_tool()])
    async with serving(bench.temporal, [lead], bench.store, task_queue=bench.queue, mirrors=stores):
        paused = await bench.client.execute("lead", "Go", session_id=bench.session)
        for store in stores:
            await bench.until(lambda store=store: has_pause(store, bench.session))
            (kept,) = await store.pending_approvals()
            assert kept.pending.id == paused.approval_id
            assert kept.pending.subagent_path == ["lead", "clerk"]
            assert kept.pending.tool_name == "book"
            assert kept.snapshot.agent == "lead"
            assert kept.snapshot.subagent["agentName"] == "clerk"
            inner = kept.snapshot.subagent["snapshot"]
            assert inner["pendingToolCall"]["function"]["name"] == "book"
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True)
        assert result.text == "Done."
    for store in stores:
        entries = await store.history(bench.session)
        assert entries[0].checkpoint.status == "finished"


async def has_pause(store: Any, session_id: str) -> bool:
    checkpoint = await store.load(session_id)
    return checkpoint is not None and checkpoint.approval_id is not None
