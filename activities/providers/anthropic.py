"""``anthropic/<model>``: the messages API.

System messages go to the top; the results of a turn's calls form the beginning of the one user
message behind it; signed thinking goes back unchanged and first, or the service refuses the turn.
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
    malformed_answer,
)
from perdure.activities.providers.http import READ_TIMEOUT_SECONDS, HttpProvider
from perdure.activities.providers.parts import Part, parts_of
from perdure.activities.providers.usage import count_of, usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = ["ANTHROPIC_VERSION", "DEFAULT_MAX_TOKENS", "AnthropicProvider"]

ANTHROPIC_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 8192
"""The API wants a limit with each request; the setting ``max_tokens`` gives another one."""

_RESERVED = frozenset({"model", "messages", "tools", "stream", "system"})
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    # Only the service's own tools pause a turn; what there is of it is the answer.
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_EMPTY_MESSAGE = "(empty message)"
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml"})


class AnthropicProvider(HttpProvider):
    """Messages at ``{base_url}/v1/messages``.

    The key is ``api_key`` or ``ANTHROPIC_API_KEY``; the address ``base_url`` or
    ``ANTHROPIC_BASE_URL``, with or without ``/v1`` at its end.
    """

    label: ClassVar[str] = "anthropic"
    key_variable: ClassVar[str] = "ANTHROPIC_API_KEY"
    url_variable: ClassVar[str] = "ANTHROPIC_BASE_URL"
    official_url: ClassVar[str] = "https://api.anthropic.com"

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        default_model: str = "",
        timeout: float | httpx.Timeout = READ_TIMEOUT_SECONDS,
        headers: Mapping[str, str] | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        """See :class:`HttpProvider` for the arguments that the providers share.

        Args:
            base_url: see there.
            api_key: see there.
            default_model: see there.
            timeout: see there.
            headers: see there.
            max_tokens: the limit of an answer where the settings name none; a thinking budget in
                the settings is added to it.
        """
        super().__init__(
            base_url=base_url,
            api_key=api_key,
            default_model=default_model,
            timeout=timeout,
            headers=headers,
        )
        self._max_tokens = max_tokens

    def auth_headers(self, key: str) -> dict[str, str]:
        """The key in the API's own header, and the version of the API."""
        return {"x-api-key": key, "anthropic-version": ANTHROPIC_VERSION}

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Ask for one turn; see :class:`~perdure.activities.providers.base.ModelProvider`."""
        model = self.model_of(request)
        body = self._body(request, model)
        path = "/messages" if self._base().path.rstrip("/").endswith("/v1") else "/v1/messages"
        payload, origin = await self.post(path, body, model=model)
        why = ""
        try:
            return _response(payload, model)
        except MalformedError as error:
            why = str(error)
        raise malformed_answer(origin, why)

    def _body(self, request: ModelRequest, model: str) -> JsonObject:
        entries = settle(
            request.messages,
            label=self.label,
            id_pattern=_ID,
            known={tool.name for tool in request.tools},
        )
        settings = self.settings_of(request, _RESERVED)
        body: JsonObject = {
            "model": model,
            "max_tokens": self._max_tokens + _thinking_budget(settings),
            "messages": _messages(entries),
        }
        system = [text_only(entry, self.label) for entry in entries if entry.role == "system"]
        if any(text.strip() for text in system):
            body["system"] = "\n\n".join(text for text in system if text.strip())
        if request.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    **({"description": tool.description} if tool.description else {}),
                    "input_schema": tool.input_schema or {"type": "object", "properties": {}},
                }
                for tool in request.tools
            ]
        return {**body, **settings}


def _thinking_budget(settings: JsonObject) -> int:
    """Tokens for thinking, which the API counts within ``max_tokens``."""
    thinking = settings.get("thinking")
    return (count_of(thinking.get("budget_tokens")) or 0) if isinstance(thinking, dict) else 0


def _messages(entries: list[Entry]) -> list[JsonObject]:
    """Turns of alternating roles; neighbours of the user's side become one message."""
    messages: list[JsonObject] = []
    pending: list[JsonObject] | None = None

    def flush() -> None:
        if pending is not None:
            blocks = pending or [{"type": "text", "text": _EMPTY_MESSAGE}]
            messages.append({"role": "user", "content": blocks})

    for entry in entries:
        if entry.role == "user":
            pending = (pending or []) + _blocks(entry)
        elif entry.role == "tool":
            pending = [*(pending or []), _tool_result(entry)]
        elif entry.role == "assistant":
            blocks = _assistant_blocks(entry)
            if not blocks:
                # An empty answer, which the API does not take back.
                continue
            flush()
            pending = None
            messages.append({"role": "assistant", "content": blocks})
    flush()
    return messages


def _assistant_blocks(entry: Entry) -> list[JsonObject]:
    blocks: list[JsonObject] = []
    for thought in entry.message.get("reasoning") or []:
        if thought.get("redactedData"):
            blocks.append({"type": "redacted_thinking", "data": thought["redactedData"]})
        elif thought.get("signature"):
            blocks.append(
                {
                    "type": "thinking",
                    "thinking": thought.get("text", ""),
                    "signature": thought["signature"],
                }
            )
        # Without a signature it is another service's, and would be refused.
    text = text_only(entry, AnthropicProvider.label)
    if text.strip():
        blocks.append({"type": "text", "text": text})
    elif not entry.calls:
        # Thinking alone is not a turn.
        return []
    blocks.extend(
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in entry.calls
    )
    return blocks


def _tool_result(entry: Entry) -> JsonObject:
    content: str | list[JsonObject]
    if isinstance(entry.message.get("content"), list):
        content = _blocks(entry)
    else:
        content = text_only(entry, AnthropicProvider.label)
    block: JsonObject = {
        "type": "tool_result",
        "tool_use_id": entry.call_id,
        # An empty result would look like none (field report R24).
        "content": content or '""',
    }
    if entry.message.get("isError"):
        block["is_error"] = True
    return block


def _blocks(entry: Entry) -> list[JsonObject]:
    parts = parts_of(entry, AnthropicProvider.label)
    # The API refuses blocks of white space.
    return [_block(part) for part in parts if part.media is not None or part.text.strip()]


def _block(part: Part) -> JsonObject:
    media = part.media
    if media is None:
        return {"type": "text", "text": part.text}
    if media.url:
        if part.kind == "image" or media.is_image:
            return {"type": "image", "source": {"type": "url", "url": media.url}}
        if media.mime not in {"", "application/pdf"}:
            raise cannot_send(
                AnthropicProvider.label,
                f"{part.where} is a file of type {media.mime!r} by address, where only PDFs and "
                "images can be; give its data",
            )
        return _document({"type": "url", "url": media.url}, media.filename)
    if media.is_image:
        source = {"type": "base64", "media_type": media.mime, "data": media.data}
        return {"type": "image", "source": source}
    if media.mime == "application/pdf":
        source = {"type": "base64", "media_type": media.mime, "data": media.data}
        return _document(source, media.filename)
    text = media.text() if media.mime.startswith("text/") or media.mime in _TEXT_TYPES else None
    if text is None:
        raise cannot_send(
            AnthropicProvider.label,
            f"{part.where} is a file of type {media.mime or 'unknown'!r}; known: PDF, images and "
            "text in UTF-8",
        )
    return _document({"type": "text", "media_type": "text/plain", "data": text}, media.filename)


def _document(source: JsonObject, filename: str) -> JsonObject:
    return {"type": "document", "source": source, **({"title": filename} if filename else {})}


def _response(payload: JsonObject, model: str) -> ModelResponse:
    content = payload.get("content")
    if not isinstance(content, list):
        raise MalformedError("no content")
    texts: list[str] = []
    reasoning: list[JsonObject] = []
    calls: list[JsonObject] = []
    for block in content:
        if not isinstance(block, dict):
            raise MalformedError("a content block that is not an object")
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind == "thinking":
            thought: JsonObject = {"text": str(block.get("thinking") or "")}
            if block.get("signature"):
                thought["signature"] = block["signature"]
            reasoning.append(thought)
        elif kind == "redacted_thinking":
            reasoning.append({"text": "", "redactedData": block.get("data")})
        elif kind == "tool_use":
            calls.append(_read_call(block))
    calls = make_ids_usable(calls)
    identity = payload.get("id")
    return ModelResponse(
        text="".join(texts),
        tool_calls=calls,
        finish_reason=_finish_reason(payload.get("stop_reason"), calls),
        usage=_read_usage(payload.get("usage")),
        model=str(payload.get("model") or model),
        reasoning=reasoning,
        response_id=identity if isinstance(identity, str) and identity else None,
    )


def _read_call(block: JsonObject) -> JsonObject:
    name = block.get("name")
    if not isinstance(name, str) or not name:
        raise MalformedError("a tool call without a name")
    arguments = json.dumps(block.get("input", {}), ensure_ascii=False, separators=(",", ":"))
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _finish_reason(stored: Any, calls: list[JsonObject]) -> str:
    reason = _FINISH.get(str(stored), str(stored)) if stored else "stop"
    if reason == "stop" and calls:
        return "tool_calls"
    if reason == "tool_calls" and not calls:
        return "stop"
    return reason


def _read_usage(stored: Any) -> JsonObject | None:
    if not isinstance(stored, dict):
        return None
    read = count_of(stored.get("cache_read_input_tokens")) or 0
    written = count_of(stored.get("cache_creation_input_tokens")) or 0
    fresh = count_of(stored.get("input_tokens"))
    details = stored.get("output_tokens_details")
    return usage_of(
        input_tokens=None if fresh is None else fresh + read + written,
        output_tokens=stored.get("output_tokens"),
        cached=read,
        cache_write=written,
        reasoning=details.get("thinking_tokens") if isinstance(details, dict) else None,
    )
