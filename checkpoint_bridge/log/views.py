"""The log under other names, at the same sequences (``docs/sessions.md`` has the table)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.turn_states import FAILED, turn_state

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.events import Event

__all__ = ["BRAIN_NAMES", "VIEWS", "check_view", "in_view"]

BRAIN = "brain"
VIEWS = (BRAIN,)

BRAIN_NAMES = {
    ev.TURN_START: "turn_started",
    ev.TURN_END: "turn_ended",
    ev.STEP_START: "step_started",
    ev.STEP_END: "step_ended",
    ev.USER_MESSAGE: "user_message",
    ev.SYSTEM_MESSAGE: "system_message",
    ev.REQUEST_HEADER: "request_header",
    ev.ASSISTANT_MESSAGE: "model_call_ended",
    ev.ASSISTANT_ATTEMPT: "model_call_failed",
    ev.TOOL_CALL: "tool_call_started",
    ev.TOOL_RESULT: "tool_call_ended",
    ev.TRANSCRIPT_DELTA: "transcript_delta",
    ev.APPROVAL_REQUESTED: "approval_started",
    ev.APPROVAL_DECIDED: "approval_ended",
    ev.APPROVAL_GRANTED: "approval_granted",
    ev.APPROVAL_AUTO: "approval_auto",
    ev.SUBAGENT_PAUSED: "subagent_paused",
    ev.AGENT_DRIFT: "agent_drift",
    ev.KV_SET: "kv_set",
    ev.KV_DELETE: "kv_delete",
    ev.BUSINESS_STATE: "business_state_set",
    ev.CHECKPOINT_SET: "checkpoint_set",
    ev.SESSION_CLEARED: "session_cleared",
    ev.END_SEED: "session_seeded",
    ev.SESSION_ENDED: "session_ended",
    ev.RUN_DISCARDED: "run_discarded",
}
"""The names of the view ``brain`` (``docs/sessions.md``); what tools emit keeps its own name."""

TURN_FAILED = "turn_failed"
"""In place of ``turn_ended`` where the reason is of a turn that failed (:func:`.turn_state`)."""
TOOL_CALL_FAILED = "tool_call_failed"
"""In place of ``tool_call_ended`` where the result is an error."""


def check_view(view: str | None) -> None:
    """Refuse a view that there is not.

    Raises:
        ConfigurationError: there is no view of that name (``field`` is ``view``).
    """
    if view is not None and view not in VIEWS:
        msg = f"There is no view {view!r}; there is {', '.join(VIEWS)}."
        raise ConfigurationError(msg, field="view")


def in_view(event: Event, view: str | None) -> Event:
    """The event under its name in a view; everything else is as it was."""
    if view is None:
        return event
    return replace(event, type=_brain_name(event))


def _brain_name(event: Event) -> str:
    if event.type == ev.TURN_END and turn_state(event.data["reason"]) == FAILED:
        return TURN_FAILED
    if event.type == ev.TOOL_RESULT and event.data["message"].get("isError"):
        return TOOL_CALL_FAILED
    return BRAIN_NAMES.get(event.type, event.type)
