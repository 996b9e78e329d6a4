"""The runs of sessions in Temporal: started, found, joined and opened again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.spans import current_traceparent
from perdure.activities.wire import UPDATE_INPUT, WORKFLOW
from perdure.checkpoint_bridge.errors import (
    ClientClosedError,
    SessionBusyError,
    SessionConflictError,
)
from perdure.checkpoint_bridge.format.fork import UNSET
from perdure.connection import rpc_failure, update
from perdure.run_handle import RunHandle, run_error

if TYPE_CHECKING:
    from temporalio.client import (
        Client as TemporalClient,
        WorkflowExecutionDescription,
        WorkflowHandle,
    )

    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

_TRIES = 50
_PAUSE = 0.1
_TITLE_LENGTH = 60
_OF_A_RESUME = {"agent", "session_id", "input", "workflow_id_prefix", "store", "traceparent"}
_CLAIM = "claim"
"""Key of a run's memo: what it was started under, until its turn's start says it."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that somebody wants; :meth:`.Client.execute` says what most of it means."""

    agent: str
    input: str | list[dict[str, Any]]
    session_id: str | None = None
    business_state: Any = UNSET
    metadata: dict[str, Any] | None = None
    max_steps: int | None = None
    claim: str | None = None
    """What the run is to be recognised by (:func:`.claims.claim_id`)."""
    join: bool = True
    """False: a run that goes on takes no input; ``SessionBusyError`` says so."""


class SessionRuns:
    """What client and approvals share: the way from a session to its run."""

    def __init__(
        self, temporal: TemporalClient, store: SqlStore, *, task_queue: str, prefix: str
    ) -> None:
        self._temporal = temporal
        self._store = store
        self.closed = False
        """Set when the client is closed: nothing is asked of Temporal or the store any more."""
        self.task_queue = task_queue
        self.prefix = prefix
        """Put before session ids to make workflow ids."""

    @property
    def temporal(self) -> TemporalClient:
        """The Temporal client.

        Raises:
            ClientClosedError: the client was closed.
        """
        self._check_open()
        return self._temporal

    @property
    def store(self) -> SqlStore:
        """The store.

        Raises:
            ClientClosedError: the client was closed.
        """
        self._check_open()
        return self._store

    def _check_open(self) -> None:
        if self.closed:
            msg = "This client was closed; its runs go on without it."
            raise ClientClosedError(msg)

    def workflow(self, session_id: str, execution: str | None = None) -> WorkflowHandle[Any, Any]:
        """Temporal's handle of a session's workflow: its newest execution, or a certain one."""
        return self.temporal.get_workflow_handle(self.prefix + session_id, run_id=execution)

    def handle(self, session_id: str, run_id: str) -> RunHandle:
        """The handle of a run that was started before, here or elsewhere."""
        workflow_id = self.prefix + session_id
        return RunHandle(self.temporal, self.store, session_id, run_id, workflow_id)

    async def running(self, session_id: str) -> RunHandle | None:
        """The run of a session that goes on (or waits) now, or ``None``."""
        found = await self._describe(session_id)
        if found is None or found.status is None or found.status.name != "RUNNING":
            return None
        self._check_type(session_id, found.workflow_type)
        info = found.raw_description.workflow_execution_info
        handle = self.handle(session_id, info.first_run_id or found.run_id)
        handle.execution = found.run_id
        return handle

    async def claimed(self, session_id: str, claim: str) -> RunHandle | None:
        """The session's newest run, if it was started under a claim."""
        found = await self._describe(session_id)
        if found is None or (await found.memo()).get(_CLAIM) != claim:
            return None
        info = found.raw_description.workflow_execution_info
        return self.handle(session_id, info.first_run_id or found.run_id)

    async def _describe(self, session_id: str) -> WorkflowExecutionDescription | None:
        try:
            return await self.workflow(session_id).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
                return None
            raise rpc_failure(error, self.temporal) from error

    async def reopen(self, session_id: str) -> RunHandle:
        """Start an unfinished session's next execution without new input, or join the running one.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        row = await self.store.known_session(session_id)
        return await self.start({"agent": row.agent, "session_id": session_id, "input": []})

    async def start(self, request: dict[str, Any], *, join: bool = True) -> RunHandle:
        """Start the session's next run, or bring the input to the one that goes on.

        Between the two the run can end; so both are tried in turn until one has the input.

        Args:
            request: of the run.
            join: False: input for a run that goes on is refused.

        Raises:
            SessionBusyError: a run goes on, and the input was not to join it.
            SessionConflictError: the id is something else's.
        """
        session_id = request["session_id"]
        claim = request.get("claim")
        if self.prefix:
            request["workflow_id_prefix"] = self.prefix
        request["store"] = await self.store.database.identity()
        traceparent = current_traceparent()
        if traceparent:
            request["traceparent"] = traceparent
        for _ in range(_TRIES):
            try:
                started = await self.temporal.start_workflow(
                    WORKFLOW,
                    request,
                    id=self.prefix + session_id,
                    task_queue=self.task_queue,
                    static_summary=f"{request['agent']}: {session_id}"[:_TITLE_LENGTH],
                    static_details=_details(request["agent"], session_id),
                    memo=None if claim is None else {_CLAIM: claim},
                )
            except WorkflowAlreadyStartedError:
                joined = await (self._join(request) if join else self._refuse(session_id))
                if joined is not None:
                    return joined
                await asyncio.sleep(_PAUSE)
            except RPCError as error:
                raise rpc_failure(error, self.temporal) from error
            else:
                return self.handle(session_id, started.first_execution_run_id or "")
        msg = f"The run of session {session_id!r} keeps ending and starting; try again."
        raise SessionConflictError(msg)

    async def _refuse(self, session_id: str) -> None:
        """Refuse input for a run that goes on, unless it has ended or is about to."""
        running = await self.running(session_id)
        if running is not None:
            row = await self.store.session(session_id)
            if row is not None and row.writer == running.run_id and row.last_end is not None:
                return  # its log has the end of its turn; Temporal is yet to hear of it
            msg = f"Session {session_id!r} has a turn that goes on; nothing was taken."
            raise SessionBusyError(msg, session_id=session_id)

    async def _join(self, request: dict[str, Any]) -> RunHandle | None:
        """Bring input to the run that goes on; ``None`` when it has ended meanwhile."""
        session_id = request["session_id"]
        running = await self.running(session_id)
        if running is None:
            return None
        told = request.get("input") or not request.keys() <= _OF_A_RESUME
        if not told:
            row = await self.store.session(session_id)
            told = row is not None and row.agent != request["agent"]
        if told:
            workflow = self.workflow(session_id, running.execution)
            try:
                await update(workflow, UPDATE_INPUT, request)
            except WorkflowUpdateFailedError as error:
                failure = run_error(error.cause)
                if isinstance(failure, SessionConflictError):
                    return None
                raise failure from error
            except RPCError as error:
                if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.RESOURCE_EXHAUSTED):
                    return None
                raise rpc_failure(error, self.temporal) from error
        return running

    def _check_type(self, session_id: str, workflow_type: str) -> None:
        if workflow_type != WORKFLOW:
            msg = (
                f"The id {session_id!r} is in use by a workflow of type {workflow_type!r} "
                f"in namespace {self.temporal.namespace!r}."
            )
            raise SessionConflictError(msg)


def _details(agent: str, session_id: str) -> str:
    """What the Temporal UI says of a run for good; names alone, no content."""
    return (
        f"A run of the agent `{agent}` in the session `{session_id}`. What is said is in the "
        f"store: `perdure show {session_id}`, `perdure events {session_id}`."
    )
