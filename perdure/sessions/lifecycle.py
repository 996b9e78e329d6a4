"""The life of a session: its record, its forks, its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.branching import fork_behind
from perdure.checkpoint_bridge.ending import begin_end, finish_end
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    PerdureError,
    TemporalUnavailableError,
)
from perdure.checkpoint_bridge.format.checkpoint import RunUsage
from perdure.checkpoint_bridge.format.ids import check_session_id
from perdure.checkpoint_bridge.log.fold import spent
from perdure.checkpoint_bridge.stores.store import session_not_found
from perdure.checkpoint_bridge.tables.sessions import ENDED
from perdure.sessions.base import SessionPart
from perdure.sessions.record import SessionRecord, record_of

if TYPE_CHECKING:
    from typing import Self

    from perdure.checkpoint_bridge.format.fork import ForkPatch


class Lifecycle(SessionPart):
    """The part of a session object that is about the session as a whole."""

    cached: SessionRecord | None = None
    """The record that was read last; what happens meanwhile does not change it."""

    async def info(self) -> SessionRecord:
        """Read the session's record from the store; no worker need be running.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        row = await self.store.known_session(self.session_id)
        self.cached = record_of(row, await self.store.state(row.log_id, row.head))
        return self.cached

    async def usage(self, *, own: bool = False, include_attempts: bool = True) -> RunUsage:
        """What the session has cost, over all its runs.

        Args:
            own: leave out what a fork shares with its parent, who has paid for it.
            include_attempts: count failed attempts too, where their cost is known.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        events = await self.store.events(self.session_id)
        return RunUsage.from_json(spent(events, own=own, attempts=include_attempts))

    async def end(self) -> None:
        """Refuse messages from now on, stop the run that goes on, and wait for its end.

        What is stored stays readable. Ending again goes on where an interrupted end was left.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        before = await begin_end(self.store, self.session_id)
        if before is None:
            raise session_not_found(self.session_id)
        if before.phase == ENDED:
            return
        running = await self.client.running(self.session_id)
        if running is not None:
            await running.cancel()
            try:
                await running.result()
            except TemporalUnavailableError:
                raise
            except PerdureError:
                pass  # it failed before it could be cancelled, so it has ended too
        await finish_end(self.store, self.session_id)

    async def fork(
        self,
        *,
        boundary: int | None = None,
        close_open_turn: bool = False,
        from_step: int | None = None,
        patch: ForkPatch | None = None,
        new_session_id: str | None = None,
    ) -> Self:
        """Start a session that begins as this one did. Nothing runs yet.

        By ``boundary`` it begins with the events up to that one, of any turn, and goes on with
        its next message. By ``from_step`` it begins at a save of the newest run, with something
        changed, and is resumed (see :meth:`.Client.fork`).

        Args:
            boundary: ``seq`` of the last event to begin with; default: where the newest turn
                that has ended ends. A run that goes on does not matter.
            close_open_turn: a boundary in the middle of a turn is allowed, and the turn is closed
                in the fork.
            from_step: a step that the history keeps.
            patch: with ``from_step``: what is different.
            new_session_id: default: ``<session_id>.fork-<n>``.

        Raises:
            ConfigurationError: ``boundary`` and ``from_step`` are given, or a value is wrong.
            SessionNotFoundError: there is no such session.
            ForkBoundaryError: there is no such event, or it is in the middle of a turn.
            SessionExistsError: the new id is taken.
            CheckpointNotFoundError: the history keeps no such step.
        """
        by_step = from_step is not None or patch is not None
        if by_step and (boundary is not None or close_open_turn):
            msg = "A fork begins at a boundary of the log or at a step, not at both."
            raise ConfigurationError(msg, field="boundary")
        if by_step:
            if from_step is None:
                msg = "A patch needs from_step, the step that it changes."
                raise ConfigurationError(msg, field="from_step")
            made = await self.client.fork(self.session_id, from_step, patch, new_session_id)
            return type(self)(self.client, made.session_id)
        if new_session_id is not None:
            check_session_id(new_session_id)
        fork_id = await fork_behind(
            self.store,
            self.session_id,
            boundary,
            close_open_turn=close_open_turn,
            new_session_id=new_session_id,
        )
        return type(self)(self.client, fork_id)

    async def fork_many(
        self, count: int, *, boundary: int | None = None, close_open_turn: bool = False
    ) -> list[Self]:
        """Several forks with the same beginning, to try different ways at a time.

        Raises:
            ConfigurationError: the count is none.
            SessionNotFoundError: there is no such session.
            ForkBoundaryError: as in :meth:`fork`.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            msg = f"The count of forks is a whole number from 1, not {count!r}."
            raise ConfigurationError(msg, field="count")
        first = await self.fork(boundary=boundary, close_open_turn=close_open_turn)
        header = (await first.info()).header
        # A turn may end meanwhile: all of them begin with what the first one has.
        at = header.inherited_event_count - 1
        more = [
            await self.fork(boundary=at, close_open_turn=close_open_turn) for _ in range(count - 1)
        ]
        return [first, *more]
