"""The turns of a session: sending input, outcomes, and what is unfinished."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, get_args

from perdure.checkpoint_bridge.closing import Ending, close_turn, crash_ending
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    LogConflictError,
    PerdureError,
    SessionBusyError,
    TemporalUnavailableError,
)
from perdure.checkpoint_bridge.format.fork import UNSET
from perdure.checkpoint_bridge.format.transcript import input_messages
from perdure.checkpoint_bridge.log.events import ABORTED, AWAITING_APPROVAL
from perdure.checkpoint_bridge.log.turn_states import PENDING
from perdure.checkpoint_bridge.stores.store import session_not_found
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.turn_log import (
    AmbiguousCall,
    Outcome,
    ambiguous_calls,
    newest_turn,
    outcome_of,
)
from perdure.claims import Claims, claim_id
from perdure.options import TurnPolicy
from perdure.session_runs import NewRun
from perdure.sessions.base import SessionPart, check_sequence
from perdure.sessions.claimed_runs import ClaimedRuns

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.tables.sessions import SessionRow
    from perdure.results import RunResult
    from perdure.run_handle import RunHandle

_TRIES = 50


class Turns(SessionPart):
    """The part of a session object that runs turns."""

    async def send(
        self,
        input: str | list[dict[str, Any]],  # noqa: A002 - the format's word
        *,
        agent: str | None = None,
        turn_policy: TurnPolicy | None = None,
        idempotency_key: str | None = None,
        business_state: Any = UNSET,
        metadata: dict[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> RunResult:
        """Run a turn on input and wait for its end, or for its pause for an approval.

        Args:
            input: a text, or messages of the documented format.
            agent: who answers; default: the session's agent.
            turn_policy: what happens while another turn goes on: ``reject`` this one, ``queue``
                the input behind that turn's pending calls, or ``wait`` for its end; default: as
                its agent says (``reject``, if it says nothing).
            idempotency_key: the same input under the same key is one turn, for 24 hours, however
                often it is sent. Keys of :meth:`submit` are others.
            business_state: as for :meth:`.Client.execute`.
            metadata: as for :meth:`.Client.execute`.
            max_steps: as for :meth:`.Client.execute`.

        Raises:
            ConfigurationError: an argument is wrong, or no worker serves the agent.
            SessionNotFoundError: there is no such session, and no agent was named.
            SessionBusyError: a turn goes on, and this one was not to wait; nothing was done.
            SessionAwaitingApprovalError: a decision is pending; nothing was done.
            IdempotencyError: the key cannot be answered; nothing was done.
            PerdureError: the turn failed; its session can be resumed.
        """
        default = {"business_state": UNSET, "metadata": None, "max_steps": None}
        more = {"business_state": business_state, "metadata": metadata, "max_steps": max_steps}
        given = {name: each for name, each in more.items() if each is not default[name]}
        runs = ClaimedRuns(self.client, self.session_id)
        if idempotency_key is None:
            handle = await self._begin(input, agent, turn_policy, None, given)
            return await handle.result()
        scope = f"send:{self.session_id}"
        claim = claim_id(scope, idempotency_key)

        async def make() -> Any:
            return await runs.settle(await self._begin(input, agent, turn_policy, claim, given))

        request = {"input": input, "agent": agent, **given}
        find = runs.finder(claim, runs.settle)
        response = await Claims(self.store).once(scope, idempotency_key, request, make, find=find)
        return await runs.result(response)

    async def submit(
        self,
        input: str | list[dict[str, Any]],  # noqa: A002 - the format's word
        *,
        agent: str | None = None,
        turn_policy: TurnPolicy | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Start a turn and wait until the log has its start, not until its end.

        Returns:
            The sequence of the turn's start: ``events(after=sequence - 1)`` begins with it, and
            :meth:`outcome` says what became of it. Input that was queued into a turn that goes
            on (``turn_policy="queue"``) gives that turn's.

        Arguments and errors are those of :meth:`send`.
        """
        runs = ClaimedRuns(self.client, self.session_id)
        scope = f"submit:{self.session_id}"
        claim = None if idempotency_key is None else claim_id(scope, idempotency_key)

        async def make() -> int:
            return await (await self._begin(input, agent, turn_policy, claim, {})).opened()

        request = {"input": input, "agent": agent}
        find = runs.finder(claim or "", runs.opened)
        sequence: int = await Claims(self.store).once(
            scope, idempotency_key, request, make, find=find
        )
        return sequence

    async def outcome(self, sequence: int) -> Outcome:
        """What became of the turn that starts at ``sequence``.

        The log alone says it. Where the log says that the turn is open and its run is gone, it is
        closed first (:meth:`reconcile`).

        Raises:
            SessionNotFoundError: there is no such session.
            NotATurnError: no turn starts there.
            ConfigurationError: that is no sequence.
        """
        check_sequence("sequence", sequence)
        row = await self._row()
        outcome = await self.store.database.read(outcome_of, row.log_id, sequence)
        if outcome.state != PENDING:
            return outcome
        # Whether the run is gone, only Temporal can tell; the log's word stands until then.
        with contextlib.suppress(TemporalUnavailableError):
            if await self.reconcile():
                return await self.store.database.read(outcome_of, row.log_id, sequence)
        return outcome

    async def ambiguous(self) -> list[AmbiguousCall]:
        """Calls that may have had their effect, and whose outcome nobody knows, oldest first.

        Look at the outside world, by their idempotency keys, before they are made again. For a
        sub-agent's call that was cut short they are the sub-agent's own, of its session.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await self.store.database.read(ambiguous_calls, await self._row())

    async def resume(self) -> RunResult | None:
        """Finish an unfinished turn or join the one that goes on; ``None`` when there is none.

        Raises:
            SessionAwaitingApprovalError: a decision is pending; resolve it instead.
            PerdureError: the run failed again.
        """
        return await self.client.resume(self.session_id)

    async def pending(self) -> dict[str, Any] | None:
        """What is unfinished: ``{status, approval_id}``; ``None`` when nothing is.

        ``status`` is ``in-progress`` (it goes on, or it can be resumed) or ``awaiting-approval``.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        row = await self._row()
        if row.status == AWAITING_APPROVAL:
            return {"status": row.status, "approval_id": row.approval_id}
        state = await self.store.state(row.log_id, row.head)
        return None if state.finished else {"status": "in-progress", "approval_id": None}

    async def discard_pending(self) -> bool:
        """Give an unfinished turn up: it ends as aborted, and nothing of it is resumed.

        A turn that goes on is cancelled first, and so is one that waits for an approval. Calls
        without a result get one that says whether they can have run. The next input is a new
        turn.

        Returns:
            Whether there was something to discard.

        Raises:
            SessionNotFoundError: there is no such session.
            SessionBusyError: somebody keeps starting new runs.
        """
        ending = Ending({"kind": ABORTED}, answer_calls=True, discard=True)
        for _ in range(_TRIES):
            interrupted = await self.interrupt()
            row = await self.store.session(self.session_id)
            if row is None:
                return interrupted  # before it had begun
            if await self.pending() is None:
                return False
            with contextlib.suppress(LogConflictError):
                await close_turn(self.store, row, ending, time_ms=now_ms())
                return True
        raise self._busy()

    async def interrupt(self) -> bool:
        """Cancel the turn that goes on (or waits) and wait until it is closed.

        The session stays open: what is finished is kept, every call has a result, and the next
        input goes on from there.

        Returns:
            Whether a turn went on.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        running = await self.client.running(self.session_id)
        if running is None:
            await self._row()
            return False
        await running.cancel()
        await _end_of(running)
        return True

    async def reconcile(self) -> bool:
        """Close the open turn of a run that is gone, as the next run would.

        A run that goes on is never touched, nor is one that waits for a decision: it lost
        nothing, and the decision continues it. What is written depends on the agent's
        ``on_crash``: by default the calls without a result stay for the next run to make.

        Returns:
            Whether something was closed.

        Raises:
            SessionNotFoundError: there is no such session.
            TemporalUnavailableError: whether the run goes on cannot be told.
        """
        for _ in range(_TRIES):
            row = await self._row()
            state = await self.store.state(row.log_id, row.head)
            turn = state.open_turn
            if turn is None or state.approval is not None:
                return False
            # In this order: what a run writes after the look at the log is a conflict below.
            if await self.client.running(self.session_id) is not None:
                return False
            ending = crash_ending(turn.get("onCrash", "continue"))
            with contextlib.suppress(LogConflictError):
                await close_turn(self.store, row, ending, time_ms=now_ms())
                return True
        return False

    # -- inside ------------------------------------------------------------------------------

    async def _row(self) -> SessionRow:
        return await self.store.known_session(self.session_id)

    async def _begin(
        self,
        given: str | list[dict[str, Any]],
        agent: str | None,
        policy: TurnPolicy | None,
        claim: str | None,
        more: dict[str, Any],
    ) -> RunHandle:
        if policy is not None and policy not in get_args(TurnPolicy):
            msg = f"turn_policy is one of {', '.join(get_args(TurnPolicy))}, not {policy!r}."
            raise ConfigurationError(msg, field="turn_policy")
        if not input_messages(given):
            msg = "The input is empty; give a message, or use resume()."
            raise ConfigurationError(msg, field="input")
        row = await self.store.session(self.session_id)
        if row is None and agent is None:
            raise session_not_found(self.session_id)
        name = agent or (row.agent if row is not None else "")
        policy = policy or await self._turn_policy(row)
        join = policy == "queue"
        run = NewRun(name, given, session_id=self.session_id, claim=claim, join=join, **more)
        for _ in range(_TRIES):
            try:
                return await self.client.begin(run)
            except SessionBusyError:
                if policy != "wait":
                    raise
                running = await self.client.running(self.session_id)
                if running is not None:
                    await _end_of(running)
        raise self._busy()

    async def _turn_policy(self, row: SessionRow | None) -> TurnPolicy:
        """The policy of the agent whose turn may be going on, as it was when that one began."""
        newest = None
        if row is not None:
            newest = await self.store.database.read(newest_turn, row.log_id)
        policy: TurnPolicy = newest.data.get("turnPolicy", "reject") if newest else "reject"
        return policy

    def _busy(self) -> SessionBusyError:
        msg = f"Session {self.session_id!r} has a turn that goes on."
        return SessionBusyError(msg, session_id=self.session_id)


async def _end_of(running: RunHandle) -> None:
    """Wait for a run's end or pause, whatever it is."""
    try:
        await running.result()
    except TemporalUnavailableError:
        raise
    except PerdureError:
        pass  # it failed, so it has ended
