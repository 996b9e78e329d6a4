"""Our messages and settings in the words of OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format.messages import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.activities.providers.base import ModelRequest

_SETTINGS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}


def request_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An agent's settings that have a name in the conventions."""
    return {
        name: settings[key]
        for key, name in _SETTINGS.items()
        if isinstance(settings.get(key), (int, float))
    }


def chat_content(request: ModelRequest, answer: dict[str, Any]) -> dict[str, str]:
    """What a model was told and what it said, as attributes; only where content is captured."""
    told = [each for each in request.messages if each.get("role") != "system"]
    system = [_text(each) for each in request.messages if each.get("role") == "system"]
    content = {
        "gen_ai.input.messages": json.dumps([_message(each) for each in told]),
        "gen_ai.output.messages": json.dumps([_message(answer)]),
    }
    if system:
        content["gen_ai.system_instructions"] = json.dumps(system)
    return content


def tool_content(arguments: str, message: dict[str, Any]) -> dict[str, str]:
    """A call's arguments and result, as attributes; only where content is captured."""
    return {"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": text_of(message)}


def error_of(message: dict[str, Any]) -> str:
    """The name of the error in a tool's error result (format page, *Tool error object*)."""
    return str(json.loads(text_of(message))["error"])


def _text(message: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "content": text_of(message)}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if role == "tool":
        response = {"type": "tool_call_response", "id": message.get("toolCallId")}
        return {"role": role, "parts": [{**response, "response": text_of(message)}]}
    parts = [_text(message)] if text_of(message) else []
    for call in message.get("toolCalls") or []:
        function = call.get("function") or {}
        asked = {"name": function.get("name"), "arguments": function.get("arguments")}
        parts.append({"type": "tool_call", "id": call.get("id"), **asked})
    return {"role": role, "parts": parts}
