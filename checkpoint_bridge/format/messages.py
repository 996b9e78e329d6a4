"""Messages and tool calls (format page, "Message")."""

from __future__ import annotations

from typing import Any

from perdure.checkpoint_bridge.format._record import Field, Record, member, plain, records
from perdure.checkpoint_bridge.format.stable_json import Json, JsonObject

__all__ = ["Json", "JsonObject", "Message", "ToolCall", "text_of"]


def text_of(message: Message | JsonObject) -> str:
    """The text of a message: its string content, or its text parts concatenated.

    Other parts (images, files) contribute nothing (format page, "Message").
    """
    content = member(plain(message), "content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (member(part, "text") for part in content if member(part, "type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


class ToolCall(Record):
    """A model's request for a tool: ``{id, type, function: {name, arguments}}``."""

    __slots__ = ()

    id = Field[str]("id", str)
    """The model's own id; the tool message with this ``toolCallId`` answers it."""

    type = Field[str]("type", lambda: "function")
    """Always ``function``."""

    function = Field[JsonObject]("function", dict)
    """``{name, arguments}`` as stored."""

    @classmethod
    def of(cls, id: str, name: str, arguments: str) -> ToolCall:  # noqa: A002 - the format's word
        """Make a call from its id, the tool's name and the raw argument text."""
        function = {"name": name, "arguments": arguments}
        return cls(id=id, type="function", function=function)

    @property
    def name(self) -> str:
        """The tool's name."""
        return _text(member(self.function, "name"))

    @property
    def arguments(self) -> str:
        """The model's raw argument text, kept as it came; it need not parse."""
        return _text(member(self.function, "arguments"))


class Message(Record):
    """One message of a transcript."""

    __slots__ = ()

    role = Field[str]("role", str)
    """``system``, ``user``, ``assistant`` or ``tool``."""

    content = Field[Any]("content", lambda: None)
    """A string, or a list of parts (``text``, ``image``, ``file``)."""

    name = Field[str | None]("name", lambda: None)
    """On tool messages: the tool's name (also in :attr:`tool_name`)."""

    tool_call_id = Field[str | None]("toolCallId", lambda: None)
    """On tool messages: the id of the call that it answers."""

    tool_name = Field[str | None]("toolName", lambda: None)
    """On tool messages: the tool's name."""

    tool_calls = Field[list[ToolCall]]("toolCalls", list, records(ToolCall))
    """On assistant messages: the calls that the model asks for, in order."""

    is_error = Field[bool]("isError", bool)
    """``True`` on the message of a failed tool."""

    reasoning = Field[list[Any]]("reasoning", list)
    """On assistant messages: opaque, sent back to the model byte for byte."""

    metadata = Field[JsonObject]("metadata", dict)
    """The application's own; never sent to the model."""

    @property
    def text(self) -> str:
        """The text of the message (:func:`text_of`)."""
        return text_of(self)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
