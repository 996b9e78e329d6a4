"""``perdure cancel``: stops a run, or ends it where nobody is there to stop it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import exits
from perdure.cli.options import (
    DEFAULT_STORE,
    DEFAULT_TASK_QUEUE,
    JsonOption,
    NamespaceOption,
    SessionArgument,
    StoreOption,
    TaskQueueOption,
    TemporalOption,
    TimeoutOption,
    Where,
    seconds_option,
)
from perdure.cli.output import note, print_json
from perdure.cli.running import connected, not_found

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.run_handle import RunHandle


def cancel(
    session: SessionArgument,
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="End it without its worker, when that does not answer."),
    ] = False,
    timeout: TimeoutOption = None,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
    task_queue: TaskQueueOption = DEFAULT_TASK_QUEUE,
    as_json: JsonOption = False,
) -> int:
    """Stop a session's run. What is finished stays, and the session can be continued.

    With --force the run is terminated in Temporal: a call that a worker is in may go on to its
    end, and its outcome is looked for when the session is continued.
    """
    where = Where(store, temporal, namespace, task_queue)
    seconds_option("--timeout", timeout)
    return asyncio.run(_cancel(where, session, timeout, force=force, as_json=as_json))


async def _cancel(
    where: Where,
    session_id: str,
    timeout: float | None,  # noqa: ASYNC109 - the run goes on to its end when it passes
    *,
    force: bool,
    as_json: bool,
) -> int:
    # The run may be one that no worker has taken yet, so there is no store.
    async with connected(where, create=True) as client:
        handle = await client.running(session_id)
        stored = await client.store.session(session_id) is not None
        if handle is None and not stored:
            raise await not_found(where, session_id)
        if handle is not None:
            if force:
                await _terminate(client, handle)
            else:
                await handle.cancel()
            await _wait_for_end(client, handle, where, timeout)
            stored = await client.store.session(session_id) is not None
    if as_json:
        stopped = None if handle is None else handle.run_id
        print_json({"sessionId": session_id, "stoppedRunId": stopped})
    if handle is None:
        note(f"No run of session {session_id} goes on.")
        return exits.DONE
    note(f"The run of session {session_id} was stopped.")
    if stored:
        note(f"Go on with it: {where.command('resume', session_id)}")
    else:
        note("It had not begun, so there is no session to go on with.")
    return exits.DONE


def end(
    session: SessionArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
    task_queue: TaskQueueOption = DEFAULT_TASK_QUEUE,
    as_json: JsonOption = False,
) -> int:
    """End a session: it takes no more messages, its run is stopped, its history stays.

    Nothing opens it again; a fork goes on from where it was.
    """
    where = Where(store, temporal, namespace, task_queue)

    async def run() -> None:
        async with connected(where) as client:
            await client.sessions.get(session).end()

    asyncio.run(run())
    if as_json:
        print_json({"sessionId": session, "status": "ended"})
    note(f"Session {session} has ended.")
    note(f"Go on from it in a fork: {where.command('fork', session, store_only=True)}")
    return exits.DONE


async def _terminate(client: Client, handle: RunHandle) -> None:
    from temporalio.service import RPCError, RPCStatusCode

    from perdure.connection import rpc_failure

    workflow = client.temporal.get_workflow_handle(
        client.workflow_id_prefix + handle.session_id, first_execution_run_id=handle.run_id
    )
    try:
        await workflow.terminate(reason="perdure cancel --force")
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:  # it has ended meanwhile
            raise rpc_failure(error, client.temporal) from error


async def _wait_for_end(
    client: Client,
    handle: RunHandle,
    where: Where,
    timeout: float | None,  # noqa: ASYNC109 - as above
) -> None:
    from perdure.cli.waiting import wait_for

    session_id = handle.session_id

    async def ended() -> None:
        while (now := await client.running(session_id)) and now.run_id == handle.run_id:  # noqa: ASYNC110 - Temporal tells nobody
            await asyncio.sleep(0.1)

    await wait_for(
        ended(),
        client,
        session_id,
        where,
        text=f"Stopping {session_id}",
        timeout=timeout,
        advice=(
            "It stops when a worker comes. End it without one: "
            + where.command("cancel", session_id, "--force")
        ),
    )
