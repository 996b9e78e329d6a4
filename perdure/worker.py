"""Workers: they run the agents' models and tools, and the workflow code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner

from perdure.activities.children import Answers
from perdure.activities.local_calls import LOCAL_CALLS
from perdure.activities.log_writer import LogWriter
from perdure.activities.model_call import ModelCall
from perdure.activities.opening import Opening
from perdure.activities.providers.registry import aclose_providers
from perdure.activities.tool_call import ToolCall
from perdure.activities.turn_stopping import TurnStopping
from perdure.agent import Agent
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.mirrors.mirror import mirroring
from perdure.checkpoint_bridge.option_checks import listed
from perdure.connection import (
    DEFAULT_TASK_QUEUE,
    check_names,
    check_temporal,
    client_of,
    store_at,
)
from perdure.encryption import is_private, resolve
from perdure.private_logs import without_content
from perdure.search_attributes import usable
from perdure.telemetry import observing
from perdure.tools import AgentTool
from perdure.workflows.agent_workflow import AgentWorkflow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from concurrent.futures import Executor

    from temporalio.client import Client

    from perdure.checkpoint_bridge.stores.addresses import Targets
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.encryption import Encryption

GRACEFUL_SHUTDOWN = timedelta(seconds=10)
"""How long a worker that was told to stop lets its calls finish."""

_CALLS_AT_A_TIME = 100
HEARTBEAT_EVERY = timedelta(seconds=1)
_STICKY_TIMEOUT = timedelta(seconds=2)
"""A dead worker's runs move to another one after this, instead of Temporal's ten seconds."""


def workflow_runner() -> WorkflowRunner:
    """How the workflow code runs; worker and replayer take it from here.

    Without temporalio's sandbox: it guards against workflow code that does what it must not, and
    ours is fixed, holds nothing of a user's, and is kept deterministic by tests (imports, calls,
    recorded histories). The sandbox costs a third of a worker's CPU, and reads the code from
    disk again for every run, so an upgrade under a running worker would break it
    (``docs/decisions/0009``).
    """
    return UnsandboxedWorkflowRunner()


def activities(
    agents: Iterable[Agent],
    store: SqlStore,
    threads: Executor,
    *,
    private: bool = False,
    attributes: Sequence[str] = (),
) -> list[Any]:
    """Everything that a worker serves besides the workflow.

    ``private`` is as in ``Deps``, ``attributes`` as in ``Opening``.

    Raises:
        ConfigurationError: there is no agent, or two have one name.
    """
    named: dict[str, Agent] = {}
    given = agents_of(agents)
    for agent in given:
        if agent.name in named:
            msg = f"Two agents are named {agent.name!r}."
            raise ConfigurationError(msg, field="agents")
        named[agent.name] = agent
    for agent in given:
        _add_sub_agents(agent, named)
    if not named:
        msg = "A worker needs at least one agent."
        raise ConfigurationError(msg, field="agents")
    opening = Opening(named, store, threads, private=private)
    opening.attributes = attributes
    writer = LogWriter(named, store, threads, private=private)
    return [
        opening.open_run,
        writer.append_log,
        writer.apply_input,
        writer.record_decision,
        writer.close_run,
        ModelCall(named, store, threads, private=private).call_model,
        ToolCall(named, store, threads, private=private).run_tool,
        TurnStopping(named, store, threads).turn_stopping,
        Answers(named, store, threads, private=private).read_answer,
    ]


def agents_of(given: Iterable[Agent]) -> list[Agent]:
    """The agents as a list.

    Raises:
        ConfigurationError: something else is among them, or it is one that is in no list.
    """
    return listed("agents", given, Agent, "Agents")


def _add_sub_agents(agent: Agent, named: dict[str, Agent]) -> None:
    """Serve the agents that an agent can call, too, and those that they can call."""
    for each in agent.tools.values():
        if not isinstance(each, AgentTool):
            continue
        known = named.get(each.agent.name)
        if known is None:
            named[each.agent.name] = each.agent
            _add_sub_agents(each.agent, named)
        elif known is not each.agent:
            msg = f"Two agents are named {each.agent.name!r}; {agent.name!r} calls one of them."
            raise ConfigurationError(msg, field="agents")


@contextlib.asynccontextmanager
async def serving(
    client: Client,
    agents: Iterable[Agent],
    store: SqlStore,
    *,
    task_queue: str = DEFAULT_TASK_QUEUE,
    mirrors: Targets = None,
    **options: Any,
) -> AsyncIterator[Worker]:
    """Serve agents while the block runs; at its end calls in flight may finish.

    Args:
        client: connected to Temporal.
        agents: who is served, by name.
        store: where the sessions are; it is opened here.
        task_queue: where runs of these agents are started.
        mirrors: stores in the documented format, or their addresses, that get every save.
        **options: further options of :class:`temporalio.worker.Worker`.

    Raises:
        ConfigurationError: there is no agent, or two have one name.
        StorageError: the store cannot be opened.
    """
    check_names(task_queue)
    private = is_private(client.data_converter)
    await store.open()
    attributes = await usable(client)
    threads = tool_threads()
    settings: dict[str, Any] = {
        "max_concurrent_activities": _CALLS_AT_A_TIME,
        "max_heartbeat_throttle_interval": HEARTBEAT_EVERY,
        "sticky_queue_schedule_to_start_timeout": _STICKY_TIMEOUT,
        "graceful_shutdown_timeout": GRACEFUL_SHUTDOWN,
        **options,
    }
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=[AgentWorkflow],
        activities=activities(agents, store, threads, private=private, attributes=attributes),
        workflow_runner=workflow_runner(),
        **settings,
    )
    # Around the worker: what its last calls save is mirrored too.
    async with hosting(store, threads, mirrors=mirrors, private=private), worker:
        yield worker


def tool_threads() -> Executor:
    """Threads for the plain (not async) tools of one worker."""
    return concurrent.futures.ThreadPoolExecutor(
        _CALLS_AT_A_TIME * LOCAL_CALLS, thread_name_prefix="perdure-tool"
    )


@contextlib.asynccontextmanager
async def hosting(
    store: SqlStore, threads: Executor, *, mirrors: Targets, private: bool
) -> AsyncIterator[None]:
    """What a worker of agents has around it: mirrors, metrics, logs; its threads end with it."""
    try:
        with without_content() if private else contextlib.nullcontext():
            async with mirroring(store, mirrors) as active:
                with observing(store, active):
                    yield
    finally:
        await aclose_providers()
        # Nobody can stop a thread: a plain tool that hangs must not keep its worker alive.
        threads.shutdown(wait=False, cancel_futures=True)


async def run_worker(
    agents: Iterable[Agent],
    *,
    store: str | SqlStore,
    temporal: str | Client | None = None,
    namespace: str | None = None,
    task_queue: str = DEFAULT_TASK_QUEUE,
    mirrors: Targets = None,
    encryption: Encryption = None,
) -> None:
    """Serve agents until this is cancelled.

    Args:
        agents: who is served, by name.
        store: the store's address, or a store.
        temporal: ``HOST:PORT`` or a connected client; default: the environment's configuration.
        namespace: the Temporal namespace, with an address.
        task_queue: where runs of these agents are started.
        mirrors: stores in the documented format, or their addresses, that get every save.
        encryption: keys that encrypt what Temporal gets, around whatever codec a given client has,
            and the content of a store that is given by its address;
            default: those of ``PERDURE_ENCRYPTION_KEYS``, if it is set. ``False``: none.

    Raises:
        ConfigurationError: there is no agent, two have one name, or an address is wrong.
        StorageError: the store cannot be opened.
        TemporalUnavailableError: Temporal does not answer.
    """
    keys = resolve(encryption)
    check_names(task_queue)
    check_temporal(temporal)
    agents = agents_of(agents)
    sessions = store_at(store, keys)
    temporal = await client_of(temporal, namespace, keys)
    try:
        async with serving(temporal, agents, sessions, task_queue=task_queue, mirrors=mirrors):
            await asyncio.Event().wait()
    finally:
        if isinstance(store, str):
            await sessions.close()
