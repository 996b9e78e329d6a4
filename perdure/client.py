"""The client: starts runs, answers approvals, reads and forks sessions."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

from perdure.activities.wire import INPUT_REF
from perdure.checkpoint_bridge.errors import (
    SessionAwaitingApprovalError,
    SessionConflictError,
)
from perdure.checkpoint_bridge.format.checkpoint import RunUsage
from perdure.checkpoint_bridge.format.fork import UNSET, ForkPatch
from perdure.checkpoint_bridge.format.ids import check_session_id
from perdure.checkpoint_bridge.format.transcript import input_messages
from perdure.checkpoint_bridge.log.events import FINISHED
from perdure.checkpoint_bridge.log.fold import spent
from perdure.checkpoint_bridge.mirrors.mirror import mirroring
from perdure.checkpoint_bridge.option_checks import flag
from perdure.checkpoint_bridge.tables.sessions import CLEARED, CREATED, refuse_ended
from perdure.client_approvals import ClientApprovals
from perdure.connection import (
    DEFAULT_TASK_QUEUE,
    check_names,
    check_temporal,
    client_of,
    store_at,
)
from perdure.encryption import resolve
from perdure.foreign import ForeignSessions
from perdure.results import Fork, RunResult
from perdure.session_runs import NewRun, SessionRuns
from perdure.sessions.directory import Sessions
from perdure.sizes import bounded, json_text

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Self

    from temporalio.client import Client as TemporalClient

    from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry
    from perdure.checkpoint_bridge.mirrors.mirror import Mirror
    from perdure.checkpoint_bridge.stores.addresses import Targets
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.sessions import SessionRow
    from perdure.encryption import Encryption
    from perdure.run_handle import RunHandle

INPUT_LIMIT = 64 * 1024
"""Bytes of input that the start request holds itself; more goes through the store."""


class Client:
    """Sessions on one Temporal namespace and one store. Made by :func:`connect`."""

    def __init__(
        self,
        temporal: TemporalClient,
        store: SqlStore,
        *,
        task_queue: str = DEFAULT_TASK_QUEUE,
        workflow_id_prefix: str = "",
        mirrors: Sequence[Mirror] = (),
        resources: contextlib.AsyncExitStack | None = None,
    ) -> None:
        self.task_queue = task_queue
        self.workflow_id_prefix = workflow_id_prefix
        self._runs = SessionRuns(temporal, store, task_queue=task_queue, prefix=workflow_id_prefix)
        self.approvals = ClientApprovals(self._runs)
        self.sessions = Sessions(self)
        self.mirrors = tuple(mirrors)
        """What this client writes saves to, unless a worker does."""
        self._foreign = ForeignSessions(store, self.mirrors)
        self._resources = resources or contextlib.AsyncExitStack()

    @property
    def temporal(self) -> TemporalClient:
        """The Temporal client, for whatever else Temporal can do."""
        return self._runs.temporal

    @property
    def store(self) -> SqlStore:
        """The store of the sessions."""
        return self._runs.store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let the mirrors catch up for a moment, and close all connections. Runs go on.

        What is asked of the client later raises :class:`.ClientClosedError`. Closing it again
        does nothing.
        """
        if self._runs.closed:
            return
        store, self._runs.closed = self.store, True
        await self._resources.aclose()
        await store.close()

    # -- runs --------------------------------------------------------------------------------

    async def execute(
        self,
        agent: str,
        input: str | list[dict[str, Any]],  # noqa: A002 - the format's word
        *,
        session_id: str | None = None,
        business_state: Any = UNSET,
        metadata: dict[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> RunResult:
        """Run an agent on input and wait for its end, or for its pause for an approval.

        On a session that exists, the input continues the conversation; a run that goes on
        already is joined (the same input) or gets the input behind its pending calls. What only
        a run's start can set (another agent, ``business_state``, ``metadata``, ``max_steps``) is
        then refused.

        Args:
            agent: the name of an agent that a worker serves.
            input: a text, or messages of the documented format; ``[]`` resumes.
            session_id: 1 to 128 of ``A-Z a-z 0-9 _ -``; default: a new one.
            business_state: any JSON to keep with the session; ``None`` clears it.
            metadata: a JSON object to record with the run.
            max_steps: model responses that this run may have; default: the agent's.

        Raises:
            ConfigurationError: an argument is wrong, or no worker serves the agent.
            SessionAwaitingApprovalError: a decision is pending; nothing was called.
            SessionEndedError: the session takes no more messages.
            PerdureError: the run failed; its session can be resumed.
        """
        handle = await self.start(
            agent,
            input,
            session_id=session_id,
            business_state=business_state,
            metadata=metadata,
            max_steps=max_steps,
        )
        return await handle.result()

    async def start(
        self,
        agent: str,
        input: str | list[dict[str, Any]],  # noqa: A002 - the format's word
        *,
        session_id: str | None = None,
        business_state: Any = UNSET,
        metadata: dict[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> RunHandle:
        """Start a run and return at once. Arguments and errors are those of :meth:`execute`."""
        return await self.begin(
            NewRun(
                agent,
                input,
                session_id=session_id,
                business_state=business_state,
                metadata=metadata,
                max_steps=max_steps,
            )
        )

    async def begin(self, run: NewRun) -> RunHandle:
        """:meth:`start` for session objects, too."""
        messages = input_messages(run.input)
        session_id, row = run.session_id, None
        if session_id is None:
            session_id = str(uuid.uuid4())
        else:
            row = await self._known(session_id)
        if row is not None:
            refuse_ended(row)
            if messages:
                await self._refuse_while_waiting(row)
        request: dict[str, Any] = {"agent": run.agent, "session_id": session_id}
        request.update(await self._input(session_id, run.input))
        if run.business_state is not UNSET:
            request["business_state"] = bounded("business_state", run.business_state)
        if run.metadata is not None:
            request["metadata"] = bounded("metadata", run.metadata)
        if run.max_steps is not None:
            request["max_steps"] = run.max_steps
        if run.claim is not None:
            request["claim"] = run.claim
        return await self._runs.start(request, join=run.join)

    async def resume(self, session_id: str) -> RunResult | None:
        """Finish an unfinished run or join the open one, and wait for its end or pause.

        A session that only a mirror holds is imported first.

        Returns:
            The result; ``None`` when nothing is pending.

        Raises:
            SessionAwaitingApprovalError: a decision is pending; resolve it instead.
            PerdureError: the run failed again.
        """
        row = await self.store.session(session_id)
        if row is None:
            row = await self._foreign.bring(session_id, needed=True)
        if row is None or row.status in (FINISHED, CLEARED, CREATED):
            # Of a run that no worker has taken yet, the store knows nothing.
            running = await self.running(session_id)
            return None if running is None else await running.result()
        refuse_ended(row)
        await self._refuse_while_waiting(row)
        return await (await self._runs.reopen(session_id)).result()

    def handle(self, session_id: str, run_id: str) -> RunHandle:
        """The handle of a run that was started before, here or elsewhere."""
        return self._runs.handle(session_id, run_id)

    async def claimed(self, session_id: str, claim: str) -> RunHandle | None:
        """The newest run of a session, if it was started under a claim; else ``None``."""
        return await self._runs.claimed(session_id, claim)

    async def running(self, session_id: str) -> RunHandle | None:
        """The run of a session that goes on (or waits) now, or ``None``."""
        return await self._runs.running(session_id)

    # -- sessions ----------------------------------------------------------------------------

    async def checkpoint(self, session_id: str) -> Checkpoint | None:
        """The newest checkpoint of a session, or ``None``."""
        return await self.store.load(session_id)

    async def history(self, session_id: str, limit: int | None = None) -> list[HistoryEntry]:
        """The saves that the store keeps, newest first; ``[]`` for an unknown session."""
        return await self.store.history(session_id, limit)

    async def usage(self, session_id: str) -> RunUsage:
        """What a session has cost: all runs' answers, and failed attempts whose cost is known.

        A run's own ``usage`` counts its answers alone. What a fork shares with its parent is
        counted there.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return RunUsage.from_json(spent(await self.store.events(session_id)))

    async def fork(
        self,
        session_id: str,
        from_step: int,
        patch: ForkPatch | None = None,
        new_session_id: str | None = None,
    ) -> Fork:
        """Start a new session from a step of another one; resume it like an unfinished run.

        Args:
            session_id: the source; its checkpoint and history stay as they are.
            from_step: a step that :meth:`history` keeps.
            patch: what is different in the fork.
            new_session_id: default: ``<session_id>.fork-<n>``.

        Raises:
            CheckpointNotFoundError: the history keeps no such step.
            ConfigurationError: the new id is taken, or the patch does not fit.
            SessionIdInvalidError: the new id cannot be one.
        """
        if new_session_id is not None:
            check_session_id(new_session_id)
        fork_id, checkpoint = await self.store.fork(
            session_id, from_step=from_step, patch=patch, new_session_id=new_session_id
        )
        return Fork(session_id=fork_id, step=from_step, checkpoint=checkpoint)

    async def delete(
        self, session_id: str, *, keep_history: bool = False, sub_agents: bool = False
    ) -> None:
        """Delete a session's checkpoint and, unless kept, all of its history.

        Forks that share its beginning keep it.

        Args:
            session_id: of the session.
            keep_history: delete the checkpoint only.
            sub_agents: delete the sessions of its sub-agents, and of theirs, in the same way.

        Raises:
            SessionNotFoundError: there is no such session.
            SessionConflictError: its run, or one of those, goes on; cancel it first. Nothing was
                deleted.
        """
        keep_history = flag("keep_history", keep_history)
        with_them = flag("sub_agents", sub_agents)
        await self.store.known_session(session_id)
        below = await self.store.sub_agents(session_id) if with_them else []
        for each in (session_id, *below):
            if await self.running(each) is not None:
                msg = f"Session {each!r} has a run that goes on; cancel it before you delete."
                raise SessionConflictError(msg, hint="Cancel the run, then delete the session.")
        # It itself last: what is cut off in the middle can be done again.
        for each in (*below, session_id):
            await self.store.delete(each, keep_history=keep_history)

    # -- inside ------------------------------------------------------------------------------

    async def _known(self, session_id: str) -> SessionRow | None:
        """The stored session; an id that is not stored must be one that callers may choose."""
        row = await self.store.session(session_id) if isinstance(session_id, str) else None
        if row is None and isinstance(session_id, str):
            # A mirror that is down stops no run; it does not write over what it holds itself.
            row = await self._foreign.bring(session_id, needed=False)
        if row is None:
            check_session_id(session_id)
        return row

    async def _refuse_while_waiting(self, row: SessionRow) -> None:
        if row.status != "awaiting-approval" or row.approval_id is None:
            return
        approval = await self.store.approval(row.approval_id)
        # A pause that came from outside without its approval is one that nobody can decide.
        if approval is None or approval.decided_at is not None:
            return
        msg = (
            f"Session {row.session_id!r} waits for approval {row.approval_id}; "
            "resolve it before you send new input."
        )
        raise SessionAwaitingApprovalError(
            msg, session_id=row.session_id, approval_id=row.approval_id
        )

    async def _input(self, session_id: str, given: Any) -> dict[str, Any]:
        if len(json_text("input", given)) <= INPUT_LIMIT:
            return {"input": given}
        return {INPUT_REF: await self.store.put_input(session_id, input_messages(given))}


class _Connecting:
    """What :func:`connect` gives: awaited it is a client, in ``async with`` a client to close."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        options = dict(self._options)
        store, temporal = options.pop("store"), options.pop("temporal")
        namespace, create = options.pop("namespace"), options.pop("create")
        mirror, keys = options.pop("mirror"), resolve(options.pop("encryption"))
        check_names(options["task_queue"], options["workflow_id_prefix"])
        check_temporal(temporal)
        sessions = store_at(store, keys, create=create)
        resources = contextlib.AsyncExitStack()
        await sessions.open()
        try:
            temporal = await client_of(temporal, namespace, keys)
            mirrors = await resources.enter_async_context(mirroring(sessions, mirror))
        except BaseException:
            await sessions.close()
            raise
        return Client(temporal, sessions, mirrors=mirrors, resources=resources, **options)


def connect(
    store: str | SqlStore = "sqlite:///perdure.db",
    *,
    mirror: Targets = None,
    temporal: str | TemporalClient | None = None,
    namespace: str | None = None,
    task_queue: str = DEFAULT_TASK_QUEUE,
    workflow_id_prefix: str = "",
    create: bool = True,
    encryption: Encryption = None,
) -> _Connecting:
    """Reach Temporal and the store, in ``async with`` (closed at its end) or by ``await``.

    Args:
        store: ``sqlite:///FILE`` or ``postgresql://…``, the same as the workers'; or a store.
        mirror: a store in the documented format that gets every save, or its address
            (``lousho-sqlite:FILE``, ``lousho-files:DIRECTORY``, ``sqlite:///FILE``,
            ``postgresql://…``), or a list of them. Sessions that only it holds are imported when
            they are opened.
        temporal: ``HOST:PORT`` or a connected Temporal client; default: temporalio's environment
            configuration (``TEMPORAL_ADDRESS``, TLS, API key, profiles).
        namespace: the Temporal namespace, with an address.
        task_queue: where workers serve the agents.
        workflow_id_prefix: put before session ids, where other workflows share the namespace.
        create: make a SQLite store that does not exist.
        encryption: keys that encrypt what Temporal gets, around whatever codec a given client has,
            and the content of a store that is given by its address;
            default: those of ``PERDURE_ENCRYPTION_KEYS``, if it is set. ``False``: none.

    Raises:
        ConfigurationError: an address is wrong.
        StorageError: the store cannot be opened.
        TemporalUnavailableError: Temporal does not answer.
    """
    return _Connecting(
        {
            "store": store,
            "mirror": mirror,
            "temporal": temporal,
            "namespace": namespace,
            "task_queue": task_queue,
            "workflow_id_prefix": workflow_id_prefix,
            "create": create,
            "encryption": encryption,
        }
    )
