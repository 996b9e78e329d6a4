"""A bench for tests of whole runs: the real worker here, a SQLite file, a scripted model.

What must hold for every run is checked here, when a test has ended: each request to the model
was one that every provider takes, the histories that Temporal keeps replay, and nothing begins
behind a cancel.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.worker import Replayer

import perdure.worker
from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.client import connect
from perdure.testing import ScriptedModel
from perdure.worker import serving
from perdure.workflows.agent_workflow import AgentWorkflow
from tests.histories.checks import begun_behind_a_cancel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from temporalio.client import Client as TemporalClient, WorkflowHandle, WorkflowHistory
    from temporalio.worker import Worker

    from perdure import Agent
    from perdure.activities.providers.base import ModelRequest, ModelResponse
    from perdure.checkpoint_bridge.log.events import Event
    from perdure.client import Client

LONG = 30.0
"""Seconds after which something that a test waits for counts as never coming."""


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(LONG):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def held(store_url: str) -> AsyncIterator[None]:
    """Keep everybody from writing to a SQLite store; what reads it still can."""
    with contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


class Gate:
    """Holds whoever comes until the test lets it through; for async code and for threads."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def open(self) -> None:
        self._opened.set()

    async def reached(self) -> None:
        await until(self._reached.is_set)

    async def hold(self) -> None:
        self._reached.set()
        await until(self._opened.is_set)

    def hold_thread(self) -> None:
        self._reached.set()
        assert self._opened.wait(LONG)


class Model(ScriptedModel):
    """A scripted model that is as strict about transcripts as the strictest provider."""

    def __init__(self, turns: Sequence[Any], **options: Any) -> None:
        super().__init__(turns, **options)
        self.refused: list[str] = []
        self._gates: dict[int, Gate] = {}

    def gate(self, turn: int) -> Gate:
        """Hold the answer of a turn (from 1)."""
        return self._gates.setdefault(turn, Gate())

    async def generate(self, request: ModelRequest) -> ModelResponse:
        try:
            assert_valid(request.messages)
        except ValueError as error:
            self.refused.append(str(error))
        turn = 1 + sum(message["role"] == "assistant" for message in request.messages)
        if turn in self._gates:
            await self._gates[turn].hold()
        return await super().generate(request)


class Bench:
    """Everything that a test of runs needs, with ids of its own."""

    def __init__(self, client: Client, store_url: str) -> None:
        self.client = client
        self.temporal: TemporalClient = client.temporal
        self.store: SqlStore = client.store
        self.store_url = store_url
        self.queue = client.task_queue
        self.session = f"session-{uuid.uuid4().hex[:12]}"
        self.models: list[Model] = []
        self.gates: list[Gate] = []
        self.replay_all = True
        """Whether what ran is replayed at the end (not where a test changes the workflow)."""

    def model(self, *turns: Any, **options: Any) -> Model:
        model = Model(turns, **options)
        self.models.append(model)
        return model

    def gate(self) -> Gate:
        gate = Gate()
        self.gates.append(gate)
        return gate

    @contextlib.asynccontextmanager
    async def serving(self, *agents: Agent, **options: Any) -> AsyncIterator[Worker]:
        """A worker with a store of its own, as another process would have."""
        async with (
            SqlStore(self.store_url) as store,
            serving(self.temporal, agents, store, task_queue=self.queue, **options) as worker,
        ):
            yield worker

    async def until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        """Wait for a condition."""
        await until(condition)

    def workflow(self, session_id: str | None = None) -> WorkflowHandle[Any, Any]:
        """The plain Temporal handle of a session's newest run."""
        return self.temporal.get_workflow_handle(session_id or self.session)

    async def start_plain(self, request: Any, session_id: str | None = None) -> Any:
        """Start the workflow as a program in any language would: by name, with plain JSON."""
        return await self.temporal.start_workflow(
            "AgentWorkflow", request, id=session_id or self.session, task_queue=self.queue
        )

    async def state(self, session_id: str | None = None) -> dict[str, Any]:
        state: dict[str, Any] = await self.workflow(session_id).query("state")
        return state

    async def pending(self, session_id: str | None = None) -> str:
        """Wait until the session waits for a decision; returns the approval's id."""
        found: list[Any] = []

        async def waits() -> bool:
            found[:] = await self.store.approvals(session_id or self.session)
            return bool(found)

        await until(waits)
        approval_id: str = found[0].id
        return approval_id

    async def events(self, *types: str, session_id: str | None = None) -> list[Event]:
        """The session's log, or its events of some types."""
        found = await self.store.events(session_id or self.session)
        assert [event.seq for event in found] == list(range(len(found)))
        return [event for event in found if not types or event.type in types]

    async def saves(self, session_id: str | None = None) -> list[tuple[int, str, str, int]]:
        """All saves, oldest first: step, status, finish reason, and how many messages."""
        return [
            (
                entry.step,
                entry.status,
                entry.checkpoint.finish_reason or "",
                len(entry.checkpoint.messages),
            )
            for entry in reversed(await self.client.history(session_id or self.session))
        ]

    async def record(self, session_id: str | None = None) -> dict[str, Any]:
        """The newest checkpoint as plain JSON."""
        checkpoint = await self.client.checkpoint(session_id or self.session)
        assert checkpoint is not None
        return checkpoint.to_json()

    async def results(self, session_id: str | None = None) -> list[dict[str, Any]]:
        """The transcript's tool messages."""
        record = await self.record(session_id)
        return [message for message in record["messages"] if message["role"] == "tool"]

    async def histories(self, session_id: str | None = None) -> list[WorkflowHistory]:
        """What Temporal keeps of all executions under the session's id, oldest first."""
        found: list[WorkflowHistory] = []
        run_id: str | None = None
        while True:
            handle = self.temporal.get_workflow_handle(session_id or self.session, run_id=run_id)
            history = await handle.fetch_history()
            found.append(history)
            started = history.events[0].workflow_execution_started_event_attributes
            run_id = started.continued_execution_run_id or None
            if run_id is None:
                return found[::-1]

    async def replay(self, *session_ids: str) -> None:
        """Replay all executions of the newest run of sessions; one that goes on is ended first."""
        replayer = Replayer(
            workflows=[AgentWorkflow],
            workflow_runner=perdure.worker.workflow_runner(),
            debug_mode=True,  # a busy machine is no deadlock; a worker would just try again
            data_converter=self.temporal.data_converter,
        )
        for session_id in session_ids:
            handle = self.workflow(session_id)
            if await self.client.running(session_id) is not None:
                await handle.terminate()
            for history in await self.histories(session_id):
                await replayer.replay_workflow(history)
                assert begun_behind_a_cancel(history) == []


@pytest.fixture
async def bench(temporal_client: TemporalClient, store_url: str) -> AsyncIterator[Bench]:
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    async with connect(store_url, temporal=temporal_client, task_queue=queue) as client:
        bench = Bench(client, store_url)
        yield bench
        for gate in bench.gates:
            gate.open()
        refused = [reason for model in bench.models for reason in model.refused]
        assert refused == []
        if bench.replay_all:
            # Not those that were made or forked and never run.
            ran = [row for row in await bench.store.sessions() if row.writer]
            await bench.replay(*[row.session_id for row in ran])


@pytest.fixture
def session(bench: Bench) -> str:
    """The session id of a test that needs one."""
    return bench.session


@pytest.fixture
def shorten(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From the call on, an execution rolls over after a few events instead of thousands."""

    def call(events: int = 60) -> None:
        monkeypatch.setattr("perdure.workflows.options.EVENTS_PER_EXECUTION", events)

    return call
