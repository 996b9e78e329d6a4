"""A checkpoint that came from outside, as events of a log and a save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["record_events"]


def record_events(stored: Sequence[Any], record: dict[str, Any]) -> tuple[list[NewEvent], NewSave]:
    """Give the events after which a log's checkpoint is ``record``, key for key, and its save.

    ``stored`` is the transcript that the log has so far; only what differs is written again.
    """
    fields = {key: value for key, value in record.items() if key != "messages"}
    messages = record.get("messages") or []
    keep = ev.shared_beginning(stored, messages)
    new = [
        NewEvent(ev.TRANSCRIPT_DELTA, {"keep": keep, "append": messages[keep:]}),
        NewEvent(ev.CHECKPOINT_SET, {"fields": fields}),
    ]
    return new, NewSave(
        after=len(new),
        status=ev.label(record.get("status"), 32) or ev.IN_PROGRESS,
        finish_reason=ev.label(record.get("finishReason"), 64),
        approval_id=ev.label(record.get("approvalId"), 128) or None,
    )
