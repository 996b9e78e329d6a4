"""Agents: a model, its instructions and its tools, under a name that workers serve."""

from __future__ import annotations

import json
import re
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from perdure.activities.providers.registry import parse_model, provider_for
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.fingerprints import AgentFingerprint, fingerprint
from perdure.checkpoint_bridge.option_checks import (
    async_function,
    count,
    iterated,
    of_type,
    one_of,
    refusal,
    seconds,
    text,
)
from perdure.options import Limits, profile_of
from perdure.tools import AgentTool, Tool, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from perdure.activities.providers.base import ModelProvider
    from perdure.activities.turn_context import TurnHook
    from perdure.history_options import Chars, HistoryPolicy, Tokens
    from perdure.options import ModelRecovery, OnCrash, Profile, TurnPolicy
    from perdure.tools import Recovery

OnAgentDrift = Literal["warn", "error", "ignore"]
ToolErrors = Literal["redacted", "full", "type"]

DEFAULT_MAX_STEPS = 50
DEFAULT_MAX_DELEGATION_DEPTH = 4
DEFAULT_MAX_RESULT_CHARS = 100_000
_NAME = re.compile(r"[^\s\x00-\x1f]{1,128}")


class Agent:
    """An agent's definition. It holds no state: workers build it, runs only name it.

    Args:
        name: what runs refer to: 1 to 128 characters without white space.
        model: ``openai/<model>`` or ``anthropic/<model>``; with ``provider``, any name.
        provider: an object with ``async generate(request) -> ModelResponse``; default: the one
            that the model's prefix names.
        instructions: the system prompt of new sessions.
        tools: tools, or functions that become tools.
        max_steps: model responses that one run may have; running out finishes it.
        tool_concurrency: how many calls of a turn run at a time; default: all of them.
        approval_ttl: seconds (or a ``timedelta``) after which an approval that nobody decided is
            rejected; default: never.
        tool_errors: what the model, the record and the client see of an exception that a tool
            raises: its class and its message with what looks like a secret taken out
            (``redacted``), the message as it is (``full``), or the class alone (``type``).
        max_result_chars: characters of one tool result that a request shows to the model; the
            rest is cut with a marker. The record keeps the whole result.
        on_turn_stopping: an async function of a ``TurnContext`` that runs when a turn has come to
            its end; the user messages that it gives are part of the next turn.
        settings: further request settings by the provider's own names (``temperature``, …).
        max_delegation_depth: how deep agents may call each other below a run of this one.
        on_agent_drift: what a difference to the agent that started a run does when the run
            is resumed: ``warn``, ``error`` or ``ignore``.
        profile: a preset for the options below: ``lousho`` (default), ``dsh``, ``brain`` or
            ``faden``, or a :class:`.options.Profile`.
        limits: how many model calls and how much time one turn may take; default: no limits.
        recovery: the ``recovery`` of tools that have none of their own and are neither
            ``idempotent`` nor ``read_only``.
        on_crash: what becomes of a turn whose worker died: ``continue``, ``interrupt`` or ``fail``.
        model_recovery: ``retry`` asks a model again after a failure or a worker's death; ``once``
            never does.
        turn_policy: what ``session.send`` and ``session.submit`` do while a turn goes on:
            ``reject``, ``queue`` or ``wait``.
        history_policy: what of earlier turns a request shows: all of them (``keep``), none that
            failed, was refused or stopped (``exclude_unfinished``), or what a function of the
            turns gives. The record keeps everything.
        history_budget: ``Tokens(n)`` or ``Chars(n)``: the oldest turns that do not fit are left
            out of a request; the newest one is always in it. Only ``faden`` has one.

    Raises:
        ConfigurationError: an argument is wrong; ``field`` names it.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str | None = None,
        provider: ModelProvider | None = None,
        instructions: str = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        max_steps: int = DEFAULT_MAX_STEPS,
        tool_concurrency: int | None = None,
        approval_ttl: float | timedelta | None = None,
        tool_errors: ToolErrors = "redacted",
        max_result_chars: int = DEFAULT_MAX_RESULT_CHARS,
        on_turn_stopping: TurnHook | None = None,
        settings: dict[str, Any] | None = None,
        max_delegation_depth: int = DEFAULT_MAX_DELEGATION_DEPTH,
        on_agent_drift: OnAgentDrift = "warn",
        profile: str | Profile = "lousho",
        limits: Limits | None = None,
        recovery: Recovery | None = None,
        on_crash: OnCrash | None = None,
        model_recovery: ModelRecovery | None = None,
        turn_policy: TurnPolicy | None = None,
        history_policy: HistoryPolicy | None = None,
        history_budget: Tokens | Chars | None = None,
    ) -> None:
        self.name = _checked_name(name)
        if model is None and provider is None:
            msg = f"Agent {name!r} needs a model, such as 'openai/gpt-4o-mini'."
            raise ConfigurationError(msg, field="model")
        if provider is None and model is not None:
            parse_model(model)
        if provider is not None and not callable(getattr(provider, "generate", None)):
            raise refusal("provider", "an object with async generate(request)", provider)
        if model is not None:
            text("model", model)
        self.model = model or getattr(provider, "default_model", None)
        self._provider = provider
        self.settings = _checked_settings(settings)
        self.instructions: str = of_type("instructions", instructions, str, "a text")

        # What a profile chooses where nothing is given.
        chosen = profile_of(profile).but(
            recovery=recovery,
            on_crash=on_crash,
            model_recovery=model_recovery,
            turn_policy=turn_policy,
            history_policy=history_policy,
            history_budget=history_budget,
        )
        self.recovery = chosen.recovery
        self.on_crash = chosen.on_crash
        self.model_recovery = chosen.model_recovery
        self.turn_policy = chosen.turn_policy
        self.history_policy = chosen.history_policy
        self.history_budget = chosen.history_budget

        # Its tools, and what their calls may do.
        self.tools = self._by_name(tools)
        self.tool_concurrency = (
            None if tool_concurrency is None else count("tool_concurrency", tool_concurrency)
        )
        self.tool_errors: ToolErrors = one_of("tool_errors", tool_errors, ToolErrors)
        self.max_result_chars = count("max_result_chars", max_result_chars)
        self.approval_ttl = None if approval_ttl is None else seconds("approval_ttl", approval_ttl)

        # Its runs: how far they go, how they end, and how they go on.
        limits = Limits() if limits is None else limits
        self.limits: Limits = of_type("limits", limits, Limits, "Limits(…)")
        self.max_steps = count("max_steps", max_steps)
        self.max_delegation_depth = count("max_delegation_depth", max_delegation_depth)
        self.on_turn_stopping: TurnHook | None = (
            None
            if on_turn_stopping is None
            else async_function("on_turn_stopping", on_turn_stopping, "a TurnContext")
        )
        self.on_agent_drift: OnAgentDrift = one_of("on_agent_drift", on_agent_drift, OnAgentDrift)

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.model!r}, tools={list(self.tools)!r})"

    @property
    def provider(self) -> ModelProvider:
        """Who answers: the given provider, or the one of the model's prefix."""
        return self._provider or provider_for(self.model or "")

    @property
    def has_own_provider(self) -> bool:
        """Whether a provider object was given, so that the model's prefix names none."""
        return self._provider is not None

    @property
    def request_model(self) -> str:
        """The model's name as the provider knows it."""
        if self._provider is not None:
            return self.model or ""
        return parse_model(self.model or "")[1]

    def fingerprint(self) -> AgentFingerprint:
        """What a resume compares: model, tools' input schemas, instructions; never code."""
        schemas = {name: each.input_schema for name, each in self.tools.items()}
        known = _fingerprint(self.model, json.dumps(schemas), self.instructions)
        return AgentFingerprint.from_json(known.to_json())

    def recovery_of(self, tool: Tool) -> Recovery:
        """What becomes of a call of a tool when its worker dies."""
        return tool.recovery or self.recovery

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        needs_approval: bool | Callable[[Any], bool] = False,
        max_result_chars: int | None = None,
    ) -> AgentTool:
        """This agent as a tool of another one: a call runs it in a session of its own.

        Its last answer is the call's result. What its own tools ask people about pauses the run
        that called it, too. A worker that serves the other agent serves this one as well.

        Args:
            name: what the model calls it; default: the agent's name.
            description: for the model: what the agent is good for.
            needs_approval: ask a person before a call runs, as for any tool.
            max_result_chars: characters of the answer that the model is shown.
        """
        return AgentTool(
            self,
            name=name,
            description=description,
            needs_approval=needs_approval,
            max_result_chars=max_result_chars,
        )

    def _by_name(self, tools: Iterable[Any]) -> dict[str, Tool]:
        named: dict[str, Tool] = {}
        for given in iterated("tools", tools, "tools or functions"):
            if isinstance(given, Agent):
                msg = f"Agent {given.name!r} is no tool of agent {self.name!r}."
                hint = f"Give {given.name}.as_tool()."
                raise ConfigurationError(msg, field="tools", hint=hint)
            each = given if isinstance(given, Tool) else tool(given)
            if each.name in named:
                msg = f"Agent {self.name!r} has two tools named {each.name!r}."
                raise ConfigurationError(msg, field="tools")
            if each.may_run_twice and self.recovery == "rerun":
                warnings.warn(
                    f"Tool {each.name!r} of agent {self.name!r} takes no ToolContext, so it "
                    "cannot use its idempotency key and can run twice after a crash; declare it "
                    "read_only or idempotent, or give it a recovery.",
                    stacklevel=3,
                )
            named[each.name] = each
        return named


def _checked_settings(given: dict[str, Any] | None) -> dict[str, Any]:
    settings: Any = {} if given is None else given
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise refusal("settings", "request settings by their names", given)
    return dict(settings)


@lru_cache
def _fingerprint(model: str | None, schemas: str, instructions: str) -> AgentFingerprint:
    """Remembered, because every run asks for it and it takes its time."""
    return fingerprint(model, json.loads(schemas), instructions)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        msg = f"An agent's name is 1 to 128 characters without white space, not {name!r}."
        raise ConfigurationError(msg, field="name")
    return name
