"""The records of a session (format page, "Checkpoint", "Usage", "History", "Approval records")."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Self, TypeVar

from perdure.checkpoint_bridge.format._record import Field, Record, one, plain, records
from perdure.checkpoint_bridge.format.fingerprints import AgentFingerprint
from perdure.checkpoint_bridge.format.messages import Message, ToolCall
from perdure.checkpoint_bridge.format.stable_json import Json, JsonObject, bytes_to_json, copy_json

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "AgentFingerprint",
    "ApprovalDecision",
    "Checkpoint",
    "ExecutionSnapshot",
    "HistoryEntry",
    "PendingApproval",
    "RunUsage",
    "StepUsage",
    "decode_bytes",
    "encode_bytes",
]

T = TypeVar("T")

IN_PROGRESS = "in-progress"
AWAITING_APPROVAL = "awaiting-approval"
FINISHED = "finished"


class RunUsage(Record):
    """What a run used so far."""

    __slots__ = ()

    input_tokens = Field[int]("inputTokens", int)
    output_tokens = Field[int]("outputTokens", int)
    total_tokens = Field[int]("totalTokens", int)
    cost_usd = Field[float | None]("costUsd", lambda: None)
    """US dollars; ``None`` when the price of any model is unknown, never a partial sum."""
    model_calls = Field[int]("modelCalls", int)
    estimated = Field[bool]("estimated", bool)
    """Whether any count was estimated because a provider gave none."""
    by_model = Field[dict[str, Any]]("byModel", dict)
    """``{inputTokens, outputTokens, costUsd?, calls}`` by model."""
    cached_input_tokens = Field[int | None]("cachedInputTokens", lambda: None)
    cache_write_tokens = Field[int | None]("cacheWriteTokens", lambda: None)
    reasoning_tokens = Field[int | None]("reasoningTokens", lambda: None)
    delegated = Field[JsonObject | None]("delegated", lambda: None)
    """What sub-agents used."""
    prompt_tokens = Field[int]("promptTokens", int)
    """Alias of :attr:`input_tokens`; with two others all that older records hold."""
    completion_tokens = Field[int]("completionTokens", int)
    """Alias of :attr:`output_tokens`."""


class StepUsage(Record):
    """What one model response used."""

    __slots__ = ()

    step = Field[int]("step", int)
    """The step's number, from 1."""
    model = Field[str]("model", str)
    usage = Field[JsonObject]("usage", dict)
    """``{inputTokens, outputTokens, totalTokens, ...}``."""
    estimated = Field[bool]("estimated", bool)
    cost_usd = Field[float | None]("costUsd", lambda: None)


class Checkpoint(Record):
    """A run's whole transcript with its counters: what a session resumes from."""

    __slots__ = ("_load",)

    _load: Callable[[], JsonObject]
    """Gives :attr:`raw` when it is first asked for."""

    agent_id = Field[str]("agentId", str)
    """``""`` when the agent has no id."""
    session_id = Field[str]("sessionId", str)
    step_index = Field[int]("stepIndex", int)
    """Model responses completed in this run; a new run of a finished session counts from 0."""
    messages = Field[list[Message]]("messages", list, records(Message))
    """The whole conversation, with queued input at the end."""
    tool_calls = Field[list[ToolCall]]("toolCalls", list, records(ToolCall))
    """Every call that this run's model turns asked for, in order."""
    usage = Field[RunUsage]("usage", RunUsage, one(RunUsage))
    """Older records hold three counts only; :func:`~.usage.restore_usage` reads both."""
    step_usage = Field[list[StepUsage]]("stepUsage", list, records(StepUsage))
    """Empty on older records."""
    finish_reason = Field[str | None]("finishReason", lambda: None)
    business_state = Field[Any]("businessState", lambda: None, nullable=True)
    """The application's own JSON; see :attr:`has_business_state`."""
    status = Field[str]("status", lambda: IN_PROGRESS)
    """``in-progress`` (also when a record is too old to say), ``awaiting-approval``,
    ``finished``."""
    approval_id = Field[str | None]("approvalId", lambda: None)
    """With ``awaiting-approval`` only."""
    agent_fingerprint = Field[AgentFingerprint | None](
        "agentFingerprint", lambda: None, one(AgentFingerprint)
    )
    """``None`` on older records: they resume without a comparison."""
    run_config = Field[Any]("runConfig", lambda: None)
    """Opaque; what a dynamic agent chose."""

    @property
    def has_business_state(self) -> bool:
        """Whether the state was ever set: absent is never, ``null`` is cleared."""
        return "businessState" in self

    @classmethod
    def later(cls, load: Callable[[], JsonObject]) -> Self:
        """A checkpoint that is read when it is first looked into."""
        checkpoint = cls.__new__(cls)
        checkpoint._load = load  # noqa: SLF001 - its own
        return checkpoint

    def __getattr__(self, name: str) -> Any:
        """Called for what has no value yet: ``raw`` of one made by :meth:`later`."""
        if name != "raw":
            raise AttributeError(name)
        self.raw = self._load()
        return self.raw


class _Fact(Field[T]):
    """A field of a history entry that is known before the checkpoint is copied."""

    def __get__(self, record: Any, owner: type) -> Any:
        if record is not None and self.key in record.shared:
            return record.shared[self.key]
        return super().__get__(record, owner)


class HistoryEntry(Record):
    """One save of a session."""

    __slots__ = ("shared",)

    shared: JsonObject
    """What the entry is to be a copy of, until :attr:`raw` is asked for; then empty."""

    step = _Fact[int]("step", int)
    """The checkpoint's ``stepIndex``."""
    saved_at = _Fact[str]("savedAt", str)
    """ISO 8601 in UTC, with milliseconds and ``Z``."""
    status = _Fact[str]("status", lambda: IN_PROGRESS)
    checkpoint = Field[Checkpoint]("checkpoint", Checkpoint, one(Checkpoint))

    @classmethod
    def later(cls, value: JsonObject) -> Self:
        """An entry that copies ``value`` when it is looked into.

        A history of a long conversation holds it dozens of times, and most readers look at one.
        Nobody may change ``value`` any more.
        """
        entry = cls.__new__(cls)
        entry.shared = value
        return entry

    def __getattr__(self, name: str) -> Any:
        """Called for what has no value yet: ``raw`` of an entry made by :meth:`later`."""
        if name == "shared":
            return {}
        if name != "raw":
            raise AttributeError(name)
        self.raw = copy_json(self.shared)
        self.shared = {}
        return self.raw


class PendingApproval(Record):
    """A tool call that waits for a person's decision."""

    __slots__ = ()

    id = Field[str]("id", str)
    tool_call_id = Field[str]("toolCallId", str)
    tool_name = Field[str]("toolName", str)
    args = Field[Any]("args", lambda: None)
    """The parsed arguments of the call."""
    agent_id = Field[str | None]("agentId", lambda: None)
    created_at = Field[Any]("createdAt", lambda: None)
    subagent_path = Field[list[Any]]("subagentPath", list)
    """Names of the agents from the run's own down to the one that asks, when that is another."""
    kind = Field[str | None]("kind", lambda: None)
    question = Field[Any]("question", lambda: None)


class WaitingApproval(PendingApproval):
    """A call that waits, as a list over all sessions gives it."""

    __slots__ = ()

    session_id = Field[str]("sessionId", str)
    """The session whose run asked; for a sub-agent, its own session."""


class ApprovalDecision(Record):
    """What a person decided."""

    __slots__ = ()

    id = Field[str]("id", str)
    approved = Field[bool]("approved", bool)
    note = Field[str | None]("note", lambda: None)


class ExecutionSnapshot(Record):
    """What a paused run resumes from, in the TypeScript SDK's approval records."""

    __slots__ = ()

    agent = Field[Any]("agent", lambda: None)
    current_messages = Field[list[Message]]("currentMessages", list, records(Message))
    """The transcript; it ends with queued input."""
    pending_tool_call = Field[ToolCall]("pendingToolCall", ToolCall, one(ToolCall))
    steps = Field[int]("steps", int)
    session_id = Field[str | None]("sessionId", lambda: None)
    remaining_tool_calls = Field[list[ToolCall] | None](
        "remainingToolCalls", lambda: None, records(ToolCall)
    )
    """``None`` in an old snapshot: the later calls of the turn are not run."""
    usage = Field[RunUsage | None]("usage", lambda: None, one(RunUsage))
    agent_fingerprint = Field[AgentFingerprint | None](
        "agentFingerprint", lambda: None, one(AgentFingerprint)
    )
    subagent = Field[JsonObject | None]("subagent", lambda: None)
    """``{toolCallId, toolName, args, agentName, snapshot}`` when a sub-agent paused."""


def encode_bytes(value: Any) -> Json:
    """Copy a value with raw bytes anywhere in it as ``{"$bytes": "<base64>"}``."""
    return copy_json(value)


def decode_bytes(value: Json) -> Any:
    """Copy a stored value with every ``{"$bytes": "<base64>"}`` as raw bytes.

    An object counts only when it has exactly that key and its text is what
    :func:`encode_bytes` would write: the way back must give the same record.
    """
    root: list[Any] = [copy_json(plain(value))]
    todo: list[dict[str, Any] | list[Any]] = [root]
    while todo:
        container = todo.pop()
        places: Any = container.items() if isinstance(container, dict) else enumerate(container)
        for place, item in places:
            if not isinstance(item, (dict, list)):
                continue
            raw = _raw_bytes(item)
            if raw is None:
                todo.append(item)
            else:
                container[place] = raw
    return root[0]


def _raw_bytes(value: dict[str, Any] | list[Any]) -> bytes | None:
    if not isinstance(value, dict) or len(value) != 1:
        return None
    text = value.get("$bytes")
    if not isinstance(text, str):
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if bytes_to_json(raw) == value else None
