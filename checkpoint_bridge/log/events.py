"""The event log's vocabulary and envelope.

Names that neither of the vocabularies of ``docs/sessions.md`` (its table of views) has are marked
as ours.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN_START = "turn/start"
TURN_END = "turn/end"
STEP_START = "step/start"
STEP_END = "step/end"
USER_MESSAGE = "user/message"
SYSTEM_MESSAGE = "system/message"
ASSISTANT_MESSAGE = "assistant/message"
ASSISTANT_ATTEMPT = "assistant/attempt"
TOOL_CALL = "tool/call"
TOOL_RESULT = "tool/result"
REQUEST_HEADER = "request/header"
END_SEED = "session/end-seed"
TRANSCRIPT_DELTA = "transcript_delta"
APPROVAL_REQUESTED = "approval/requested"
"""Ours: ``{id, seq, index, pending}``; ``pending`` has no time, the event has it."""
APPROVAL_DECIDED = "approval/decided"
"""Ours: ``{id, approved, note?, by?, scope?}``."""
APPROVAL_GRANTED = "approval/granted"
"""Ours: ``{tool, scope, by?}``: calls of the tool need no approval in this session any more."""
APPROVAL_AUTO = "approval/auto"
"""Ours: ``{seq, index, toolCallId, name, grant}``: the call runs without asking, by the
``approval/granted`` of that sequence. Its ``tool/call`` comes next."""
SUBAGENT_PAUSED = "subagent/paused"
"""Ours: ``{id, session, path, toolName}``: a sub-agent of the run waits for that approval."""
AGENT_DRIFT = "agent/drift"
"""Ours: what differs between the agent that started and the one that goes on."""
KV_SET = "kv_set"
"""``{key, value}``: a tool of the session keeps a value; ``null`` is one."""
KV_DELETE = "kv_delete"
"""``{key}``: the session has no value under it any more."""
BUSINESS_STATE = "business_state/set"
"""Ours: ``{value}``."""
CHECKPOINT_SET = "checkpoint/set"
"""Ours: a record that came from outside; ``{fields}`` is all of it but the messages."""
SESSION_ENDED = "session/ended"
"""Ours: the session takes no more messages; always the last event."""
SESSION_CLEARED = "session/cleared"
"""Ours: the checkpoint was deleted and its history kept; the transcript starts anew."""
RUN_DISCARDED = "run/discarded"
"""Ours: somebody gave the unfinished run up; the next input starts a new one."""

VOCABULARY = frozenset(
    {
        *(TURN_START, TURN_END, STEP_START, STEP_END),
        *(USER_MESSAGE, SYSTEM_MESSAGE, ASSISTANT_MESSAGE, ASSISTANT_ATTEMPT),
        *(TOOL_CALL, TOOL_RESULT, REQUEST_HEADER, TRANSCRIPT_DELTA),
        *(APPROVAL_REQUESTED, APPROVAL_DECIDED, APPROVAL_GRANTED, APPROVAL_AUTO),
        *(AGENT_DRIFT, BUSINESS_STATE, SUBAGENT_PAUSED, KV_SET, KV_DELETE),
        *(CHECKPOINT_SET, SESSION_CLEARED, SESSION_ENDED, RUN_DISCARDED, END_SEED),
    }
)
"""All types that this version writes. Of another one it only knows what ``ignorable`` says."""

_RESERVED = {type_.partition("/")[0] for type_ in VOCABULARY} | {"perdure"}

BULK = {
    USER_MESSAGE: "message",
    SYSTEM_MESSAGE: "message",
    ASSISTANT_MESSAGE: "message",
    TOOL_RESULT: "message",
    TRANSCRIPT_DELTA: "append",
    CHECKPOINT_SET: "fields",
    REQUEST_HEADER: "config",
}
"""For each type that carries content: the key of ``data`` that holds it."""

ONCE, SESSION = "once", "session"
"""What an approval is for: one call, or all later calls of the tool in the session."""

IN_PROGRESS = "in-progress"
AWAITING_APPROVAL = "awaiting-approval"
FINISHED = "finished"

ABORTED = "aborted"
"""How a turn ends that somebody cancelled, and the finish reason of its run."""

LENGTH = "length"
"""Finish reason of an answer that was cut, in the format's word."""

INLINE_LIMIT = 4 * 1024
"""Bytes of content that a row or a recorded value holds itself; more is stored once, by digest."""


@dataclass
class NewEvent:
    """One event to append. Content that is in the store already is named by ``ref``."""

    type: str
    data: dict[str, Any]
    ref: str | None = None
    """SHA-256 of the content's JSON, hex; ``data`` then need not have the key of
    :data:`BULK`."""


@dataclass
class NewSave:
    """A save of the checkpoint as it is after ``after`` of the events appended with it."""

    after: int
    status: str
    finish_reason: str
    approval_id: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The execution that an event is from. It says nothing about the truth of what it holds."""

    kind: str
    """``loop``: the run; ``tool``: a call of one."""
    sequence: int
    """Of the event that announced the execution: ``turn/start`` or ``tool/call``."""


LOOP = "loop"
TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Event:
    """A committed event. ``data`` is shared: treat it as frozen."""

    seq: int
    """Place in the log, from 0, without gaps."""
    type: str
    time_ms: int
    """Unix milliseconds, as the workflow saw them."""
    data: dict[str, Any]
    origin: Origin | None = None
    """Whose it is, as the store noted it; never part of ``data``."""
    ignorable: bool = False
    """Whether a reader that does not know the type may skip it."""
    inherited: bool = field(default=False, compare=False)
    """Whether it is of the log that this session was forked from."""

    @property
    def sequence(self) -> int:
        """The cursor form of ``seq``: counts from 1, so that 0 means *from the beginning*."""
        return self.seq + 1

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with camelCase keys; what an event does not have has no key."""
        value: dict[str, Any] = {
            "seq": self.seq,
            "sequence": self.sequence,
            "type": self.type,
            "timeMs": self.time_ms,
            "data": self.data,
        }
        if self.origin is not None:
            value["origin"] = {"kind": self.origin.kind, "sequence": self.origin.sequence}
        value.update((key, True) for key in ("ignorable", "inherited") if getattr(self, key))
        return value


def is_of_application(type_: str) -> bool:
    """Whether a type is of an application: its prefix is one that perdure never uses itself."""
    prefix, _, name = type_.partition("/")
    return bool(name) and prefix not in _RESERVED


# Made once: json.dumps makes one for each call.
_ENCODER = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True
)


def dump(value: Any) -> str:
    """JSON as the store keeps it: ASCII, no spaces, keys sorted, so equal values are equal text.

    Raises:
        ValueError: a number is NaN or infinite, which no JSON can say.
    """
    return _ENCODER.encode(value)


def is_plain_json(value: Any) -> bool:
    """Whether a value comes back from JSON as it is."""
    try:
        return bool(json.loads(dump(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def iso(time_ms: int) -> str:
    """A time of ours as the documented records have it."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shared_beginning(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many values two lists have in common at their start, as JSON: ``1`` is not ``true``."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one is not other and (one != other or dump(one) != dump(other)):
            break
        count += 1
    return count


def label(value: Any, length: int) -> str:
    """A text from outside as a column can hold it: cut, no NUL, no lone surrogates."""
    text = value if isinstance(value, str) else ""
    return text.encode("utf-8", "replace").decode().replace("\0", "")[:length]


def step_of(record: dict[str, Any]) -> int:
    """The ``stepIndex`` of a record from outside; 0 when it is no count."""
    step = record.get("stepIndex")
    return int(step) if isinstance(step, (int, float)) and 0 <= step < 2**31 else 0


def digest_of(content: str) -> str:
    """SHA-256 of stored JSON, as hex."""
    return hashlib.sha256(content.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event in the form of its row, with the blob that it needs (if any)."""

    type: str
    data: str
    ref: str | None
    digest: str
    blob: str | None


def encode(event: NewEvent) -> StoredEvent:
    """Make the row of an event.

    The digest covers type, data and content, but not the time: a workflow task that runs again
    announces the same thing at a later moment, and that must count as the same event.

    Raises:
        ConfigurationError: it holds what no JSON can say; nothing of it is stored.
    """
    try:
        return _encode(event)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"A {event.type} cannot be stored as JSON: {error}"
        raise ConfigurationError(msg, field="data") from error


def _encode(event: NewEvent) -> StoredEvent:
    bulk = BULK.get(event.type)
    blob = None
    ref = event.ref
    content_digest = ref or ""
    if bulk is not None and ref is None:
        content = dump(event.data[bulk])
        content_digest = digest_of(content)
        if len(content) > INLINE_LIMIT or event.type == REQUEST_HEADER:
            # Headers are alike in all sessions of an agent, so however small, each is there once.
            blob, ref = content, content_digest
    bare = dump({key: value for key, value in event.data.items() if key != bulk})
    return StoredEvent(
        type=event.type,
        data=bare if bulk is None or ref is not None else dump(event.data),
        ref=ref,
        digest=digest_of(f"{event.type}\n{bare}\n{content_digest}"),
        blob=blob,
    )


def decode(type_: str, data: str, content: str | None) -> dict[str, Any]:
    """The ``data`` of a stored event, its content put back."""
    value: dict[str, Any] = json.loads(data)
    if content is not None:
        value[BULK[type_]] = json.loads(content)
    return value
