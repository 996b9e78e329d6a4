"""What an event shows of itself in the transcript: its message, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.log import events as ev

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.events import Event

SURFACE = frozenset({ev.SYSTEM_MESSAGE, ev.USER_MESSAGE, ev.ASSISTANT_MESSAGE, ev.TOOL_RESULT})
"""The types of event that are messages; all others are about the conversation, not of it."""

_MAY_BE_EMPTY = frozenset({ev.USER_MESSAGE, ev.TOOL_RESULT})


def derive_event_message(event: Event) -> dict[str, Any] | None:
    """The message that an event adds to the transcript; ``None``: it adds none.

    An answer that was cut before it said anything, and an empty prompt, are in the log (the
    answer for its usage) and in no transcript: blank messages only confuse a model. Rewrites
    (``transcript_delta``) add several messages and are no business of this function.
    """
    return surface_message(event.type, event.data)


def surface_message(type_: str, data: dict[str, Any]) -> dict[str, Any] | None:
    """The message of an event of this type with this ``data``, as :func:`derive_event_message`."""
    if type_ not in SURFACE:
        return None
    message: dict[str, Any] = data["message"]
    said = message.get("content") or message.get("toolCalls") or message.get("reasoning")
    return message if said or type_ in _MAY_BE_EMPTY else None
