"""For tests of agents: a model that follows a script."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure.activities.providers.base import ModelRequest, ModelResponse
from perdure.checkpoint_bridge.errors import ProviderError
from perdure.checkpoint_bridge.option_checks import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Turn = (
        str
        | ModelResponse
        | BaseException
        | Sequence[dict[str, Any]]
        | Callable[[ModelRequest], "Turn"]
    )

__all__ = ["ModelRequest", "ModelResponse", "ScriptedModel", "attempts", "call"]

_USAGE = {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110}


def call(name: str, arguments: Any = None, *, id: str | None = None) -> dict[str, Any]:  # noqa: A002 - as in a call
    """A tool call for a scripted turn.

    Args:
        name: the tool.
        arguments: any JSON; a text is taken as the model's raw arguments, as they are.
        id: the model's id; default: ``call_<turn>_<place>``, both from 1.
    """
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": id, "type": "function", "function": {"name": name, "arguments": raw}}


def attempts(*turns: Turn) -> Callable[[ModelRequest], Turn]:
    """A turn that is ``turns[0]`` at its first attempt, ``turns[1]`` at its second, and so on.

    Attempts are counted in this process; the last one repeats.
    """
    left = list(turns)

    def turn(_request: ModelRequest) -> Turn:
        return left.pop(0) if len(left) > 1 else left[0]

    return turn


class ScriptedModel:
    """A model provider for tests and demos: each turn is prepared, each request is recorded.

    The turn is chosen by how many assistant messages the request holds, so a script goes on
    where it was after a worker's death, and in a fork.

    Args:
        turns: for each model turn a text, a list of :func:`call`, a :class:`ModelResponse`, an
            exception to raise, or a function of the request that gives one of these. One such
            function instead of the list answers all turns.
        usage: what each answer counts, in the format's names; ``None`` for a provider that
            does not count.
    """

    default_model = "scripted"

    def __init__(
        self,
        turns: Sequence[Turn] | Callable[[ModelRequest], Turn],
        *,
        usage: dict[str, Any] | None = _USAGE,
    ) -> None:
        self._every: Turn | None = turns if callable(turns) else None
        if isinstance(turns, str):
            raise refusal("turns", "a list of turns", turns)
        self.turns: list[Turn] = [] if callable(turns) else list(turns)
        self.usage = usage
        self.requests: list[ModelRequest] = []
        """Every request this object was asked, in order."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Give the turn that the request's transcript has come to."""
        self.requests.append(request)
        number = sum(1 for message in request.messages if message.get("role") == "assistant")
        if self._every is None and number >= len(self.turns):
            msg = f"The script has {len(self.turns)} turns; turn {number + 1} was asked for."
            raise ProviderError(msg)
        turn = self.turns[number] if self._every is None else self._every
        while not isinstance(turn, (str, ModelResponse, BaseException)) and callable(turn):
            turn = turn(request)
        return self._response(turn, number + 1)

    def _response(self, turn: Any, number: int) -> ModelResponse:
        if isinstance(turn, BaseException):
            raise turn
        if isinstance(turn, ModelResponse):
            return turn
        if isinstance(turn, str):
            return ModelResponse(text=turn, usage=self.usage, model=self.default_model)
        calls = [
            {**each, "id": each.get("id") or f"call_{number}_{place}"}
            for place, each in enumerate(turn, start=1)
        ]
        return ModelResponse(
            tool_calls=calls,
            finish_reason="tool_calls",
            usage=self.usage,
            model=self.default_model,
        )
