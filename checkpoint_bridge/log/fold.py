"""What a log says: the transcript, the checkpoint's fields and what is open.

Folding is pure and incremental: the same events give the same state on any machine, and a
state can be carried on from where it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import SessionFormatUnsupportedError
from perdure.checkpoint_bridge.format.usage import (
    add_model_call,
    empty_usage,
    restore_usage,
    step_usage_entry,
)
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.spans import COMPLETED, Spans
from perdure.checkpoint_bridge.log.surface import surface_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.checkpoint_bridge.log.events import Event


class SessionState:
    """The fold of a log's events up to ``through``.

    Messages and other values are shared with the events and with copies: read, don't change.
    """

    def __init__(self) -> None:
        self.through = 0
        """Events folded."""
        self.messages: list[dict[str, Any]] = []
        self.turn = 0
        self.open_turn: dict[str, Any] | None = None
        """Data of the ``turn/start`` that has no ``turn/end`` yet."""
        self.run_id = ""
        """The run that the newest turn is of."""
        self.open_step = False
        self.cut = False
        """Whether an answer of the newest turn was cut at its length."""
        self.last_end: dict[str, Any] | None = None
        self.request_config: dict[str, Any] | None = None
        """What the agent brought to the newest request (:mod:`.request_record`)."""
        self.request_text = ""
        """The same as JSON: equal texts are equal requests."""
        self.discarded = False
        """The unfinished run was given up."""
        self.approval: dict[str, Any] | None = None
        """Data of the ``approval/requested`` that has no decision yet."""
        self.frozen: list[Any] = []
        """What :func:`.derived.frozen_messages` has made of the messages so far."""
        self._start_session()

    def _start_session(self) -> None:
        self.messages = []
        self.spans = Spans()
        """Which turn each message belongs to."""
        self.call_seq = -1
        """Place of the event that brought the newest tool-call turn."""
        self.call_at = -1
        """Index of that turn's assistant message."""
        self.announced: set[int] = set()
        """Indexes of that turn's calls that have a ``tool/call``: they may have run."""
        self.decided: dict[int, dict[str, Any]] = {}
        """Decisions on that turn's calls, by index."""
        self.grants: dict[str, int] = {}
        """Tools that were approved for the session, and the sequences of the events that say so."""
        self.kv: dict[str, Any] = {}
        """What the session's tools keep; ``None`` is a value (:mod:`.session_kv`)."""
        self.raw: dict[str, Any] | None = None
        """Fields of a record that came from outside, until something is added to it."""
        self.fields: dict[str, Any] = {}
        """Keys of the checkpoint that are neither messages nor of the save itself."""
        self._start_run()

    def _start_run(self) -> None:
        self.step = 0
        self.tool_calls: list[dict[str, Any]] = []
        self.usage: dict[str, Any] = empty_usage()
        self.step_usage: list[dict[str, Any]] = []

    @property
    def results(self) -> int:
        """How many calls of the newest tool-call turn have their result."""
        if self.call_at < 0:
            return 0
        count = 0
        for message in self.messages[self.call_at + 1 :]:
            if not isinstance(message, dict) or message.get("role") != "tool":
                break
            count += 1
        return count

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of the newest tool-call turn, with and without results."""
        if self.call_at < 0:
            return []
        return self.messages[self.call_at].get("toolCalls") or []

    @property
    def finished(self) -> bool:
        """Whether the next input starts a new run, rather than continuing an unfinished one."""
        if self.raw is not None:
            return self.raw.get("status") == ev.FINISHED
        if self.open_turn is not None:
            return False
        if self.last_end is None:
            return not self.messages
        if self.discarded:
            return True
        return bool(self.last_end["reason"]["kind"] in ("completed", "max-tokens", "forked"))

    def copy(self) -> SessionState:
        """A state that can be folded on without this one noticing."""
        other = SessionState.__new__(SessionState)
        other.__dict__.update(self.__dict__)
        for name in ("messages", "tool_calls", "step_usage"):
            setattr(other, name, list(getattr(self, name)))
        other.spans = self.spans.copy()
        other.announced = set(self.announced)
        other.decided = dict(self.decided)
        other.grants = dict(self.grants)
        other.kv = dict(self.kv)
        other.fields = dict(self.fields)
        return other

    def fold(self, events: Iterable[Event]) -> SessionState:
        """Apply events in order; returns itself.

        Raises:
            SessionFormatUnsupportedError: an event's type is not known and says nothing of being
                ignorable: what it means for the history cannot be told.
        """
        for event in events:
            handler = _HANDLERS.get(event.type)
            if handler is not None:
                getattr(self, handler)(event.data, event.seq)
            elif event.type not in ev.VOCABULARY and not event.ignorable:
                raise _unknown(event)
            self.through = event.seq + 1
        return self

    def checkpoint(
        self,
        session_id: str,
        *,
        status: str,
        finish_reason: str,
        approval_id: str | None = None,
    ) -> dict[str, Any]:
        """The documented record as it is now (format page, *Checkpoint*)."""
        if self.raw is not None:
            return {**self.raw, "sessionId": session_id, "messages": list(self.messages)}
        record: dict[str, Any] = {
            "agentId": self.fields.get("agentId", ""),
            "sessionId": session_id,
            "stepIndex": self.step,
            "messages": list(self.messages),
            "toolCalls": list(self.tool_calls),
            "usage": self.usage,
            "stepUsage": list(self.step_usage),
            "finishReason": finish_reason,
        }
        if "businessState" in self.fields:
            record["businessState"] = self.fields["businessState"]
        record["status"] = status
        if approval_id is not None:
            record["approvalId"] = approval_id
        record.update((key, value) for key, value in self.fields.items() if key not in record)
        return record

    # -- one handler for each type that changes the state ------------------------------------

    def _touch(self) -> None:
        """A record from outside is about to get something of ours: take its fields over."""
        if self.raw is None:
            return
        own = {"stepIndex", "toolCalls", "usage", "stepUsage", "finishReason", "status"}
        own |= {"approvalId", "messages", "sessionId"}
        self.fields = {key: value for key, value in self.raw.items() if key not in own}
        self.last_end = None
        if self.raw.get("status") == ev.FINISHED:
            finish_reason = str(self.raw.get("finishReason") or "stop")
            self.last_end = {"reason": {"kind": COMPLETED}, "finishReason": finish_reason}
        self.raw = None

    def _on_turn_start(self, data: dict[str, Any], _seq: int) -> None:
        self._touch()
        self.turn = data["turn"]
        self.open_turn = data
        self.cut = self.discarded = False
        self.run_id = str(data.get("runId") or "")
        self.fields["agentId"] = data["agent"]
        if data.get("fingerprint") is not None:
            self.fields["agentFingerprint"] = data["fingerprint"]
        if data.get("fresh"):
            self._start_run()

    def _on_turn_end(self, data: dict[str, Any], _seq: int) -> None:
        self.open_turn = None
        self.open_step = False
        self.last_end = data
        self.spans.ended(data["reason"]["kind"], str(data.get("finishReason") or ""))

    def _on_step_start(self, _data: dict[str, Any], _seq: int) -> None:
        self.open_step = True

    def _on_step_end(self, _data: dict[str, Any], _seq: int) -> None:
        self.open_step = False

    def _on_user(self, data: dict[str, Any], _seq: int) -> None:
        self._touch()
        self.spans.said(len(self.messages))
        self.messages.append(data["message"])

    def _on_system(self, data: dict[str, Any], _seq: int) -> None:
        self._touch()
        if surface_message(ev.SYSTEM_MESSAGE, data) is not None:
            self.messages.append(data["message"])

    def _on_assistant(self, data: dict[str, Any], seq: int) -> None:
        self._touch()
        message = data["message"]
        self.cut |= data.get("finishReason") == ev.LENGTH
        self.step += 1
        calls = message.get("toolCalls") or []
        self.spans.went_on()
        if surface_message(ev.ASSISTANT_MESSAGE, data) is not None:
            self.messages.append(message)
        if calls:
            self._new_calls(seq, len(self.messages) - 1)
            self.tool_calls.extend(calls)
        usage = data.get("usage") or {}
        tokens = {key: value for key, value in usage.items() if key != "estimated"}
        estimated, cost = bool(usage.get("estimated")), data.get("costUsd")
        model = data["model"]
        self.usage = add_model_call(
            self.usage, model=model, usage_of_call=tokens, cost_usd=cost, estimated=estimated
        )
        self.step_usage.append(
            step_usage_entry(self.step, model, tokens, cost_usd=cost, estimated=estimated)
        )

    def _on_tool_call(self, data: dict[str, Any], _seq: int) -> None:
        if data["seq"] == self.call_seq:
            self.announced.add(data["index"])

    def _on_tool_result(self, data: dict[str, Any], _seq: int) -> None:
        self._touch()
        # In call order, and before input that was queued behind the calls.
        open_ids = [call.get("id") for call in self.calls]
        at = self.call_at + 1
        for message in self.messages[at : at + self.results]:
            call_id = message.get("toolCallId")
            index = open_ids.index(call_id) if call_id in open_ids else -1
            if index >= 0:
                open_ids[index] = None  # a second call of the same id has a result of its own
            if index < data["index"]:
                at += 1
        self.messages.insert(at, data["message"])
        self.spans.inserted(self.call_at)

    def _on_delta(self, data: dict[str, Any], seq: int) -> None:
        self._touch()
        self.messages = self.messages[: data["keep"]] + data["append"]
        self.spans.rewritten(
            self.messages, data["keep"], data.get("turns"), is_open=self.open_turn is not None
        )
        self._find_calls(seq)

    def _on_approval_requested(self, data: dict[str, Any], _seq: int) -> None:
        self.approval = data

    def _on_approval_decided(self, data: dict[str, Any], _seq: int) -> None:
        if self.approval is not None and self.approval["id"] == data["id"]:
            if self.approval["seq"] == self.call_seq:
                self.decided[self.approval["index"]] = data
            self.approval = None

    def _on_approval_granted(self, data: dict[str, Any], seq: int) -> None:
        self.grants[data["tool"]] = seq + 1

    def _on_request_header(self, data: dict[str, Any], _seq: int) -> None:
        self.request_config = data["config"]
        self.request_text = ev.dump(self.request_config)

    def _on_kv_set(self, data: dict[str, Any], _seq: int) -> None:
        self.kv[data["key"]] = data["value"]

    def _on_kv_delete(self, data: dict[str, Any], _seq: int) -> None:
        self.kv.pop(data["key"], None)

    def _on_business_state(self, data: dict[str, Any], _seq: int) -> None:
        self._touch()
        self.fields["businessState"] = data["value"]

    def _on_checkpoint_set(self, data: dict[str, Any], seq: int) -> None:
        fields = data["fields"]
        self.step = ev.step_of(fields)
        self.tool_calls = list(fields.get("toolCalls") or [])
        self.usage = restore_usage(fields.get("usage") or {})
        self.step_usage = list(fields.get("stepUsage") or [])
        self.raw = fields
        self.approval = None
        self._find_calls(seq)

    def _on_end_seed(self, data: dict[str, Any], _seq: int) -> None:
        # What the source had open is not this session's: nothing is approved or announced here.
        self.open_turn = self.approval = None
        self.open_step = False
        if "boundary" not in data and data.get("inherited"):
            # A fork of a step is in the middle of its run.
            self.last_end = {"reason": {"kind": "forked-step"}}
        elif self.last_end is None:
            self.last_end = {"reason": {"kind": "completed"}}
        self.spans.ended("forked")
        self.announced = set()
        self.decided = {}
        self.grants = {}

    def _on_cleared(self, _data: dict[str, Any], _seq: int) -> None:
        self._start_session()
        self.open_turn = self.approval = self.last_end = None

    def _on_discarded(self, _data: dict[str, Any], _seq: int) -> None:
        self._touch()
        self.discarded = True
        if self.last_end is None:
            self.last_end = {"reason": {"kind": "aborted"}}

    def _new_calls(self, seq: int, at: int) -> None:
        self.call_seq, self.call_at = seq, at
        self.announced = set()
        self.decided = {}

    def _find_calls(self, seq: int) -> None:
        for at in range(len(self.messages) - 1, -1, -1):
            message = self.messages[at]
            # A record from outside may hold anything.
            if isinstance(message, dict) and message.get("role") == "assistant":
                self._new_calls(seq, at if message.get("toolCalls") else -1)
                return
        self._new_calls(seq, -1)


def _unknown(event: Event) -> SessionFormatUnsupportedError:
    msg = (
        f"The event at sequence {event.sequence} is of a type that this version of perdure does "
        f"not know: {event.type}."
    )
    return SessionFormatUnsupportedError(msg, type=event.type, seq=event.seq)


def spent(events: Iterable[Event], *, own: bool = True, attempts: bool = True) -> dict[str, Any]:
    """The usage of all model calls of a log: answers, and failed attempts whose cost is known.

    A fork's ``own`` begins where it leaves its parent, who has paid for what they share.
    """
    usage: dict[str, Any] = empty_usage()
    for event in events:
        if event.type == ev.END_SEED and own:
            usage = empty_usage()
        elif event.type == ev.ASSISTANT_MESSAGE or (
            attempts and event.type == ev.ASSISTANT_ATTEMPT
        ):
            counted = event.data.get("usage")
            if counted is None:
                continue
            usage = add_model_call(
                usage,
                model=event.data.get("model") or "unknown",
                usage_of_call={key: n for key, n in counted.items() if key != "estimated"},
                cost_usd=event.data.get("costUsd"),
                estimated=bool(counted.get("estimated")),
            )
    return usage


TAKES_OVER = frozenset(
    {
        ev.TURN_START,
        ev.USER_MESSAGE,
        ev.SYSTEM_MESSAGE,
        ev.ASSISTANT_MESSAGE,
        ev.TOOL_RESULT,
        ev.TRANSCRIPT_DELTA,
        ev.BUSINESS_STATE,
        ev.SESSION_CLEARED,
    }
)
"""After one of these a checkpoint is ours, and no longer a record as it came from outside."""

_HANDLERS = {
    ev.TURN_START: "_on_turn_start",
    ev.TURN_END: "_on_turn_end",
    ev.STEP_START: "_on_step_start",
    ev.STEP_END: "_on_step_end",
    ev.USER_MESSAGE: "_on_user",
    ev.SYSTEM_MESSAGE: "_on_system",
    ev.ASSISTANT_MESSAGE: "_on_assistant",
    ev.TOOL_CALL: "_on_tool_call",
    ev.TOOL_RESULT: "_on_tool_result",
    ev.TRANSCRIPT_DELTA: "_on_delta",
    ev.APPROVAL_REQUESTED: "_on_approval_requested",
    ev.APPROVAL_DECIDED: "_on_approval_decided",
    ev.APPROVAL_GRANTED: "_on_approval_granted",
    ev.REQUEST_HEADER: "_on_request_header",
    ev.KV_SET: "_on_kv_set",
    ev.KV_DELETE: "_on_kv_delete",
    ev.BUSINESS_STATE: "_on_business_state",
    ev.CHECKPOINT_SET: "_on_checkpoint_set",
    ev.END_SEED: "_on_end_seed",
    ev.SESSION_CLEARED: "_on_cleared",
    ev.RUN_DISCARDED: "_on_discarded",
}
