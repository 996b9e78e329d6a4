"""Commands that start, answer and end runs. They need Temporal."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import sys
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    PerdureError,
    SessionAwaitingApprovalError,
)
from perdure.cli import exits
from perdure.cli.options import (
    DEFAULT_STORE,
    DEFAULT_TASK_QUEUE,
    MAX_COUNT,
    JsonOption,
    MirrorOption,
    NamespaceOption,
    NoWaitOption,
    SessionArgument,
    StoreOption,
    TaskQueueOption,
    TemporalOption,
    TimeoutOption,
    Where,
    json_option,
    seconds_option,
)
from perdure.cli.output import note, print_json, print_text
from perdure.cli.text import count, one_line, tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from perdure.client import Client
    from perdure.results import RunResult
    from perdure.run_handle import RunHandle

ApprovalArgument = Annotated[str, typer.Argument(metavar="APPROVAL", help="An approval's id.")]
NoteOption = Annotated[
    str | None,
    typer.Option("--note", help="For the model and the record.", show_default=False),
]
ByOption = Annotated[
    str | None, typer.Option("--by", help="Who decided, for the record.", show_default=False)
]

_FAILED_REASONS = ("aborted", "error")


def run(
    agent: Annotated[str, typer.Argument(help="The name of an agent that a worker serves.")],
    prompt: Annotated[str, typer.Argument(help="The user's message; - reads standard input.")],
    *,
    session_id: Annotated[
        str | None,
        typer.Option("--session-id", metavar="ID", help="Default: a new one.", show_default=False),
    ] = None,
    business_state: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="To keep with the session.", show_default=False),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="An object to record.", show_default=False),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_COUNT,
            help="Model answers that the run may have; default: the agent's.",
            show_default=False,
        ),
    ] = None,
    timeout: TimeoutOption = None,
    no_wait: NoWaitOption = False,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
    task_queue: TaskQueueOption = DEFAULT_TASK_QUEUE,
    mirrors: MirrorOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run an agent on a prompt, and print its answer or what it waits for.

    On a session that exists, the prompt continues its conversation.
    """
    where = Where(store, temporal, namespace, task_queue, tuple(mirrors or ()))
    if session_id is None:
        session_id = str(uuid.uuid4())
    options: dict[str, Any] = {"session_id": session_id, "max_steps": max_steps}
    if business_state is not None:
        options["business_state"] = json_option("--business-state", business_state)
    if metadata is not None:
        options["metadata"] = json_option("--metadata", metadata)
        if not isinstance(options["metadata"], dict):
            msg = '--metadata is a JSON object, such as \'{"team": "billing"}\'.'
            raise ConfigurationError(msg, field="metadata")
    text = _standard_input() if prompt == "-" else prompt
    if not text.strip():
        msg = "The prompt is empty; give the user's message."
        raise ConfigurationError(msg, field="prompt")

    async def start(client: Client) -> RunHandle:
        return await client.start(agent, text, **options)

    what = f"{one_line(agent, 60)} is at work"
    running = _Running(where, what, timeout=timeout, as_json=as_json, begun=False)
    return _run(running.follow(start, session_id, create=True, wait=not no_wait))


def resume(
    session: SessionArgument,
    *,
    timeout: TimeoutOption = None,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
    task_queue: TaskQueueOption = DEFAULT_TASK_QUEUE,
    mirrors: MirrorOption = None,
    as_json: JsonOption = False,
) -> int:
    """Finish a run that was interrupted, start a fork, or wait for a run that goes on."""
    where = Where(store, temporal, namespace, task_queue, tuple(mirrors or ()))
    running = _Running(where, f"{session} is at work", timeout=timeout, as_json=as_json)
    return _run(running.resume(session))


class Scope(enum.StrEnum):
    """What an approval is for."""

    ONCE = "once"
    SESSION = "session"


def approve(
    approval: ApprovalArgument,
    *,
    note: NoteOption = None,
    by: ByOption = None,
    result: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="For a call whose outcome is unknown: what it returned; it is not run again.",
            show_default=False,
        ),
    ] = None,
    scope: Annotated[
        Scope, typer.Option(help="session: do not ask about this tool again in this session.")
    ] = Scope.ONCE,
    timeout: TimeoutOption = None,
    no_wait: NoWaitOption = False,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
    task_queue: TaskQueueOption = DEFAULT_TASK_QUEUE,
    as_json: JsonOption = False,
) -> int:
    """Let a call that waits run, and wait for the run's end or next pause."""
    decision: dict[str, Any] = {"approved": True, "note": note, "by": by}
    if result is not None:
        decision["result"] = json_option("--result", result)
    if scope is not Scope.ONCE:
        decision["scope"] = scope.value
    where = Where(store, temporal, namespace, task_queue)
    running = _Running(where, "Going on after the approval", timeout=timeout, as_json=as_json)
    return _run(running.decide(approval, decision, wait=not no_wait))


def reject(
    approval: ApprovalArgument,
    *,
    note: NoteOption = None,
    by: ByOption = None,
    timeout: TimeoutOption = None,
    no_wait: NoWaitOption = False,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
    task_queue: TaskQueueOption = DEFAULT_TASK_QUEUE,
    as_json: JsonOption = False,
) -> int:
    """Give the model a rejection for a call that waits; the note tells it why."""
    decision = {"approved": False, "note": note, "by": by}
    where = Where(store, temporal, namespace, task_queue)
    running = _Running(where, "Going on after the rejection", timeout=timeout, as_json=as_json)
    return _run(running.decide(approval, decision, wait=not no_wait))


class _Running:
    """Follows one run, and says how it stands at the end."""

    def __init__(
        self,
        where: Where,
        text: str,
        *,
        timeout: float | None,
        as_json: bool,
        begun: bool = True,
    ) -> None:
        self.begun = begun
        """Whether there is a run that goes on when we stop waiting for it."""
        self.where = where
        self.text = text
        self.timeout = seconds_option("--timeout", timeout)
        self.as_json = as_json

    async def follow(
        self,
        begin: Callable[[Client], Awaitable[RunHandle]],
        session_id: str | None,
        *,
        create: bool = False,
        wait: bool = True,
        after_approval: str | None = None,
    ) -> int:
        """Begin something, wait for where it leads, and print that."""
        handle: RunHandle | None = None

        async def work() -> RunResult | None:
            nonlocal handle
            handle = await begin(client)
            self.begun = True
            return await handle.result(after_approval=after_approval) if wait else None

        async with connected(self.where, create=create) as client:
            try:
                result = await self._wait(work(), client, session_id)
            except SessionAwaitingApprovalError as error:
                raise self._with_command(error) from None
            except PerdureError as error:
                if after_approval is not None and handle is None:
                    _say_unsent(error)
                await self._add_how_to_go_on(client, session_id, error)
                raise
            assert handle is not None
            if result is None:
                return self._started(handle)
            return await self._ended(client, result)

    async def resume(self, session_id: str) -> int:
        """Resume a session, if there is anything to resume."""
        # The run that goes on may be one that no worker has taken yet, so there is no store.
        async with connected(self.where, create=True) as client:
            known = client.mirrors or await client.store.session(session_id) is not None
            if not known and await client.running(session_id) is None:
                raise await not_found(self.where, session_id)
            try:
                result = await self._wait(client.resume(session_id), client, session_id)
            except SessionAwaitingApprovalError as error:
                raise self._with_command(error) from None
            except PerdureError as error:
                await self._add_how_to_go_on(client, session_id, error)
                raise
            if result is not None:
                return await self._ended(client, result)
            if await client.store.session(session_id) is None:
                raise await not_found(self.where, session_id)
        if self.as_json:
            print_json(None)
        note(f"Nothing to resume: session {session_id} is finished.")
        return exits.DONE

    async def decide(self, approval_id: str, decision: dict[str, Any], *, wait: bool) -> int:
        """Decide about an approval and follow the run."""

        async def begin(client: Client) -> RunHandle:
            handle = await client.approvals.decide(approval_id, **decision)
            if handle.unanswered:
                note("No worker answers; Temporal keeps the decision until one takes it.")
            return handle

        session_id = await self._session_of(approval_id)
        return await self.follow(begin, session_id, wait=wait, after_approval=approval_id)

    async def _session_of(self, approval_id: str) -> str | None:
        """Whose approval it is, so that waiting can look at its run; errors come later."""
        async with self.where.open_store() as store:
            row = await store.approval(approval_id)
        return None if row is None else row.session_id

    async def _wait(self, work: Any, client: Client, session_id: str | None) -> Any:
        from perdure.cli.waiting import wait_for

        try:
            return await wait_for(
                work, client, session_id, self.where, text=self.text, timeout=self.timeout
            )
        except asyncio.CancelledError:
            if self.begun and session_id is not None:
                note("The run goes on by itself.")
                note(f"Wait for it: {self.where.command('resume', session_id)}")
                note(f"Stop it: {self.where.command('cancel', session_id)}")
            raise

    def _started(self, handle: RunHandle) -> int:
        if self.as_json:
            print_json({"sessionId": handle.session_id, "runId": handle.run_id})
        else:
            print_text(handle.session_id)
            note(f"It runs. Wait for it: {self.where.command('resume', handle.session_id)}")
        return exits.DONE

    async def _ended(self, client: Client, result: RunResult) -> int:
        if await client.store.session(result.session_id) is None:
            from perdure.cli.waiting import other_store

            raise other_store(client, result.session_id)
        if self.as_json:
            print_json(result.to_json())
        elif result.text:
            print_text(result.text)
        if result.finish_reason == "awaiting-approval":
            await self._tell_approval(client, result)
            return exits.AWAITING_APPROVAL
        if result.finish_reason in _FAILED_REASONS:
            msg = f"The run of session {result.session_id} ended: {result.finish_reason}."
            hint = f"Go on with it: {self.where.command('resume', result.session_id)}"
            exits.complain(msg, hint)
            return exits.FAILED
        reason = "" if result.finish_reason == "stop" else f" ({result.finish_reason})"
        note(
            f"Session {result.session_id} finished{reason}: "
            f"{count(result.steps, 'step')}, {tokens(result.usage)} tokens."
        )
        return exits.DONE

    async def _tell_approval(self, client: Client, result: RunResult) -> None:
        pending = await client.approvals.list(result.session_id)
        found = next((each for each in pending if each.id == result.approval_id), None)
        note(f"Session {result.session_id} waits for a decision on approval {result.approval_id}.")
        if found is not None:
            from perdure.cli.output import json_text

            note(f"  {found.tool_name} {one_line(json_text(found.args), 400)}")
        for word in ("approve", "reject"):
            note(f"{word.capitalize()} it: {self.where.command(word, str(result.approval_id))}")

    async def _add_how_to_go_on(
        self, client: Client, session_id: str | None, error: PerdureError
    ) -> None:
        """Say in the hint which session a failed run leaves, and how it goes on."""
        from perdure.cli.waiting import WAIT_TIMEOUT

        if session_id is None or not self.begun or error.code == WAIT_TIMEOUT:
            return
        row = await client.store.session(session_id)
        if row is not None and row.status == "in-progress":
            go_on = f"Then go on: {self.where.command('resume', session_id)}"
            error.hint = f"{error.hint} {go_on}".strip()

    def _with_command(self, error: SessionAwaitingApprovalError) -> SessionAwaitingApprovalError:
        error.hint = f"Approve it: {self.where.command('approve', error.approval_id)}"
        return error


async def not_found(where: Where, session_id: str) -> PerdureError:
    """The error for a session that is neither stored nor running: perhaps there is no store."""
    from perdure.checkpoint_bridge.stores.store import session_not_found

    try:
        async with where.open_store():
            return session_not_found(session_id)
    except PerdureError as error:
        return error


def _say_unsent(error: PerdureError) -> None:
    """A decision that no worker took in the time that somebody gave it is not sent.

    Raises:
        PerdureError: it is one.
    """
    from perdure.cli.waiting import WAIT_TIMEOUT

    if error.code == WAIT_TIMEOUT:
        msg = "No worker took the decision in that time; it was not sent."
        hint = "Leave --timeout out: after ten seconds Temporal keeps it for the next worker."
        raise PerdureError(msg, code=WAIT_TIMEOUT, hint=hint) from None


@contextlib.asynccontextmanager
async def connected(where: Where, *, create: bool = False) -> AsyncIterator[Client]:
    """A client. Temporal is asked first, so that nothing is written when it does not answer."""
    # A run's worker makes the store; one with another store must not leave an empty file here.
    store = where.open_store(
        create="late" if create else False
    )  # an address that is wrong is told before anything
    if not create:
        await store.open()
    from perdure.client import connect
    from perdure.connection import connect_temporal, quiet_core

    quiet_core()
    try:
        temporal = await connect_temporal(where.temporal, where.namespace)
        async with connect(
            store, mirror=where.mirrors, temporal=temporal, task_queue=where.task_queue
        ) as client:
            yield client
    finally:
        await store.close()


def _run(work: Any) -> int:
    code: int = asyncio.run(work)
    return code


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode() if hasattr(sys.stdin, "buffer") else ""
    except UnicodeDecodeError as error:
        msg = f"Standard input is not text: {error}"
        raise ConfigurationError(msg, field="prompt") from None
