"""The activity that runs an agent's hook at the end of a turn, and logs what the hook leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from temporalio import activity

from perdure.activities.deps import Deps
from perdure.activities.failures import boundary
from perdure.activities.liveness import heartbeats, until_stored
from perdure.activities.turn_context import TurnContext, UserMessage
from perdure.activities.wire import ACTIVITY_STOPPING, StoppingTask
from perdure.checkpoint_bridge.errors import LogConflictError
from perdure.checkpoint_bridge.format.transcript import INJECTED_BY, input_messages
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.derived import messages_of
from perdure.checkpoint_bridge.log.events import NewEvent
from perdure.checkpoint_bridge.tables.event_log import Batch
from perdure.checkpoint_bridge.tables.ledger import TURN_HOOK, EffectId
from perdure.checkpoint_bridge.tables.sessions import OPEN

if TYPE_CHECKING:
    from perdure.activities.turn_context import TurnHook

_TRIES = 5


class TurnStopping(Deps):
    """Runs the hook once for each turn."""

    @activity.defn(name=ACTIVITY_STOPPING)
    @boundary
    async def turn_stopping(self, task: StoppingTask) -> int:
        """Run the hook and append its messages for the next turn; returns the log's length.

        What it gave is in the ledger before it is in the log, so a worker's death neither loses
        it nor puts it there twice. A hook that fails leaves nothing; the turn has ended anyway.
        """
        hook = self.agent(task.agent).on_turn_stopping
        if hook is None:
            return task.head
        effect_id = EffectId(task.log_id, task.head, TURN_HOOK)
        with heartbeats():
            effect = await until_stored(
                lambda: self.store.begin_effect(
                    effect_id,
                    session_id=task.session_id,
                    run_id=task.run_id,
                    name="on_turn_stopping",
                )
            )
            if not effect.done:
                left = {"messages": await self._ask(hook, task)}
                effect = await until_stored(
                    lambda: self.store.end_effect(
                        effect_id,
                        session_id=task.session_id,
                        name="on_turn_stopping",
                        outcome={},
                        message=left,
                    )
                )
            assert effect.message is not None
            messages = effect.message["messages"]
            return await until_stored(lambda: self._inject(task, messages))

    async def _ask(self, hook: TurnHook, task: StoppingTask) -> list[dict[str, Any]]:
        state = await until_stored(lambda: self.store.state(task.log_id, task.head))
        context = TurnContext(
            session_id=task.session_id,
            run_id=task.run_id,
            agent=task.agent,
            turn=task.turn,
            finish_reason=task.finish_reason,
            messages=messages_of(state),
            _store=self.store,
        )
        try:
            given = await hook(context)
            name = getattr(hook, "__name__", type(hook).__name__)
            return [_message(each, name) for each in given or ()]
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:  # noqa: BLE001 - it is the user's code
            activity.logger.exception("on_turn_stopping of %s failed", task.agent)
            return []

    async def _inject(self, task: StoppingTask, messages: list[dict[str, Any]]) -> int:
        if not messages:
            return task.head
        new = [
            NewEvent(
                ev.USER_MESSAGE,
                {
                    "message": message,
                    "source": message["metadata"][INJECTED_BY],
                    "afterTurn": task.turn,
                },
            )
            for message in messages
        ]
        for remaining in reversed(range(_TRIES)):
            row = await self.store.session(task.session_id)
            if row is None or row.phase != OPEN:
                return task.head  # there is no next turn
            since = await self.store.events(task.session_id, after=task.head)
            head = task.head + len(since)
            if any(event.data.get("afterTurn") == task.turn for event in since):
                return head  # by an attempt of which Temporal did not hear
            batch = Batch(task.session_id, task.log_id, task.run_id, head, task.time_ms, new)
            try:
                return await self.store.append(batch)
            except LogConflictError:
                # The turn has ended, so others may write too; a compaction, say.
                if not remaining:
                    raise
        raise AssertionError


def _message(given: UserMessage | str, name: str) -> dict[str, Any]:
    """What the hook gave as a message of the format.

    Raises:
        ConfigurationError: it is no message.
    """
    said = given if isinstance(given, UserMessage) else UserMessage(given, source=name)
    (message,) = input_messages([{"role": "user", "content": said.content}])
    return {**message, "metadata": {INJECTED_BY: str(said.source)}}
