"""The transcript as programs get it: messages that are shared, and that nobody can change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from perdure.checkpoint_bridge.format.messages import Message
from perdure.checkpoint_bridge.log.events import dump
from perdure.checkpoint_bridge.log.fold import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.checkpoint_bridge.log.events import Event


def derive_messages(events: Iterable[Event]) -> list[Message]:
    """The conversation that a log has come to: the same log gives the same messages anywhere.

    Args:
        events: a log from its beginning, in order.

    Returns:
        A new list of frozen messages: the list is the caller's, the messages are read-only.
    """
    return messages_of(SessionState().fold(events))


def fold(events: Iterable[Event]) -> tuple[list[Message], dict[str, Any]]:
    """The conversation that a log has come to, and the key-value state of the session's tools.

    Args:
        events: a log from its beginning, in order.

    Returns:
        The messages as :func:`derive_messages` gives them, and the values by their keys, which
        are copies. A key whose value is ``None`` was set to ``null``.
    """
    state = SessionState().fold(events)
    return messages_of(state), kv_of(state)


def kv_of(state: SessionState) -> dict[str, Any]:
    """A copy of the key-value state of a folded log."""
    kept: dict[str, Any] = json.loads(dump(state.kv))
    return kept


def messages_of(state: SessionState) -> list[Message]:
    """The messages of a folded log. What is no message (a record from outside) is left out."""
    return [message for message in frozen_messages(state) if message is not None]


def frozen_messages(state: SessionState) -> list[Message | None]:
    """A frozen message for each place of the transcript; ``None`` where no message is.

    Each message is frozen once for its log, however often and wherever on the way it is read.
    """
    known = state.frozen
    made: list[tuple[Any, Message | None]] = [
        known[at] if at < len(known) and known[at][0] is raw else (raw, _frozen_message(raw))
        for at, raw in enumerate(state.messages)
    ]
    state.frozen = made
    return [message for _, message in made]


def _frozen_message(raw: Any) -> Message | None:
    return Message.from_json(frozen(raw)) if isinstance(raw, dict) else None


def frozen(value: Any) -> Any:
    """A copy of JSON that reads and compares like it, and refuses to be changed."""
    if isinstance(value, dict):
        return FrozenDict((key, frozen(item)) for key, item in value.items())
    if isinstance(value, list):
        return FrozenList(frozen(item) for item in value)
    return value


def _refuse(*_: Any, **__: Any) -> NoReturn:
    msg = "The transcript is shared and cannot be changed; message.to_json() is a copy."
    raise TypeError(msg)


class FrozenDict(dict[str, Any]):
    """A JSON object that cannot be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class FrozenList(list[Any]):
    """A JSON list that cannot be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
