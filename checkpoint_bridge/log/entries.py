"""The conversation as people read it: what was said, done, decided, and how it ended.

Entry types and the keys of their data are the same in every language; ``entries.schema.json``
beside this module is their JSON Schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format.transcript import injected_by
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.fold import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.checkpoint_bridge.log.events import Event

__all__ = ["Entry", "EntryTypes", "entries_of", "entries_schema"]


class EntryTypes(StrEnum):
    """What an entry is."""

    USER = "user"
    ANSWER = "answer"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    APPROVAL_DECISION = "approval_decision"
    ERROR = "error"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry."""

    type: EntryTypes
    sequence: int
    """Of the event that it is from; an answer and the calls it asks for are from one event."""
    time_ms: int
    """Unix milliseconds."""
    data: dict[str, Any]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Entry:
        """Read an entry as :meth:`to_json` gives it."""
        return cls(EntryTypes(value["type"]), value["sequence"], value["timeMs"], value["data"])

    def to_json(self) -> dict[str, Any]:
        """The entry as the schema has it."""
        return {
            "type": str(self.type),
            "sequence": self.sequence,
            "timeMs": self.time_ms,
            "data": self.data,
        }


def entries_schema() -> dict[str, Any]:
    """The JSON Schema of one entry."""
    text = files(__package__).joinpath("entries.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def entries_of(events: Iterable[Event], before: SessionState | None = None) -> list[Entry]:
    """The entries of a whole log, or of the events that follow on the state ``before``.

    What only changes the messages that the model is given (a compaction, a patch) is none.

    Raises:
        SessionFormatUnsupportedError: an event is of a type that is not known and not ignorable.
    """
    state = before.copy() if before is not None else SessionState()
    entries = []
    for event in events:
        known = len(state.messages)
        state.fold([event])
        entries += [
            Entry(kind, event.sequence, event.time_ms, data)
            for kind, data in _of_event(event, known)
        ]
    return entries


def _of_event(event: Event, known: int) -> Iterator[tuple[EntryTypes, dict[str, Any]]]:
    data = event.data
    if event.type in (ev.USER_MESSAGE, ev.ASSISTANT_MESSAGE, ev.TOOL_RESULT):
        yield from _of_message(data["message"])
    elif event.type == ev.TRANSCRIPT_DELTA and data["keep"] >= known:
        for message in data["append"]:
            yield from _of_message(message)
    elif event.type == ev.APPROVAL_DECIDED:
        kept = {key: data[key] for key in ("note", "by", "closed") if data.get(key) is not None}
        yield (
            EntryTypes.APPROVAL_DECISION,
            {"approvalId": data["id"], "approved": bool(data["approved"]), **kept},
        )
    elif event.type == ev.TURN_END:
        reason = data["reason"]
        if reason["kind"] == "error":
            error = reason.get("error") or {}
            message = str(error.get("message") or "")
            yield EntryTypes.ERROR, {"code": str(error.get("code") or ""), "message": message}
        elif reason["kind"] not in ("completed", "max-tokens"):
            yield EntryTypes.STOPPED, {"reason": reason["kind"]}


def _of_message(message: Any) -> Iterator[tuple[EntryTypes, dict[str, Any]]]:
    if not isinstance(message, dict):
        return  # a record from outside may hold anything
    content = message.get("content")
    role = message.get("role")
    if role == "user":
        source = injected_by(message)
        said = {"content": content}
        yield EntryTypes.USER, said if source is None else {**said, "source": str(source)}
    elif role == "assistant":
        if content:
            yield EntryTypes.ANSWER, {"content": content}
        for call in message.get("toolCalls") or []:
            function = call.get("function") or {}
            yield (
                EntryTypes.TOOL_CALL,
                {
                    "toolCallId": str(call.get("id")),
                    "name": str(function.get("name")),
                    "arguments": str(function.get("arguments") or ""),
                },
            )
    elif role == "tool":
        yield (
            EntryTypes.TOOL_RESULT,
            {
                "toolCallId": str(message.get("toolCallId")),
                "name": str(message.get("toolName") or message.get("name") or ""),
                "content": content,
                "isError": bool(message.get("isError")),
            },
        )
