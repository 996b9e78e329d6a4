"""What crosses between workflows and activities: the only types that both sides share.

All of it goes through Temporal's JSON converter, so it is plain dataclasses of plain JSON.
A field may be added when it has a default; none may be renamed or lose its meaning, since
open runs hold recorded values of every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perdure.activities.packing import resolve_hints
from perdure.checkpoint_bridge.log.events import (  # noqa: TC001 - the converter reads the hints
    NewEvent,
    NewSave,
)

WORKFLOW = "AgentWorkflow"
SIGNAL_RESOLVE = "resolve_approval"
UPDATE_RESOLVE = "resolve_approval_now"
UPDATE_INPUT = "send_input"
SIGNAL_REPORT = "sub_agent_report"
QUERY_STATE = "state"

OPENING = "opening"
"""Status in the query's answer before the run has read its session."""

ACTIVITY_OPEN = "open_run"
ACTIVITY_APPEND = "append_log"
ACTIVITY_MODEL = "call_model"
ACTIVITY_TOOL = "run_tool"
ACTIVITY_DECIDE = "record_decision"
ACTIVITY_INPUT = "apply_input"
ACTIVITY_CLOSE = "close_run"
ACTIVITY_STOPPING = "turn_stopping"
ACTIVITY_CHILD = "read_answer"

INPUT_REF = "input_ref"
"""The key of input that is in the store: ``{"input_ref": digest}``."""

INLINE_ARGUMENTS = 2 * 1024
"""Characters of a call's raw arguments that an activity's input holds; more are in the log."""

AMBIGUOUS = "ambiguous"
ASK = "ask"
"""Values of a tool's ``recovery`` besides ``rerun``."""

PREVIEW_LENGTH = 200
"""Characters of a text that people see where the value itself is only referred to."""


@dataclass
class Content:
    """A message, or where it is: ``message`` up to the inline limit, else a reference."""

    message: dict[str, Any] | None = None
    ref: str | None = None
    """SHA-256 of the message's JSON in the store, as hex."""
    size: int = 0
    """Bytes of that JSON."""
    preview: str | None = None


@dataclass
class ToolPolicy:
    """What the loop needs to know of one tool, fixed when the run opens."""

    timeout: float
    """Seconds that one attempt may take."""
    recovery: str = "rerun"
    local: bool = False
    """Its calls can run where the answer arrives, in the model's activity."""


@dataclass
class CallPlan:
    """One tool call of a model turn, and what is to happen with it."""

    index: int
    call_id: str = ""
    tool: str = ""
    arguments: str | None = None
    """The model's raw arguments; ``None`` when they are over the limit (the log has them).

    What the answer beside it says (id, name, small arguments) does not cross a second time.
    """
    action: str = "run"
    """``run``, ``approve`` (ask first) or ``refuse`` (``result`` is the error; nothing runs)."""
    result: Content | None = None
    approval_id: str | None = None
    """Set when this call was already waiting for this approval."""
    expires_ms: int | None = None
    """When that approval is rejected by itself."""
    reason: str | None = None
    """Why a person is asked, when it is not the tool's gate: ``unknown-outcome``."""
    confirmed: bool = False
    """A person said that the call may run although it may have run before."""
    shown: dict[str, Any] | None = None
    """For a gated call: the arguments as its tool reads them, where they differ from the raw."""
    digest: str | None = None
    """Of what a person is asked to approve: the tool and its arguments as it reads them."""
    child: str | None = None
    """The agent that the call runs, when the tool is one."""
    announced: bool = False
    """The log has its ``tool/call`` already."""
    grant: int | None = None
    """By which ``approval/granted`` (its sequence) a call of a gated tool runs without asking."""


@dataclass
class CallPlace:
    """Where a call is: the turn's place in a log, and the call's in the turn."""

    log_id: int
    seq: int
    index: int


@dataclass
class Delegation:
    """What a run is told that another workflow started."""

    report_to: str = ""
    """The workflow that hears what the run waits for; empty: none does."""
    report_as: str = SIGNAL_REPORT
    """The signal's name."""
    path: list[str] = field(default_factory=list)
    """The agents above the run's own, the top one first."""
    max_depth: int | None = None
    """The limit of the agents above."""
    call: CallPlace | None = None
    """Where the input is when it is too large to be sent: among the arguments of this call."""
    once: bool = False
    """The input is for a new session only: one that has it goes on, or says what it answered."""


@dataclass
class Report:
    """What a sub-agent's run tells the one above: it waits for a decision, or no more."""

    id: str
    """The approval's."""
    session_id: str
    waiting: bool
    path: list[str] = field(default_factory=list)
    """The agents from the top one down to the one that asks."""
    tool_name: str = ""
    tool_call_id: str = ""
    arguments: str | None = None
    """JSON, cut; ``None`` when it is large."""


@dataclass
class RunRequest:
    """The workflow's one argument, as any Temporal client gives it in JSON."""

    agent: str
    session_id: str
    input: Any = None
    """A text, or messages of the documented format; ``[]`` or nothing resumes."""
    input_ref: str | None = None
    """Where the input is, when it is too large to be sent: a digest of the store."""
    business_state: Any = None
    has_business_state: bool = False
    metadata: dict[str, Any] | None = None
    max_steps: int | None = None
    workflow_id_prefix: str = ""
    claim: str | None = None
    """Names the idempotency key that the run was started under."""
    store: str | None = None
    """The store that the caller reads (``Database.identity``), which has to be the worker's."""
    traceparent: str = ""
    """The caller's trace context (W3C), which the run's spans and its tools' calls belong to."""
    delegated: Delegation | None = None


@dataclass
class OpenRun:
    """Input of ``open_run``: the run request, checked, with this execution's identity."""

    session_id: str
    run_id: str
    agent: str
    input: Any
    time_ms: int
    input_ref: str | None = None
    business_state: Any = None
    has_business_state: bool = False
    metadata: dict[str, Any] | None = None
    max_steps: int | None = None
    attempt: int = 1
    """More when a retry policy of the workflow's, or a reset, has Temporal start it again."""
    traceparent: str = ""
    claim: str | None = None
    store: str | None = None
    delegated: Delegation | None = None


@dataclass
class RunFacts:
    """What the loop goes by; recorded once, so later deploys never change a run's course."""

    log_id: int
    head: int
    turn: int
    step: int
    max_steps: int
    tool_concurrency: int
    tools: dict[str, ToolPolicy]
    approval_ttl: float = 0.0
    """Seconds after which an approval is rejected by itself; 0: never."""
    call_seq: int = 0
    """Place of the model turn that asked for ``calls``."""
    calls: list[CallPlan] = field(default_factory=list)
    cut: bool = False
    """An answer of this turn was cut at its length."""
    nothing_to_do: bool = False
    """A finished session was opened without new input."""
    finish_reason: str = ""
    """How that session's last run finished, and its last answer, cut after the inline limit."""
    text: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    trace: str = ""
    """The ``traceparent`` of the run's own span, when the run is traced."""
    private: bool = False
    """Temporal is not meant to read content: what the UI is told has none."""
    on_crash: str = "continue"
    """What becomes of the turn when a worker dies: ``continue``, ``interrupt`` or ``fail``."""
    model_once: bool = False
    """A model call is sent once, whatever comes of it."""
    max_model_calls: int = 0
    """Model calls that this turn may make, and those that it has made; 0: no limit."""
    model_calls: int = 0
    deadline_ms: int = 0
    """Unix milliseconds at which the turn's time is over; 0: never. Pauses put it off."""
    turn_hook: bool = False
    """The agent has an ``on_turn_stopping``."""
    attributes: list[str] = field(default_factory=list)
    """The search attributes that the namespace had when the run opened."""
    depth: int = 0
    """How many agents are above this run's."""
    max_depth: int = 0
    """How many there may be; a call that would go deeper gets an error result."""
    store: str = ""
    """The id of the store that the run is in."""


@dataclass
class Decision:
    """A person's decision, as the signal and the update bring it."""

    id: str
    approved: bool
    note: str | None = None
    by: str | None = None
    result: Any = None
    has_result: bool = False
    """The person supplies the verified result of a call whose outcome is unknown."""
    scope: str | None = None
    """``session``: later calls of the tool in this session run without asking."""


@dataclass
class Append:
    """Input of ``append_log``: idempotent, since ``head`` says where the events go."""

    session_id: str
    log_id: int
    run_id: str
    head: int
    time_ms: int
    events: list[NewEvent]
    saves: list[NewSave] = field(default_factory=list)


@dataclass
class ModelTask:
    """Input of ``call_model``: the transcript is passed by reference."""

    log_id: int
    agent: str
    through_seq: int
    step: int
    turn: int
    time_ms: int
    """The workflow's time when it asked; what is recorded adds how long it took."""
    session_id: str = ""
    """Empty: the workflow's id."""
    run_id: str = ""
    """Of the run that may write; empty: the execution's."""
    marked: bool = False
    """The ledger says that it was begun, before it is."""
    once: bool = False
    """A call that was begun before is not made again."""
    trace: str = ""


@dataclass
class ModelTurn:
    """What the model answered, as the loop and the UI need it. The log has it already."""

    content: Content
    model: str
    head: int
    """Length of the log with the answer and what it means."""
    call_seq: int
    """Place of the answer in the log."""
    calls: list[CallPlan] = field(default_factory=list)
    """Those without a result."""
    results: list[Content] = field(default_factory=list)
    """Of the calls before them, which were local. The log has them already, too."""
    usage: dict[str, Any] | None = None
    """Only what the loop counts: ``inputTokens`` and ``outputTokens``."""
    finish_reason: str = "tool_calls"


@dataclass
class ToolTask:
    """Input of ``run_tool``. ``seq`` and ``index`` name the call in the ledger."""

    log_id: int
    agent: str
    seq: int
    index: int
    call_id: str
    tool: str
    timeout: float
    time_ms: int
    """As :attr:`ModelTask.time_ms`."""
    arguments: str | None = None
    attempt: int = 1
    session_id: str = ""
    """As :attr:`ModelTask.session_id`."""
    run_id: str = ""
    """As :attr:`ModelTask.run_id`."""
    head: int | None = None
    """Where the result belongs in the log; ``None``: the workflow records it, in call order."""
    turn: int = 0
    step: int = 0
    ends_step: bool = False
    """No other call of the turn waits for its result."""
    recovery: str = "rerun"
    confirmed: bool = False
    trace: str = ""
    digest: str | None = None
    """What a person approved; a call that would run otherwise does not run."""


@dataclass
class ToolOutcome:
    """The one result of a call."""

    content: Content = field(default_factory=Content)
    is_error: bool = False
    uncertain: bool = False
    """No result: the call may have run before, and a person is to say what to do."""
    head: int | None = None
    """Length of the log with the result; ``None``: the workflow is to record it."""


@dataclass
class AnswerTask:
    """Input of ``read_answer``: which sub-agent's answer becomes the result of which call."""

    child_session: str
    call_id: str
    tool: str


@dataclass
class DecisionTask:
    """Input of ``record_decision``."""

    session_id: str
    log_id: int
    run_id: str
    agent: str
    approval_id: str
    approved: bool
    time_ms: int
    note: str | None = None
    by: str | None = None
    result: Any = None
    has_result: bool = False
    scope: str | None = None


@dataclass
class DecisionRecord:
    """The decision that counts: the first one. ``mine`` is false when another came first."""

    mine: bool
    approved: bool
    note: str | None = None
    by: str | None = None
    error: dict[str, Any] | None = None
    """Set when the decision could not be taken (drift, missing tool); the approval waits on."""
    drift: dict[str, Any] | None = None
    result: Any = None
    has_result: bool = False
    scope: str | None = None


@dataclass
class InputTask:
    """Input of ``apply_input``: messages that arrived while the run went on, in order."""

    session_id: str
    log_id: int
    run_id: str
    head: int
    time_ms: int
    messages: list[Any]
    apply: bool = True
    """False: only say which of them the transcript does not hold yet."""


@dataclass
class InputApplied:
    """``head`` after the append, and how many messages were new."""

    head: int
    added: int
    fresh_ref: str | None = None
    """Where the new messages are, when they were only asked for."""


@dataclass
class StoppingTask:
    """Input of ``turn_stopping``; ``head`` is the log's length where the turn has ended."""

    session_id: str
    log_id: int
    run_id: str
    agent: str
    head: int
    turn: int
    finish_reason: str
    time_ms: int


@dataclass
class CloseTask:
    """Input of ``close_run``: close whatever the log has open, and say why."""

    session_id: str
    log_id: int
    run_id: str
    time_ms: int
    reason: str
    """``aborted``, ``error`` or ``interrupted``."""
    error: dict[str, Any] | None = None
    queued: list[Any] = field(default_factory=list)
    answer_calls: bool = False
    """Also calls without a result get one: nobody goes on with them."""
    lost: bool = False
    """A worker died: what was in flight may have happened."""


@dataclass
class CloseResult:
    """``finished``: the log says that the run had ended before it could be closed."""

    finished: bool
    finish_reason: str = ""


@dataclass
class RunOutcome:
    """The workflow's result: small; the conversation itself is in the store."""

    session_id: str
    run_id: str
    status: str
    finish_reason: str
    steps: int
    text: str
    """The last answer, cut after the inline limit."""
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass
class Carry:
    """What crosses to the next execution when a long run continues as new."""

    facts: RunFacts
    queue: list[Any] = field(default_factory=list)
    """Input that arrived and is not in the log yet, in order."""
    inputs: list[str] = field(default_factory=list)
    """Digests of the input that this run has, by which a retry is recognised."""
    decided: dict[str, DecisionRecord] = field(default_factory=dict)
    text: str = ""
    finish_reason: str = ""


resolve_hints(list(vars().values()))
