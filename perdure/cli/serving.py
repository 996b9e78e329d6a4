"""``perdure worker`` and ``perdure dev``: processes that serve agents until they are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import exits
from perdure.cli.codec import ui_codec
from perdure.cli.loading import load_agents
from perdure.cli.options import (
    DEFAULT_STORE,
    DEFAULT_TASK_QUEUE,
    MirrorOption,
    NamespaceOption,
    StoreOption,
    TaskQueueOption,
    TemporalOption,
    Where,
)
from perdure.cli.output import note, progress
from perdure.cli.rollout import (
    BuildIdOption,
    DeploymentOption,
    GraceOption,
    PinnedOption,
    ReadyFileOption,
    Rollout,
)
from perdure.cli.signals import StopSignals
from perdure.cli.text import one_line
from perdure.event_loop import run_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.client import Client as TemporalClient

    from perdure.agent import Agent
    from perdure.checkpoint_bridge.errors import PerdureError
    from perdure.dev_server import DevServer

PORT = 7233
UI_PORT = 8233
STATE_DIRECTORY = Path(".perdure")

_log = logging.getLogger("perdure.worker")

_LOOK_EVERY = 0.5
"""Seconds between two looks whether our server lives."""

AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="Your agents: MODULE[:ATTRIBUTE] or FILE.py[:ATTRIBUTE].",
        show_default=False,
    ),
]
TracebackOption = Annotated[
    bool,
    typer.Option(
        "--traceback", envvar="PERDURE_TRACEBACK", help="Show where your module fails to load."
    ),
]
LogLevelOption = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]


def worker(
    app: AppArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
    task_queue: TaskQueueOption = DEFAULT_TASK_QUEUE,
    mirrors: MirrorOption = None,
    deployment: DeploymentOption = None,
    build_id: BuildIdOption = None,
    pinned: PinnedOption = False,
    grace: GraceOption = None,
    ready_file: ReadyFileOption = None,
    log_level: LogLevelOption = "info",
    show_traceback: TracebackOption = False,
) -> int:
    """Serve your agents: run their models and tools until SIGTERM or Ctrl-C.

    Calls in flight may finish; a second Ctrl-C ends at once.
    """
    set_up_logs(log_level)
    apply_environment()
    rollout = Rollout(deployment, build_id, pinned, grace, ready_file)
    agents = load_agents(app, show_traceback=show_traceback)
    where = Where(store, temporal, namespace, task_queue, tuple(mirrors or ()))
    run_server(_work(agents, where, rollout))
    return exits.DONE


def dev(
    app: AppArgument,
    *,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep Temporal's state in memory only.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    task_queue: TaskQueueOption = DEFAULT_TASK_QUEUE,
    mirrors: MirrorOption = None,
    log_level: LogLevelOption = "info",
    show_traceback: TracebackOption = False,
) -> int:
    """Run everything on this machine: a Temporal server with its UI, and a worker.

    Temporal's state is kept in .perdure/ of the current directory.
    """
    set_up_logs(log_level)
    apply_environment()
    agents = load_agents(app, show_traceback=show_traceback)
    where = Where(store, task_queue=task_queue, mirrors=tuple(mirrors or ()))
    run_server(_develop(agents, where, ephemeral=ephemeral))
    return exits.DONE


def set_up_logs(level: str) -> None:
    """Send the logs of the worker, of tools and of temporalio to standard error.

    Raises:
        ConfigurationError: there is no such level.
    """
    from perdure.checkpoint_bridge.errors import ConfigurationError

    known = ("debug", "info", "warning", "error")
    if level.lower() not in known:
        msg = f"--log-level is one of {', '.join(known)}, not {level!r}."
        raise ConfigurationError(msg, field="--log-level")
    form = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=form)
    if level.lower() != "debug":
        for handler in logging.root.handlers:
            handler.addFilter(_short_failure)
    # Both tell at info what they do all the time; a worker's log is about runs.
    for name in ("alembic", "httpx"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))


def apply_environment() -> None:
    """Send traces and metrics where the environment says so, and tell what it switches on.

    Raises:
        ConfigurationError: its keys are none, or what it names is not installed.
    """
    from perdure.checkpoint_bridge.keyring import KEYS_VARIABLE, Keyring
    from perdure.checkpoint_bridge.redaction import redact
    from perdure.telemetry import export_from_environment

    keys = Keyring.from_environment()
    if keys is not None:
        _log.info(
            "Encrypting what Temporal and the store get, with the key %s of %s",
            keys.active,
            KEYS_VARIABLE,
        )
    for kind, endpoint in export_from_environment().items():
        _log.info("Sending %s to %s", kind, redact(endpoint))


def _short_failure(record: logging.LogRecord) -> bool:
    """Tell a failure that has a code of ours in one line: its traceback is temporalio's."""
    error = record.exc_info[1] if record.exc_info else None
    details = getattr(error, "details", None)
    wire = details[0] if isinstance(details, (list, tuple)) and details else None
    if record.name.startswith("temporalio.") and isinstance(wire, dict) and "code" in wire:
        task = getattr(record, "temporal_activity", None) or {}
        record.msg = "%s of %s failed: %s [%s]"
        record.args = (
            task.get("activity_type", "A call"),
            task.get("workflow_id", "a run"),
            one_line(str(wire.get("message"))),
            wire["code"],
        )
        record.exc_info = record.exc_text = None
    return True


async def _work(agents: Sequence[Agent], where: Where, rollout: Rollout) -> None:
    from perdure.connection import check_namespace, connect_temporal, quiet_core

    quiet_core()
    _check(where)
    rollout.check()
    client = await connect_temporal(where.temporal, where.namespace)
    await check_namespace(client)
    await _serve(client, agents, where, rollout=rollout)


def _check(where: Where) -> None:
    """Tell of a wrong address before Temporal is asked."""
    from perdure.checkpoint_bridge.stores.addresses import stores_of

    where.open_store(create=True)
    stores_of(where.mirrors)


async def _develop(agents: Sequence[Agent], where: Where, *, ephemeral: bool) -> None:
    from perdure.connection import connect_temporal, quiet_core
    from perdure.search_attributes import register

    quiet_core()
    _check(where)
    state = None if ephemeral else _state_file()
    codec = ui_codec()
    with progress("Starting Temporal"):
        server = await _start_server(state, codec.arguments if codec else ())
    if state is not None:
        _address_file().write_text(server.address, "utf-8")
    try:
        client = await connect_temporal(server.address, "default")
        await register(client)
        _introduce(server, agents, where)
        async with codec.serving(server.ui_url) if codec else contextlib.nullcontext():
            await _serve(client, agents, where, server)
    finally:
        await server.stop()


async def _start_server(state: Path | None, arguments: Sequence[str]) -> DevServer:
    """Start the server on Temporal's own ports, or on free ones where those are taken."""
    from perdure.checkpoint_bridge.errors import ConfigurationError
    from perdure.dev_server import DevServer

    server = DevServer(db_filename=state, port=PORT, ui_port=UI_PORT, extra_args=arguments)
    try:
        await server.start()
    except ConfigurationError as error:
        if error.field != "port":
            raise
        note(f"Port {PORT} or {UI_PORT} is in use by another program; taking free ones.")
        server = DevServer(db_filename=state, extra_args=arguments)
        await server.start()
    return server


def _state_file() -> Path:
    from perdure.checkpoint_bridge.errors import ConfigurationError

    try:
        STATE_DIRECTORY.mkdir(exist_ok=True)
        ignore = STATE_DIRECTORY / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", "utf-8")
    except OSError as error:
        msg = f"Temporal's state cannot be kept in {STATE_DIRECTORY}: {error.strerror or error}"
        hint = "Run it in a directory of yours, or with --ephemeral."
        raise ConfigurationError(msg, field="app", hint=hint) from error
    state = STATE_DIRECTORY / "temporal.db"
    _refuse_a_second(state)
    return state


def _address_file() -> Path:
    """Where the address of the server that uses the state is, for the next ``perdure dev``."""
    return STATE_DIRECTORY / "address"


def _refuse_a_second(state: Path) -> None:
    """Name the server that has the state already; one that is ending is waited for later.

    Raises:
        ConfigurationError: there is one, and it answers.
    """
    from perdure.checkpoint_bridge.errors import ConfigurationError
    from perdure.dev_server import is_locked

    try:
        address = _address_file().read_text("utf-8")
        host, _, port = address.rpartition(":")
        if not is_locked(state):
            return
        socket.create_connection((host, int(port)), timeout=1).close()
    except (OSError, ValueError):
        return
    msg = f"`perdure dev` runs in this directory already; its Temporal is at {address}."
    hint = f"Serve other agents there: perdure worker APP --temporal {address}"
    raise ConfigurationError(msg, field="app", hint=hint)


def _introduce(server: DevServer, agents: Sequence[Agent], where: Where) -> None:
    # Other terminals find Temporal by themselves only at its usual address.
    usual = server.address == f"127.0.0.1:{PORT}"
    there = Where(where.store, None if usual else server.address, None, where.task_queue)
    run = there.command("run", agents[0].name, "Hello", "--session-id", "first")
    note(
        f"Temporal    {server.address}\n"
        f"Temporal UI {server.ui_url}\n"
        f"Task queue  {where.task_queue}\n"
        f"Store       {where.store}\n"
        f"\n"
        f"In another terminal:\n"
        f"  {run}\n"
        f"  {there.command('sessions', store_only=True)}\n"
        f"  {there.command('approvals', store_only=True)}\n"
    )


async def _serve(
    client: TemporalClient,
    agents: Sequence[Agent],
    where: Where,
    server: DevServer | None = None,
    rollout: Rollout | None = None,
) -> None:
    """Serve until a signal comes or our own server dies; then let calls in flight finish."""
    from perdure.worker import serving

    stop = StopSignals()
    store = where.open_store(create=True)
    rollout = rollout or Rollout()
    try:
        async with serving(
            client,
            agents,
            store,
            task_queue=where.task_queue,
            mirrors=where.mirrors,
            **rollout.worker_options(),
        ):
            with rollout.ready():
                _log.info(
                    "Serving %s on task queue %s of Temporal at %s (namespace %s); store %s",
                    ", ".join(agent.name for agent in agents),
                    where.task_queue,
                    client.service_client.config.target_host,
                    client.namespace,
                    store.database,
                )
                async with stop:
                    await _until_stopped(stop.asked, server)
            _log.info("Stopping: calls in flight may finish; Ctrl-C again ends at once")
    except asyncio.CancelledError:
        # A worker that has lost its server fails by itself, and cancels whoever holds it.
        if server is None or server.running:
            raise
        raise _server_ended(server) from None
    finally:
        await store.close()
    _log.info("Stopped")


async def _until_stopped(asked: asyncio.Event, server: DevServer | None) -> None:
    """Wait for the request to stop.

    Raises:
        TemporalUnavailableError: the server that we started ended first.
    """
    while server is None or server.running:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if server is None else _LOOK_EVERY):
                await asked.wait()
            return
    raise _server_ended(server)


def _server_ended(server: DevServer) -> PerdureError:
    from perdure.checkpoint_bridge.errors import TemporalUnavailableError

    last = server.log_tail(1)
    msg = f"The Temporal server at {server.address} ended" + (f": {last}" if last else ".")
    return TemporalUnavailableError(msg, hint="Start `perdure dev` again; runs go on from there.")
