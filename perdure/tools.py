"""Tools: what an agent can do, and how the run treats a call of it."""

from __future__ import annotations

import inspect
import math
import re
import sys
import typing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, get_type_hints, overload

from pydantic import BaseModel, Field, create_model
from pydantic.errors import PydanticUserError

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.option_checks import count, flag, listed, of_type, refusal
from perdure.tool_kv import ToolKV

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from perdure.agent import Agent

Recovery = Literal["rerun", "ambiguous", "ask"]
"""What happens to a call that was running when its worker died (``docs/how-a-run-works.md``)."""

DEFAULT_TIMEOUT = timedelta(minutes=10)
LOCAL_TIMEOUT = timedelta(seconds=1)
"""The longest time of a local tool, and its default."""
_NAME = re.compile(r"\S{1,128}")
_RECOVERIES = typing.get_args(Recovery)


class Emits(Protocol):
    """Puts events of a call into the log (``activities/emitting.py``)."""

    async def emit(self, type_: str, data: dict[str, Any], /) -> int:
        """Give the sequence of the event when it is committed."""

    def emit_from_thread(self, type_: str, data: dict[str, Any], /) -> int:
        """The same, outside of the event loop."""


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of its call."""

    session_id: str
    run_id: str
    """The workflow execution; changes when a session's next run starts."""
    tool_call_id: str
    """The model's own id of the call. Some models repeat theirs: never use it as a key."""
    idempotency_key: str
    """The same at every attempt of this call, and of no other call in any turn, session or fork."""
    attempt: int
    """From 1; more after a worker died in the middle of the call."""
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger]
    beat: Callable[..., None] = field(default=lambda *_: None, repr=False)
    emitter: Emits | None = field(default=None, repr=False)
    """What puts events into the log; ``None`` outside of a run."""
    kv: ToolKV = field(default_factory=ToolKV, repr=False)
    """The session's key-value state, which its tools share and no model is shown."""

    def heartbeat(self, *details: Any) -> None:
        """Show progress in the Temporal UI. Not needed to stay alive: that is automatic."""
        self.beat(*details)

    async def emit(self, type: str, data: dict[str, Any]) -> int:  # noqa: A002 - the envelope's word
        """Put an event of the application's own into the session's log, before the call's result.

        No model is ever shown it. ``session.events()`` and ``session.stream()`` give it, with
        this call as its ``origin``. An attempt that is repeated emits again.

        Args:
            type: a prefix of your own and a name: ``app/progress``.
            data: plain JSON; the tools of one turn emit at most 1 MiB.

        Returns:
            The sequence of the event, which is committed; 0 outside of a run.

        Raises:
            ConfigurationError: the type or the data cannot be taken; nothing was stored.
        """
        return 0 if self.emitter is None else await self.emitter.emit(type, data)

    def emit_from_thread(self, type: str, data: dict[str, Any]) -> int:  # noqa: A002 - the envelope's
        """:meth:`emit` for tools that are plain functions; it returns when the event is stored."""
        return 0 if self.emitter is None else self.emitter.emit_from_thread(type, data)


class Tool:
    """A function that a model can call. Made by :func:`tool`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        needs_approval: bool | Callable[[Any], bool] = False,
        timeout: float | timedelta | None = None,
        recovery: Recovery | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        local: bool = False,
        retry_on: tuple[type[BaseException], ...] = (),
        max_result_chars: int | None = None,
        namespace: dict[str, Any] | None = None,
    ) -> None:
        self.function = _function(function)
        self.name = getattr(function, "__name__", "") if name is None else name
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            msg = f"A tool's name is 1 to 128 characters without white space, not {self.name!r}."
            raise ConfigurationError(msg, field="tools")
        if description is not None:
            of_type("description", description, str, "a text")
        self.description = inspect.cleandoc(description or function.__doc__ or "")
        is_plain = callable(needs_approval) and not inspect.iscoroutinefunction(needs_approval)
        if not isinstance(needs_approval, bool) and not is_plain:
            msg = (
                f"needs_approval of tool {self.name!r} is true, false or a plain function of the "
                f"arguments, not {needs_approval!r}."
            )
            raise ConfigurationError(msg, field="needs_approval")
        self.needs_approval = needs_approval
        for option, value in (("read_only", read_only), ("idempotent", idempotent)):
            flag(option, value)
        self.local = flag("local", local)
        if timeout is None:
            timeout = LOCAL_TIMEOUT if local else DEFAULT_TIMEOUT
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds < math.inf:
            msg = f"The timeout of tool {self.name!r} is in seconds, above 0, not {timeout!r}."
            raise ConfigurationError(msg, field="timeout")
        longest = LOCAL_TIMEOUT.total_seconds()
        if local and seconds > longest:
            msg = (
                f"Tool {self.name!r} is local, so its timeout is at most {longest:g} s, "
                f"not {timeout!r}."
            )
            raise ConfigurationError(msg, field="timeout")
        self.timeout = seconds
        if recovery is not None and recovery not in _RECOVERIES:
            msg = (
                f"The recovery of tool {self.name!r} is one of {', '.join(_RECOVERIES)}, "
                f"not {recovery!r}."
            )
            raise ConfigurationError(msg, field="recovery")
        harmless = "rerun" if read_only or idempotent else None
        self.recovery: Recovery | None = recovery or harmless  # type: ignore[assignment]
        """``None``: as the agent's."""
        self.retry_on = tuple(listed("retry_on", retry_on, type, "classes of exceptions"))
        if not all(issubclass(each, BaseException) for each in self.retry_on):
            raise refusal("retry_on", "a list of classes of exceptions", retry_on)
        if max_result_chars is not None:
            count("max_result_chars", max_result_chars)
        self.max_result_chars = max_result_chars
        self.is_async = inspect.iscoroutinefunction(function)
        parameters = _Parameters(self.name, function, namespace)
        self.arguments = parameters.model
        self._context_parameter = parameters.context
        self._model_parameter = parameters.whole
        self.input_schema: dict[str, Any] = parameters.schema
        self.may_run_twice = not (
            self._context_parameter or read_only or idempotent or recovery is not None
        )
        """Whether a crash can repeat its effect without anyone having said that this is fine."""

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it were not a tool."""
        return self.function(*args, **kwargs)

    def bind(self, arguments: BaseModel, context: ToolContext) -> Callable[[], Any]:
        """The function with its validated arguments and its context filled in."""
        if self._model_parameter is not None:
            values: dict[str, Any] = {self._model_parameter: arguments}
        else:
            values = {name: getattr(arguments, name) for name in type(arguments).model_fields}
        if self._context_parameter is not None:
            values[self._context_parameter] = context

        def call() -> Any:
            return self.function(**values)

        return call


async def _delegate(
    input: Annotated[  # noqa: A002 - what the model calls it
        str, Field(description="What the agent is to do, with all that it needs to know.")
    ],
) -> str:
    msg = f"An agent is run by the workflow, not called with {input!r}."
    raise NotImplementedError(msg)


class AgentTool(Tool):
    """An agent that another one can call: each call is a run of its own, in its own session.

    Made by :meth:`perdure.Agent.as_tool`.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        name: str | None = None,
        description: str | None = None,
        needs_approval: bool | Callable[[Any], bool] = False,
        max_result_chars: int | None = None,
    ) -> None:
        super().__init__(
            _delegate,
            name=agent.name if name is None else name,
            description=description or f"Ask the agent {agent.name}.",
            needs_approval=needs_approval,
            max_result_chars=max_result_chars,
            # The run that a call is does nothing twice by itself.
            idempotent=True,
        )
        self.agent = agent


class _Parameters:
    """Reads a function's signature: its arguments as a pydantic model, and its context."""

    def __init__(
        self, tool: str, function: Callable[..., Any], namespace: dict[str, Any] | None
    ) -> None:
        try:
            hints = get_type_hints(function, localns=namespace, include_extras=True)
        except NameError as error:
            msg = f"Tool {tool!r}: {error}; annotations must be importable where it is defined."
            raise ConfigurationError(msg, field="tools") from error
        self.context: str | None = None
        self.whole: str | None = None
        plain: dict[str, inspect.Parameter] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                msg = f"Tool {tool!r} takes *{name}; a model needs named parameters."
                raise ConfigurationError(msg, field="tools")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                msg = f"Tool {tool!r}: parameter {name!r} is positional only; give it a name."
                raise ConfigurationError(msg, field="tools")
            if hints.get(name) is ToolContext or (name == "ctx" and name not in hints):
                self.context = name
            else:
                plain[name] = parameter
        self.model = self._model(tool, plain, hints)
        try:
            self.schema = self.model.model_json_schema()
        except PydanticUserError as error:
            msg = f"Tool {tool!r}: its parameters have no JSON Schema: {error.message}"
            raise ConfigurationError(msg, field="tools") from error

    def _model(
        self, tool: str, plain: dict[str, inspect.Parameter], hints: dict[str, Any]
    ) -> type[BaseModel]:
        if len(plain) == 1:
            (name,) = plain
            hint = hints.get(name)
            if isinstance(hint, type) and issubclass(hint, BaseModel):
                self.whole = name
                return hint
        fields: dict[str, Any] = {}
        for name, parameter in plain.items():
            if name not in hints:
                msg = f"Tool {tool!r}: parameter {name!r} needs a type."
                raise ConfigurationError(msg, field="tools")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (hints[name], default)
        try:
            return create_model(f"{tool}_arguments", **fields)
        except (PydanticUserError, NameError) as error:
            msg = f"Tool {tool!r}: its parameters cannot be read: {error}"
            raise ConfigurationError(msg, field="tools") from error


def _function(given: Any) -> Callable[..., Any]:
    if not callable(given):
        msg = f"A tool is made of a function, not {given!r}."
        raise ConfigurationError(msg, field="tools")
    return given  # type: ignore[no-any-return]


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool | Callable[[Any], bool] = False,
    timeout: float | timedelta | None = None,
    recovery: Recovery | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    local: bool = False,
    retry_on: tuple[type[BaseException], ...] = (),
    max_result_chars: int | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of an async or a plain function.

    The arguments are one pydantic model or plain typed parameters; a parameter of type
    :class:`ToolContext` gets the context. Plain functions run in threads.

    Args:
        function: the function, when the decorator is used without options.
        **options: those below.
        name: what the model calls it; default: the function's name.
        description: for the model; default: the function's docstring.
        needs_approval: ask a person before a call runs: always, or when the predicate says so of
            the validated arguments. A predicate that raises counts as yes.
        timeout: seconds (or a ``timedelta``) that one attempt may take; then the model gets an
            error result of kind ``timeout``. Default: ten minutes; of a local tool, one second.
        recovery: what happens to a call that was running when its worker died: ``rerun`` it
            with the same key, never run it again (``ambiguous``), or ``ask`` a person. Default:
            ``rerun`` for tools that are ``read_only`` or ``idempotent``, else the agent's.
        read_only: it changes nothing, so running it twice is harmless.
        idempotent: running it twice has the effect of running it once.
        local: it is quick, a second at most: it runs where the answer arrived, without a dispatch
            of its own, which halves what a step costs, and is as safe after a crash.
        retry_on: exceptions after which the effect may have happened; the call is repeated with
            the same key, as it is after timeouts and broken connections.
        max_result_chars: characters of its result that the model is shown; default: the agent's.

    Raises:
        ConfigurationError: the function or an option cannot be used.
    """
    namespace = dict(sys._getframe(1).f_locals)  # noqa: SLF001 - where local annotations live
    if function is not None:
        return Tool(function, namespace=namespace)
    return lambda decorated: Tool(decorated, namespace=namespace, **options)
