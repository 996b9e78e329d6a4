"""What a request to the model was made of, so that it can be built again from the log.

A ``request/header`` is written where what the agent brings to a request has changed; the messages
are those that the log had come to, cut as the header says and chosen as the answer's event says
(:func:`.request_messages.recorded_messages`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from perdure.checkpoint_bridge.format.messages import text_of
from perdure.checkpoint_bridge.format.stable_json import copy_json
from perdure.checkpoint_bridge.log.events import dump

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["capped", "config_text", "request_config"]

_texts: WeakKeyDictionary[object, tuple[dict[str, Any], str]] = WeakKeyDictionary()


def request_config(
    *,
    model: str,
    settings: Mapping[str, Any],
    tools: Iterable[tuple[str, str, dict[str, Any]]],
    max_result_chars: int,
    tool_result_chars: Mapping[str, int],
) -> dict[str, Any]:
    """The snapshot that a ``request/header`` holds.

    Args:
        model: the name that the provider gets.
        settings: further parameters in the provider's own names.
        tools: name, description and input schema of each, in order.
        max_result_chars: how much of one tool result is shown.
        tool_result_chars: the same for tools that have a number of their own.
    """
    return {
        "model": model,
        "settings": dict(settings),
        "tools": [
            {"name": name, "description": description, "inputSchema": schema}
            for name, description, schema in tools
        ],
        "maxResultChars": max_result_chars,
        "toolResultChars": dict(tool_result_chars),
    }


def config_text(agent: object, config: dict[str, Any]) -> str:
    """The JSON of what ``agent`` brings now: written out anew only where it has changed.

    It is asked for at each step, and the schemas of many tools take long to write.
    """
    known = _texts.get(agent)
    if known is not None and known[0] == config:
        return known[1]
    text = dump(config)
    _texts[agent] = copy_json(config), text
    return text


def capped(config: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """A message as the model is shown it: one huge result must not make every request too long.

    Only requests are cut, so the record keeps all of it, and a session that was too long goes on
    when its agent allows less.
    """
    if not isinstance(message, dict) or message.get("role") != "tool":
        return message
    limit: int = config["maxResultChars"]
    if config["toolResultChars"]:
        name = str(message.get("toolName") or message.get("name"))
        limit = config["toolResultChars"].get(name) or limit
    content = message.get("content")
    if isinstance(content, str) and len(content) > limit:
        return {**message, "content": _cut(content, limit)}
    if isinstance(content, list) and len(text_of(message)) > limit:
        return {**message, "content": [_capped_part(part, limit) for part in content]}
    return message


def _capped_part(part: Any, limit: int) -> Any:
    text = part.get("text") if isinstance(part, dict) else None
    if isinstance(text, str) and len(text) > limit:
        return {**part, "text": _cut(text, limit)}
    return part


def _cut(text: str, limit: int) -> str:
    shown = text[:limit]
    return f"{shown}... [cut: {len(text)} characters in all, the first {limit} are shown]"
