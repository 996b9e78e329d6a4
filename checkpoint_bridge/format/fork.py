"""What a fork changes in the checkpoint that it starts from (format page, "Fork patch")."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format._record import plain, plain_list
from perdure.checkpoint_bridge.format.stable_json import Json, JsonObject, copy_json
from perdure.checkpoint_bridge.format.transcript import with_tool_result

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.checkpoint import Checkpoint

__all__ = ["UNSET", "ForkPatch", "Unset", "apply_patch"]


class Unset(enum.Enum):
    """The type of :data:`UNSET`."""

    UNSET = "UNSET"


UNSET: Final = Unset.UNSET
"""Not given, where ``None`` is a value: a business state of ``None`` clears the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPatch:
    """What is different in the fork; the fields are applied in this order."""

    messages: Callable[[list[Any]], list[Any]] | None = None
    """Gets the transcript as plain JSON and gives the new one (JSON or models)."""

    business_state: Any = UNSET
    """Replaces the business state; ``None`` clears it."""

    tool_result: tuple[str, Json] | Mapping[str, Json] | None = None
    """``(tool_call_id, result)``: what that call is to have returned."""

    append_input: str | None = None
    """A user message at the end: sent after the calls that are still pending."""


def apply_patch(
    checkpoint: Checkpoint | JsonObject,
    patch: ForkPatch | None = None,
    *,
    session_id: str | None = None,
) -> JsonObject:
    """Make the checkpoint of a fork: a new, unfinished record; the source is not changed.

    The old approval is not carried over: the fork asks again.
    ``session_id`` is the fork's own id.

    Raises:
        ConfigurationError: the patch does not fit; ``field`` is ``patch.messages``,
            ``patch.toolResult`` or ``patch.appendInput``.
    """
    forked: JsonObject = copy_json(plain(checkpoint))
    if patch is not None:
        _patch(forked, patch)
    forked.pop("approvalId", None)
    if session_id is not None:
        forked["sessionId"] = session_id
    forked["status"] = "in-progress"
    return forked


def _patch(forked: JsonObject, patch: ForkPatch) -> None:
    messages = plain_list(forked.get("messages"))
    if patch.messages is not None:
        messages = _rewritten(patch.messages(messages))
    if patch.business_state is not UNSET:
        forked["businessState"] = copy_json(patch.business_state)
    if patch.tool_result is not None:
        messages = with_tool_result(messages, *_tool_result(patch.tool_result))
    if patch.append_input is not None:
        messages = [*messages, _user_message(patch.append_input)]
    forked["messages"] = messages


def _rewritten(given: Any) -> list[JsonObject]:
    messages: list[JsonObject] | None = copy_json(given) if isinstance(given, list) else None
    if messages is None or not all(isinstance(message, dict) for message in messages):
        kind = type(given).__name__
        raise ConfigurationError(
            f"fork: patch.messages must return a list of messages, not {kind}.",
            field="patch.messages",
        )
    return messages


def _user_message(text: Any) -> JsonObject:
    if not isinstance(text, str):
        raise ConfigurationError(
            f"fork: patch.appendInput is the text of a user message, not {type(text).__name__}.",
            field="patch.appendInput",
        )
    return {"role": "user", "content": text}


def _tool_result(given: Any) -> tuple[str, Json]:
    """Read the pair, or the object that the format writes it as."""
    if isinstance(given, Mapping):
        given = (given.get("toolCallId"), given.get("result"))
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not isinstance(given[0], str):
        raise ConfigurationError(
            "fork: patch.toolResult is a pair of a tool call's id and its result.",
            field="patch.toolResult",
        )
    return given[0], given[1]
