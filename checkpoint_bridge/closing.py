"""Closes what a log has open: after a cancel, a failure, or the loss of a run.

It goes by what the log and the ledger say, not by what a run believed: an append whose workflow
task was lost may be in the log without its run knowing. The same events are written by the run
itself, by the opening of the next one, and by a client that finds the run gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.child_answers import answer_message
from perdure.checkpoint_bridge.format.tool_errors import NOT_RUN, NOT_STARTED, tool_error_result
from perdure.checkpoint_bridge.format.tool_results import (
    TOOL_NOT_STARTED,
    cancelled_call,
    error_result,
    unknown_outcome,
)
from perdure.checkpoint_bridge.format.transcript import split_pending_turn
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.answers import TOOL_CALLS, attempt_events, step_end
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.log.lineage import child_session_id
from perdure.checkpoint_bridge.tables.event_log import Batch
from perdure.checkpoint_bridge.tables.ledger import MODEL_CALL, EffectId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.checkpoint_bridge.tables.ledger import Effect
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

INTERRUPTED = "interrupted"

_LOST_ANSWER = {
    "code": "MODEL_OUTCOME_UNKNOWN",
    "message": "The call was sent, and what became of it is not known.",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ends that did not come to its own end."""

    reason: dict[str, Any]
    """Of the ``turn/end``."""
    answer_calls: bool
    """Calls without a result get one: the stored one, else an error result that says whether it
    can have run. Without, the next run makes them."""
    lost: bool = False
    """A worker is gone, so what was in flight may have happened."""
    discard: bool = False
    """The next input starts a new run, as after a finished one; nothing is left to resume."""

    @property
    def aborted(self) -> bool:
        """Whether somebody wanted it to end."""
        return bool(self.reason["kind"] == ev.ABORTED)


def crash_ending(on_crash: str) -> Ending:
    """How a turn ends whose run is gone, by its agent's ``on_crash``."""
    if on_crash == "fail":
        message = "The run was lost, and its agent does not continue such turns."
        reason = {"kind": "error", "error": {"code": INTERRUPTED, "message": message}}
        return Ending(reason, answer_calls=True, lost=True)
    return Ending({"kind": INTERRUPTED}, answer_calls=on_crash != "continue", lost=True)


async def close_turn(
    store: SqlStore,
    row: SessionRow,
    ending: Ending,
    *,
    time_ms: int,
    run_id: str | None = None,
    fresh: Callable[[SessionState], Awaitable[Sequence[dict[str, Any]]]] | None = None,
) -> None:
    """Append what closes the session's open turn (if any) and what it left open.

    Args:
        store: where the session is.
        row: the session as it was read; nothing is written if it has changed since.
        ending: how it ends.
        time_ms: of the events.
        run_id: the run that closes itself; ``None`` when it is gone. Then nothing of it may
            write any more.
        fresh: gives the input that had arrived and has no place in the log yet.

    Raises:
        LogConflictError: somebody wrote to the session meanwhile; read it again.
    """
    state = await store.state(row.log_id, row.head)
    # At the head of the log, where the call belongs; so before anything else.
    events = await _model_call(store, row, state, ending)
    saves: list[NewSave] = []
    if ending.answer_calls:
        events.extend(_close_approval(state, ending))
        results = await _close_calls(store, row, state, ending)
        events.extend(results)
        if results and not ending.aborted:
            saves.append(NewSave(len(events), ev.IN_PROGRESS, TOOL_CALLS))
    if fresh is not None:
        said = await fresh(state)
        events.extend(NewEvent(ev.USER_MESSAGE, {"message": message}) for message in said)
    if state.open_turn is not None:
        if state.open_step:
            events.append(step_end(state.turn, state.step))
        events.append(NewEvent(ev.TURN_END, {"turn": state.turn, "reason": ending.reason}))
    if ending.discard:
        events.append(NewEvent(ev.RUN_DISCARDED, {}))
    if ending.aborted:
        status = ev.FINISHED if ending.discard else ev.IN_PROGRESS
        saves.append(NewSave(len(events), status, ev.ABORTED))
    batch = Batch(
        row.session_id,
        row.log_id,
        run_id,
        row.head,
        time_ms,
        events,
        saves,
        take_over=run_id is None,
    )
    if ending.answer_calls:
        await store.close_run(batch, str(ending.reason["kind"]))
    else:
        await store.append(batch)


async def _model_call(
    store: SqlStore, row: SessionRow, state: SessionState, ending: Ending
) -> list[NewEvent]:
    """How the model call that was in flight has failed so far: what it cost is in the bill.

    An answer would be in the log, behind the state.
    """
    if state.open_turn is None:
        return []
    effect = await store.effect(EffectId(row.log_id, state.through, MODEL_CALL))
    if effect is None or effect.done:
        return []
    attempts = failed_attempts(effect, lost=ending.lost)
    return attempt_events(state.turn, state.step + 1, attempts)


def failed_attempts(effect: Effect, *, lost: bool) -> list[dict[str, Any]]:
    """How a model call without an answer has failed; ``lost``: its run or its worker is gone."""
    # A call that failed has noted it; so one start more than that is a call that was lost.
    if lost and effect.starts > len(effect.attempts):
        return [*effect.attempts, {"error": _LOST_ANSWER}]
    return effect.attempts


def _close_approval(state: SessionState, ending: Ending) -> list[NewEvent]:
    if state.approval is None:
        return []
    closed = str(ending.reason["kind"])
    return [
        NewEvent(
            ev.APPROVAL_DECIDED, {"id": state.approval["id"], "approved": False, "closed": closed}
        )
    ]


async def _close_calls(
    store: SqlStore, row: SessionRow, state: SessionState, ending: Ending
) -> list[NewEvent]:
    """One result for every call without one: the real one where the ledger has it.

    A sub-agent's call is not in the ledger: its session is what remembers it.
    """
    pending = split_pending_turn(state.messages).pending_tool_calls
    events = []
    for index, call in enumerate(state.calls):
        if not pending or call != pending[0]:
            continue
        pending = pending[1:]
        effect = await store.effect(EffectId(row.log_id, state.call_seq, index))
        data: dict[str, Any] = {"seq": state.call_seq, "index": index}
        tool = str(call["function"]["name"])
        child = child_session_id(row.session_id, row.log_id, state.call_seq, index)
        message = effect.message if effect else None
        if effect is None:
            message = await answer_message(store, child, call["id"], tool)
        if message is None:
            below = None if effect else await store.session(child)
            if effect is None and below is None:
                error = _not_run(tool, ending)
            elif below is not None and below.was_aborted:
                error = cancelled_call(tool)
            else:
                error = unknown_outcome(tool)
            message = error_result(call["id"], tool, error)
        data["message"] = message
        events.append(NewEvent(ev.TOOL_RESULT, data))
    return events


def _not_run(tool: str, ending: Ending) -> dict[str, Any]:
    if not ending.lost:
        return tool_error_result(NOT_RUN, tool)
    text = "The call never started: the run was lost before it. It can be made again."
    return tool_error_result(NOT_STARTED, tool, text, code=TOOL_NOT_STARTED)
