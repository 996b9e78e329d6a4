"""The seam between the agent loop and whoever answers for the model.

One method, plain values. A provider translates the documented format's messages into its
own wire form and back, and says by the error it raises whether asking again can help. It never
retries by itself: attempts, backoff and their record belong to Temporal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = ["ModelProvider", "ModelRequest", "ModelResponse", "ToolSpec"]


@dataclass(frozen=True)
class ToolSpec:
    """What a model is told about one tool."""

    name: str
    description: str
    input_schema: JsonObject
    """JSON Schema of the arguments; an empty one means a tool without arguments."""


@dataclass(frozen=True)
class ModelRequest:
    """Everything that one model turn depends on.

    ``session_id``, ``run_id`` and ``step`` (from 1) are for logs, for tests and for providers of
    one's own; the providers here do not send them.
    """

    model: str
    """The model's name without the provider's prefix."""
    messages: list[JsonObject]
    """The format's Messages, system messages in place; never changed by a provider."""
    tools: list[ToolSpec] = field(default_factory=list)
    settings: JsonObject = field(default_factory=dict)
    """Parameters in the provider's own names (``temperature``), sent as they are."""
    session_id: str = ""
    run_id: str = ""
    step: int = 1


@dataclass(frozen=True)
class ModelResponse:
    """One model turn in the documented format's terms.

    An answer without text and without calls is a response like any other: what to do about it
    is the loop's decision.
    """

    text: str = ""
    tool_calls: list[JsonObject] = field(default_factory=list)
    """The format's ToolCalls; ids are non-empty and unique in this turn, ``arguments`` is raw."""
    finish_reason: str = "stop"
    """``stop``, ``length``, ``tool_calls``, ``content_filter``, ``error``, or another word."""
    usage: JsonObject | None = None
    """``inputTokens`` (the whole prompt, cache reads and writes included, for every provider),
    ``outputTokens``, ``totalTokens`` (their sum) and, where known and not zero,
    ``cachedInputTokens``, ``cacheWriteTokens``, ``reasoningTokens``, each part of the two sums.
    ``None`` when the provider did not say."""
    model: str = ""
    """The model that the provider says has answered."""
    reasoning: list[JsonObject] = field(default_factory=list)
    """The format's reasoning entries, to be stored and sent back unchanged."""
    response_id: str | None = None

    def message(self) -> JsonObject:
        """The assistant Message to put into the transcript; absent parts have no key."""
        message: JsonObject = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["toolCalls"] = self.tool_calls
        if self.reasoning:
            message["reasoning"] = self.reasoning
        return message


@runtime_checkable
class ModelProvider(Protocol):
    """Who answers for the model: a service, or a script in a test.

    Two optional members are looked up with ``getattr``: ``default_model`` (str), the model when
    the agent names none, and ``async aclose()``, called when the worker stops.
    """

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Ask for one turn.

        Raises:
            ProviderError: it failed; ``retryable`` says whether to ask again and
                ``retry_after`` after how many seconds.
            ConfigurationError: the request cannot be sent as it is.
        """
        ...
