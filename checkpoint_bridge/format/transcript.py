"""The rules that keep a transcript valid for every provider (format page, "Transcript rules").

All functions take messages as plain JSON or as models, change nothing, and give plain JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format._record import member, plain, plain_list
from perdure.checkpoint_bridge.format.messages import Message, ToolCall, text_of
from perdure.checkpoint_bridge.format.stable_json import (
    Json,
    JsonObject,
    json_equal,
    stable_json,
    to_json_text,
)

__all__ = [
    "INJECTED_BY",
    "PROVIDER_ERROR_PREFIX",
    "PendingTurn",
    "assert_valid",
    "injected_by",
    "input_messages",
    "is_injected",
    "new_session_messages",
    "split_pending_turn",
    "tool_message",
    "with_tool_result",
]

Messages: TypeAlias = Sequence[Message] | Sequence[JsonObject]

_ROLES = ("system", "user", "assistant", "tool")

PROVIDER_ERROR_PREFIX = "[provider-error]"
"""How the text of a user message starts that a person did not write."""


INJECTED_BY = "injectedBy"
"""The key of a user message's ``metadata`` that says who put it there: no person wrote it."""


@dataclass(frozen=True, slots=True)
class PendingTurn:
    """A transcript, parted into what a provider may see now and what has to wait."""

    messages: list[JsonObject]
    """The transcript up to the last turn, with the results of its calls in call order."""

    pending_tool_calls: list[JsonObject]
    """The calls of the last turn that have no result, in order."""

    queued_input: list[JsonObject]
    """What follows once every call has its result."""

    def to_json(self) -> JsonObject:
        """The three lists under the format's names."""
        return {
            "messages": self.messages,
            "pendingToolCalls": self.pending_tool_calls,
            "queuedInput": self.queued_input,
        }


def calls_of(message: Json) -> list[Json]:
    """The calls that an assistant message asks for."""
    return plain_list(member(message, "toolCalls"))


def input_messages(given: Json) -> list[JsonObject]:
    """Input as messages: a text is one user message.

    Raises:
        ConfigurationError: it is neither a text nor a list of messages (``field`` is ``input``).
    """
    if given is None:
        return []
    if isinstance(given, str):
        if not given:
            msg = "The input is an empty text; give a message, or [] to resume."
            raise ConfigurationError(msg, field="input")
        return [{"role": "user", "content": given}]
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list):
        msg = f"The input is a text or a list of messages, not {type(given).__name__}."
        raise ConfigurationError(msg, field="input")
    for index, message in enumerate(given):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            msg = f"Message {index} of the input needs a role of {', '.join(_ROLES)}."
            raise ConfigurationError(msg, field="input")
        if not isinstance(message.get("content"), (str, list)):
            msg = f"Message {index} of the input needs content: a text or a list of parts."
            raise ConfigurationError(msg, field="input")
    return given


def split_pending_turn(messages: Messages) -> PendingTurn:
    """Find the calls of the last assistant message that have no result yet.

    Their results are moved directly behind the turn in call order. While a result is missing,
    every other later message is queued: nothing may stand between a turn and its results.

    A model that gives two calls of one turn the same id gets its results in the order they were
    recorded; of more results than calls, the last ones count (as in ``compare_trajectories``).
    """
    plain_messages = plain_list(messages)
    turn = _last_turn(plain_messages)
    if turn is None:
        return PendingTurn(plain_messages, [], [])
    calls = calls_of(plain_messages[turn])
    results: dict[str, list[JsonObject]] = {id_key(member(call, "id")): [] for call in calls}
    others: list[JsonObject] = []
    for message in plain_messages[turn + 1 :]:
        found = results.get(id_key(member(message, "toolCallId")))
        if member(message, "role") == "tool" and found is not None:
            found.append(message)
        else:
            others.append(message)

    count: dict[str, int] = defaultdict(int)
    for call in calls:
        count[id_key(member(call, "id"))] += 1
    waiting = {key: iter(found[-count[key] :]) for key, found in results.items()}
    ordered: list[JsonObject] = []
    pending: list[JsonObject] = []
    for call in calls:
        result = next(waiting[id_key(member(call, "id"))], None)
        if result is None:
            pending.append(call)
        else:
            ordered.append(result)
    kept = plain_messages[: turn + 1] + ordered
    if pending:
        return PendingTurn(kept, pending, others)
    return PendingTurn(kept + others, [], [])


def new_session_messages(
    stored: Messages,
    input: str | Messages,  # noqa: A002 - the format's own word
    finished: bool,  # noqa: FBT001 - positional in the conformance vectors
) -> list[JsonObject]:
    """Which of the incoming messages are new to a stored session.

    A caller may send only the new message, the stored history and the new message, or the
    message of an unfinished run again; nothing of it may be stored twice (format page, "New
    input to a stored session"). System messages are dropped: the session has its own.
    """
    incoming_input = [{"role": "user", "content": input}] if isinstance(input, str) else input
    old = [message for message in plain_list(stored) if member(message, "role") != "system"]
    new = [message for message in plain_list(incoming_input) if member(message, "role") != "system"]
    # A caller that has only its own part of the conversation does not send what a hook put there.
    old = [m for m in old if not is_injected(m) or any(_same(m, each) for each in new)]
    shared = 0
    while shared < min(len(old), len(new)) and _same(old[shared], new[shared]):
        shared += 1
    if shared == len(old) or (not finished and shared > 0):
        return new[shared:]
    if finished:
        return new
    end = next((n for n in range(len(old), 0, -1) if _is_real_user_turn(old[n - 1])), 0)
    begin = end - len(new)
    if begin >= 0 and all(map(_same, old[begin:end], new)):
        return []
    return new


def with_tool_result(messages: Messages, tool_call_id: str, result: Json) -> list[JsonObject]:
    """Give a call another result, in the place of the one that it has, else at the end.

    Some models repeat ids in later turns; the last call of this id is meant.

    Raises:
        ConfigurationError: no assistant message has the call (``field`` is ``patch.toolResult``).
    """
    plain_messages = plain_list(messages)
    wanted = id_key(tool_call_id)
    turn, found = -1, None
    for index, message in enumerate(plain_messages):
        if member(message, "role") != "assistant":
            continue
        for call in calls_of(message):
            if id_key(member(call, "id")) == wanted:
                turn, found = index, call
    if found is None:
        raise ConfigurationError(
            f"fork: the kept transcript has no tool call '{tool_call_id}'.",
            field="patch.toolResult",
        )
    made = tool_message(found, to_json_text(result))
    for index in range(len(plain_messages) - 1, turn, -1):
        message = plain_messages[index]
        if member(message, "role") == "tool" and id_key(member(message, "toolCallId")) == wanted:
            return [*plain_messages[:index], made, *plain_messages[index + 1 :]]
    return [*plain_messages, made]


def tool_message(
    call: ToolCall | JsonObject, content: str, *, is_error: bool = False
) -> JsonObject:
    """Make the message that answers a call; ``content`` is the JSON text of the result."""
    plain_call = plain(call)
    name = member(member(plain_call, "function"), "name")
    made: JsonObject = {
        "role": "tool",
        "content": content,
        "name": name,
        "toolCallId": member(plain_call, "id"),
        "toolName": name,
    }
    if is_error:
        made["isError"] = True
    return made


def assert_valid(messages: Messages) -> None:
    """Check that every provider would take the transcript.

    Each call has exactly one result, directly after its turn and in call order, before any other
    message; ids are non-empty strings, unique in a turn; every tool message answers a call.
    Arguments need not parse: that is for the provider's adapter.

    Raises:
        ValueError: names the first message that a provider would refuse.
    """
    waiting: list[str] = []
    for index, message in enumerate(plain_list(messages)):
        role = member(message, "role")
        if role == "tool":
            answered = member(message, "toolCallId")
            if not waiting:
                _refuse(index, f"the result of {_shown(answered)} answers no call before it")
            if answered != waiting[0]:
                due = f"stands where {waiting[0]!r} is due"
                _refuse(index, f"the result of {_shown(answered)} {due}")
            waiting.pop(0)
            continue
        if waiting:
            due = f"before the result of call {waiting[0]!r}"
            _refuse(index, f"a {_shown(role)} message stands {due}")
        if role == "assistant":
            waiting = _checked_ids(index, calls_of(message))
        elif role != "system" and role != "user":  # noqa: PLR1714 - a role can be unhashable
            _refuse(index, f"the role {_shown(role)} is unknown")
    if waiting:
        raise ValueError(f"call {waiting[0]!r} has no result")


def _checked_ids(index: int, calls: list[Json]) -> list[str]:
    ids: list[str] = []
    for call in calls:
        call_id = member(call, "id")
        if not isinstance(call_id, str) or not call_id:
            _refuse(index, f"a call's id is {_shown(call_id)}, not a non-empty string")
        if call_id in ids:
            _refuse(index, f"two calls have the id {call_id!r}")
        ids.append(call_id)
    return ids


def _refuse(index: int, reason: str) -> None:
    raise ValueError(f"message {index}: {reason}")


def _shown(value: Json) -> str:
    """A value in a message: an odd one can be nested deeper than ``repr`` goes."""
    return repr(value) if isinstance(value, str) else stable_json(value)


def _last_turn(messages: list[JsonObject]) -> int | None:
    for index in range(len(messages) - 1, -1, -1):
        if member(messages[index], "role") == "assistant":
            return index
    return None


def _is_real_user_turn(message: JsonObject) -> bool:
    if member(message, "role") != "user" or is_injected(message):
        return False
    return not text_of(message).startswith(PROVIDER_ERROR_PREFIX)


def injected_by(message: Json) -> Json:
    """The hook that put the message into the conversation; ``None`` for all others."""
    return member(member(message, "metadata"), INJECTED_BY)


def is_injected(message: Json) -> bool:
    """Whether a hook put the message into the conversation."""
    return injected_by(message) is not None


def _same(a: Json, b: Json) -> bool:
    """Whether role, content and toolCallId are equal; an absent key equals only an absent one."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return json_equal(a, b)
    return all(
        (key in a) == (key in b) and json_equal(a.get(key), b.get(key))
        for key in ("role", "content", "toolCallId")
    )


def id_key(call_id: Json) -> str:
    """An id as a dictionary key; an odd id (a number, null) never equals a string."""
    return f"s{call_id}" if isinstance(call_id, str) else f"j{stable_json(call_id)}"
