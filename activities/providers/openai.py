"""``openai/<model>``: the chat completions API, of OpenAI or of any compatible server.

Compatible servers leave things out and spell them otherwise, so reading is tolerant wherever the
meaning is clear: no usage, ``null`` content and calls, content as a list of parts, calls without
ids, other words for why the answer ended. What has no clear meaning is a malformed answer.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar

from perdure.activities.providers.base import ModelRequest, ModelResponse
from perdure.activities.providers.conversation import (
    Entry,
    make_ids_usable,
    settle,
    text_only,
)
from perdure.activities.providers.failures import (
    MalformedError,
    cannot_send,
    embedded_failure,
    malformed_answer,
)
from perdure.activities.providers.http import READ_TIMEOUT_SECONDS, HttpProvider
from perdure.activities.providers.parts import Part, parts_of
from perdure.activities.providers.usage import usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = ["OpenAIProvider"]

_RESERVED = frozenset({"model", "messages", "tools", "stream"})
_OFFICIAL_ID = re.compile(r"\S{1,40}")
_ANY_ID = re.compile(r".*\S.*", re.DOTALL)
_FINISH = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
    "insufficient_system_resource": "error",
}
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


class OpenAIProvider(HttpProvider):
    """Chat completions at ``{base_url}/chat/completions``.

    The key is ``api_key`` or ``OPENAI_API_KEY``; the address ``base_url`` or ``OPENAI_BASE_URL``.
    """

    label: ClassVar[str] = "openai"
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    url_variable: ClassVar[str] = "OPENAI_BASE_URL"
    official_url: ClassVar[str] = "https://api.openai.com/v1"

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        default_model: str = "",
        timeout: float | httpx.Timeout = READ_TIMEOUT_SECONDS,
        headers: Mapping[str, str] | None = None,
        reasoning_field: str | None = "reasoning_content",
    ) -> None:
        """See :class:`HttpProvider` for the arguments that the providers share.

        Args:
            base_url: see there.
            api_key: see there.
            default_model: see there.
            timeout: see there.
            headers: see there.
            reasoning_field: the message field in which a compatible server gives its reasoning.
                Some refuse a turn with calls that comes back without it, so it is sent back in
                such turns. ``None`` leaves it out; the official service never gets it.
        """
        super().__init__(
            base_url=base_url,
            api_key=api_key,
            default_model=default_model,
            timeout=timeout,
            headers=headers,
        )
        self._reasoning_field = reasoning_field

    def auth_headers(self, key: str) -> dict[str, str]:
        """The key as a bearer token."""
        return {"authorization": f"Bearer {key}"}

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Ask for one turn; see :class:`~perdure.activities.providers.base.ModelProvider`."""
        model = self.model_of(request)
        body = self._body(request, model)
        payload, origin = await self.post("/chat/completions", body, model=model)
        choices = payload.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            raise malformed_answer(origin, "no choices")
        if choice.get("error"):
            raise embedded_failure(origin, choice["error"])
        why = ""
        try:
            return self._response(payload, choice, model)
        except MalformedError as error:
            why = str(error)
        raise malformed_answer(origin, why)

    def _body(self, request: ModelRequest, model: str) -> JsonObject:
        official = self.is_official()
        entries = settle(
            request.messages,
            label=self.label,
            id_pattern=_OFFICIAL_ID if official else _ANY_ID,
            known={tool.name for tool in request.tools},
        )
        field = None if official else self._reasoning_field
        body: JsonObject = {
            "model": model,
            "messages": [_message(entry, field) for entry in entries],
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        **({"description": tool.description} if tool.description else {}),
                        "parameters": tool.input_schema or {"type": "object", "properties": {}},
                    },
                }
                for tool in request.tools
            ]
        return {**body, **self.settings_of(request, _RESERVED)}

    def _response(self, payload: JsonObject, choice: JsonObject, model: str) -> ModelResponse:
        message = choice.get("message")
        if not isinstance(message, dict):
            raise MalformedError("a choice without a message")
        text, thoughts = _read_content(message.get("content"))
        if self._reasoning_field and isinstance(message.get(self._reasoning_field), str):
            thoughts.insert(0, message[self._reasoning_field])
        calls = _read_calls(message.get("tool_calls"))
        refusal = message.get("refusal")
        finish = _finish_reason(choice.get("finish_reason"), calls)
        if isinstance(refusal, str) and refusal and not text and not calls:
            text, finish = refusal, "content_filter"
        identity = payload.get("id")
        return ModelResponse(
            text=text,
            tool_calls=calls,
            finish_reason=finish,
            usage=_read_usage(payload.get("usage")),
            model=str(payload.get("model") or model),
            reasoning=[{"text": thought} for thought in thoughts if thought],
            response_id=identity if isinstance(identity, str) and identity else None,
        )


def _message(entry: Entry, reasoning_field: str | None) -> JsonObject:
    label = OpenAIProvider.label
    if entry.role == "user":
        return {"role": "user", "content": _user_content(entry)}
    text = text_only(entry, label)
    if entry.role == "system":
        return {"role": "system", "content": text}
    if entry.role == "tool":
        # An empty result would look like none to strict servers (field report R24).
        return {"role": "tool", "tool_call_id": entry.call_id, "content": text or '""'}
    message: JsonObject = {"role": "assistant", "content": text}
    if entry.calls:
        message["content"] = text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.raw_arguments},
            }
            for call in entry.calls
        ]
        thoughts = [
            str(thought.get("text", ""))
            for thought in entry.message.get("reasoning") or []
            # Signed and redacted thoughts are another service's and mean nothing here.
            if not thought.get("signature") and not thought.get("redactedData")
        ]
        if reasoning_field and any(thoughts):
            message[reasoning_field] = "".join(thoughts)
    return message


def _user_content(entry: Entry) -> str | list[JsonObject]:
    parts = parts_of(entry, OpenAIProvider.label)
    if all(part.media is None for part in parts):
        # A string, because not every compatible server takes a list.
        return "".join(part.text for part in parts)
    return [_part(part) for part in parts]


def _part(part: Part) -> JsonObject:
    media = part.media
    if media is None:
        return {"type": "text", "text": part.text}
    if media.is_image or (media.url and part.kind == "image"):
        return {"type": "image_url", "image_url": {"url": media.url or media.data_url}}
    if media.url:
        raise cannot_send(
            OpenAIProvider.label,
            f"{part.where} is a file by address, which chat completions do not take; give its data",
        )
    if not media.mime:
        raise cannot_send(OpenAIProvider.label, f"{part.where} is a file without a mimeType")
    if media.mime in _AUDIO:
        audio = {"data": media.data, "format": _AUDIO[media.mime]}
        return {"type": "input_audio", "input_audio": audio}
    return {
        "type": "file",
        "file": {"filename": media.name_or_default(), "file_data": media.data_url},
    }


def _read_content(content: Any) -> tuple[str, list[str]]:
    """Text and thoughts of a message's content."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise MalformedError("a content that is neither text nor a list of parts")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and part.get("type") == "thinking":
            thoughts.append(_read_content(part.get("thinking"))[0])
    return "".join(texts), thoughts


def _read_calls(stored: Any) -> list[JsonObject]:
    if stored is None:
        return []
    if not isinstance(stored, list):
        raise MalformedError("tool_calls that are not a list")
    calls: list[JsonObject] = []
    for call in stored:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise MalformedError("a tool call without a name")
        arguments = function.get("arguments")
        if arguments is None:
            # Servers leave them out for tools without parameters.
            arguments = "{}"
        elif not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        calls.append(
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return make_ids_usable(calls)


def _finish_reason(stored: Any, calls: list[JsonObject]) -> str:
    reason = str(stored) if stored else ("tool_calls" if calls else "stop")
    reason = _FINISH.get(reason.lower(), reason)
    if reason == "stop" and calls:
        return "tool_calls"
    if reason == "tool_calls" and not calls:
        return "stop"
    return reason


def _read_usage(stored: Any) -> JsonObject | None:
    if not isinstance(stored, dict):
        return None
    prompt = stored.get("prompt_tokens_details")
    answer = stored.get("completion_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    answer = answer if isinstance(answer, dict) else {}
    return usage_of(
        input_tokens=stored.get("prompt_tokens"),
        output_tokens=stored.get("completion_tokens"),
        cached=prompt.get("cached_tokens") or stored.get("prompt_cache_hit_tokens"),
        cache_write=prompt.get("cache_write_tokens"),
        reasoning=answer.get("reasoning_tokens"),
    )
