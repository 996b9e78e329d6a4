"""Clients and workers that were given different stores, and decisions without a worker."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

import perdure.client_approvals
import perdure.run_handle
from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.errors import ConfigurationError, LogConflictError
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.client import connect
from perdure.connection import connect_temporal
from perdure.testing import call
from perdure.worker import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from perdure.client import Client
    from tests.integration.runs.conftest import Bench


@tool(needs_approval=True)
async def charge(amount: int, ctx: ToolContext) -> str:
    return f"charged {amount} {ctx.attempt}"


def charging(bench: Bench) -> Agent:
    """An agent that waits for a person before its one call."""
    model = bench.model([call("charge", {"amount": 1})], "Done.")
    return Agent("agent", provider=model, tools=[charge])


async def pause(bench: Bench) -> tuple[str, str]:
    """Run it until it waits; the run's and the approval's id."""
    paused = await bench.client.execute("agent", "Hi", session_id=bench.session)
    assert paused.approval_id is not None
    return paused.run_id, paused.approval_id


@pytest.fixture
async def stranger(bench: Bench, tmp_path: Path) -> AsyncIterator[Client]:
    """A client that reads another store than the worker's."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    async with connect(url, temporal=bench.temporal, task_queue=bench.queue) as client:
        yield client


@contextlib.asynccontextmanager
async def stray_worker(bench: Bench, agent: Agent, folder: Path) -> AsyncIterator[SqlStore]:
    """A worker on the same task queue that was given another store."""
    temporal = await connect_temporal(bench.temporal.service_client.config.target_host)
    async with (
        SqlStore(f"sqlite:///{folder / 'stray.db'}") as store,
        serving(temporal, [agent], store, task_queue=bench.queue),
    ):
        yield store


async def _retries_for_want_of_a_store(bench: Bench) -> bool:
    found = await bench.workflow().describe()
    failures = [each.last_failure.message for each in found.raw_description.pending_activities]
    return any("does not hold session" in failure for failure in failures)


async def test_a_run_is_not_begun_for_a_caller_with_another_store(
    bench: Bench, stranger: Client
) -> None:
    model = bench.model("Hello.")
    async with bench.serving(Agent("agent", provider=model)):
        with pytest.raises(
            ConfigurationError, match="was not begun: its worker uses anoth"
        ) as raised:
            await stranger.execute("agent", "Hi", session_id=bench.session)
        assert raised.value.field == "store"
        assert str(bench.store.database) in str(raised.value)
        assert model.requests == []
        assert await bench.store.session(bench.session) is None
        # With the worker's own store nothing is in the way.
        assert (
            await bench.client.execute("agent", "Hi", session_id=bench.session)
        ).text == "Hello."


async def test_a_caller_whose_store_is_not_there_yet(bench: Bench, tmp_path: Path) -> None:
    """As the command line opens it: a wrong path is refused, a right one may come to be later."""
    model = bench.model("Hello.")
    agent = Agent("agent", provider=model)
    wrong = SqlStore(f"sqlite:///{tmp_path / 'typo.db'}", create="late")
    right = SqlStore(f"sqlite:///{tmp_path / 'stray.db'}", create="late")
    async with (
        connect(wrong, temporal=bench.temporal, task_queue=bench.queue) as stranger,
        connect(right, temporal=bench.temporal, task_queue=bench.queue) as early,
    ):
        handle = await early.start("agent", "Hi", session_id=f"{bench.session}-early")
        refused = await stranger.start("agent", "Hi", session_id=bench.session)
        async with stray_worker(bench, agent, tmp_path):
            assert (await handle.result()).text == "Hello."
            with pytest.raises(ConfigurationError, match="was not begun"):
                await refused.result()
    assert len(model.requests) == 1
    assert not (tmp_path / "typo.db").exists()


async def test_what_a_run_in_another_store_came_to_is_not_here(
    bench: Bench, stranger: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perdure.run_handle, "_STORE_AFTER", 0.5)
    agent = charging(bench)
    async with bench.serving(agent):
        run_id, approval_id = await pause(bench)
        handle = stranger.handle(bench.session, run_id)
        with pytest.raises(ConfigurationError, match="where its record is"):
            await handle.result()
        await bench.client.approvals.resolve(approval_id, approved=True)
        with pytest.raises(ConfigurationError, match="its worker uses another store"):
            await handle.result()


async def test_a_caller_with_a_copy_of_the_store(bench: Bench, tmp_path: Path) -> None:
    agent = charging(bench)
    async with bench.serving(agent):
        _, approval_id = await pause(bench)
        with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            bench_file = bench.store_url.removeprefix("sqlite:///")
            with contextlib.closing(sqlite3.connect(bench_file)) as source:
                source.backup(copy)
        url = f"sqlite:///{tmp_path / 'copy.db'}"
        async with connect(url, temporal=bench.temporal, task_queue=bench.queue) as late:
            with pytest.raises(ConfigurationError, match="its worker uses another store"):
                await late.approvals.resolve(approval_id, approved=True)
    assert await bench.client.checkpoint(bench.session) is not None


async def test_input_from_a_caller_with_another_store_is_refused(
    bench: Bench, stranger: Client
) -> None:
    model = bench.model("Hello.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        handle = await bench.client.start("agent", "Hi", session_id=bench.session)
        await gate.reached()
        with pytest.raises(ConfigurationError, match="goes on in another store"):
            await stranger.execute("agent", "And this", session_id=bench.session)
        gate.open()
        assert (await handle.result()).text == "Hello."


async def test_sub_agents_are_told_the_store_of_the_run_above(bench: Bench) -> None:
    asked = [call("helper", {"input": "Look"}), call("helper", {"input": "Look again"})]
    helper = Agent("helper", provider=bench.model("Nothing."))
    agent = Agent("agent", provider=bench.model(asked, "Done."), tools=[helper.as_tool()])
    async with bench.serving(agent, helper):
        await bench.client.execute("agent", "Hi", session_id=bench.session)
    identity = await bench.store.database.identity()
    requests = [
        bench.temporal.data_converter.payload_converter.from_payload(
            event.start_child_workflow_execution_initiated_event_attributes.input.payloads[0]
        )
        for history in await bench.histories()
        for event in history.events
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]
    assert [each["store"] for each in requests] == [identity, identity]


async def test_a_decision_waits_for_a_worker_that_has_the_session(
    bench: Bench, tmp_path: Path
) -> None:
    agent = charging(bench)
    async with bench.serving(agent):
        _, approval_id = await pause(bench)
    decision = {"id": approval_id, "approved": True}
    async with stray_worker(bench, agent, tmp_path):
        await bench.workflow().signal("resolve_approval", decision)
        await bench.until(lambda: _retries_for_want_of_a_store(bench))
    async with bench.serving(agent):
        assert (await bench.workflow().result())["text"] == "Done."
    assert [each.data["approved"] for each in await bench.events("approval/decided")] == [True]


async def test_a_worker_with_another_store_cannot_go_on(bench: Bench, tmp_path: Path) -> None:
    """It says why; with a worker that has the store, the session goes on."""
    model = bench.model("Done.")
    gate = model.gate(1)
    agent = Agent("agent", provider=model)
    async with bench.serving(agent):
        handle = await bench.client.start("agent", "Hi", session_id=bench.session)
        await gate.reached()
    async with stray_worker(bench, agent, tmp_path) as other:
        with pytest.raises(LogConflictError, match="was deleted, or it is in another store"):
            await handle.result()
        assert await other.sessions() == []
    gate.open()
    async with bench.serving(agent):
        result = await bench.client.resume(bench.session)
    assert result is not None
    assert result.text == "Done."


async def test_a_run_that_ends_before_it_is_left_a_decision_begins_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perdure.client_approvals, "_UPDATE_SECONDS", 0.5)
    agent = charging(bench)
    async with bench.serving(agent):
        run_id, approval_id = await pause(bench)
    is_taken = bench.client.approvals._is_taken

    async def ended(*of: Any) -> bool:
        monkeypatch.undo()
        monkeypatch.setattr(perdure.client_approvals, "_UPDATE_SECONDS", 0.5)
        await bench.workflow().terminate()
        return await is_taken(*of)

    monkeypatch.setattr(bench.client.approvals, "_is_taken", ended)
    handle = await bench.client.approvals.decide(approval_id, approved=True)
    assert handle.run_id != run_id
    async with bench.serving(agent):
        result = await handle.result(after_approval=approval_id)
    assert result.text == "Done."


async def test_a_decision_without_a_worker_waits_for_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perdure.client_approvals, "_UPDATE_SECONDS", 0.5)
    agent = charging(bench)
    async with bench.serving(agent):
        _, approval_id = await pause(bench)
    handle = await bench.client.approvals.decide(approval_id, approved=True, by="ana")
    async with bench.serving(agent):
        result = await handle.result(after_approval=approval_id)
    assert result.text == "Done."
    (decided,) = await bench.events("approval/decided")
    assert decided.data["by"] == "ana"
