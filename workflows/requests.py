"""Reads what clients send, in any language: the run request, decisions, input.

Everything arrives as plain JSON and is checked here, because a value of the wrong shape must
be one clear error. Left to the converter, it would fail the workflow task again and again.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, TypeVar

from temporalio.converter import value_to_type

from perdure.activities.wire import INPUT_REF, Carry, Decision, Delegation, Report, RunRequest
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    SessionConflictError,
    SessionIdInvalidError,
)
from perdure.checkpoint_bridge.format.stable_json import MAX_NESTING, is_deeper
from perdure.checkpoint_bridge.format.transcript import input_messages
from perdure.checkpoint_bridge.log.events import ONCE, SESSION

T = TypeVar("T")

_STORED_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
"""Generated ids, those of forks, hold dots; so may any id that is in a store."""

_REQUEST_KEYS = {
    "agent",
    "session_id",
    "input",
    "input_ref",
    "business_state",
    "metadata",
    "max_steps",
    "workflow_id_prefix",
    "claim",
    "store",
    "traceparent",
    "delegated",
}
_JOINING_KEYS = ("agent", "business_state", "metadata", "max_steps", "store")
_WAIT = "Wait for the run's end, or send the input alone."
_DECISION_KEYS = {"id", "approved", "note", "by", "scope", "result"}
_RESULT_LIMIT = 64 * 1024


def read_request(value: Any, workflow_id: str) -> RunRequest:
    """The run request of a workflow that was started with ``value``.

    Raises:
        ConfigurationError: it is not of the documented form; ``field`` names the key.
        SessionIdInvalidError: the session id cannot be one.
        SessionConflictError: the session id is not the workflow's.
    """
    request = _object(value, "The run request", _REQUEST_KEYS, '{"agent": …, "input": …}')
    agent = _text(request, "agent")
    prefix = request.get("workflow_id_prefix") or ""
    if not isinstance(prefix, str) or not workflow_id.startswith(prefix):
        msg = f"The workflow id {workflow_id!r} does not start with workflow_id_prefix {prefix!r}."
        raise ConfigurationError(msg, field="workflow_id_prefix")
    own_id = workflow_id[len(prefix) :]
    session_id = request.get("session_id")
    if session_id is None:
        session_id = own_id
    if not isinstance(session_id, str) or not _STORED_ID.fullmatch(session_id):
        msg = f"{session_id!r} is not a session id."
        raise SessionIdInvalidError(msg)
    if session_id != own_id:
        msg = (
            f"The session id {session_id!r} differs from the workflow id {own_id!r}; "
            "leave it out or make them equal."
        )
        raise SessionConflictError(msg)
    max_steps = request.get("max_steps")
    if max_steps is not None and (
        isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1
    ):
        msg = f"max_steps is a whole number from 1, not {max_steps!r}."
        raise ConfigurationError(msg, field="max_steps")
    metadata = request.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        msg = f"metadata is a JSON object, not {type(metadata).__name__}."
        raise ConfigurationError(msg, field="metadata")
    return RunRequest(
        agent=agent,
        session_id=session_id,
        input=request.get("input"),
        input_ref=_optional_text(request, "input_ref"),
        business_state=request.get("business_state"),
        has_business_state="business_state" in request,
        metadata=metadata,
        max_steps=max_steps,
        workflow_id_prefix=prefix,
        claim=_optional_text(request, "claim"),
        store=_optional_text(request, "store"),
        traceparent=_optional_text(request, "traceparent") or "",
        delegated=_delegation(request.get("delegated")),
    )


def _delegation(value: Any) -> Delegation | None:
    if value is None:
        return None
    msg = "delegated is what a workflow says that runs an agent; it is not for clients."
    return _ours(Delegation, value, msg, field="delegated")


def read_report(value: Any) -> Report:
    """What a sub-agent's run says.

    Raises:
        ConfigurationError: it is no report.
    """
    msg = "A report comes from the run of a sub-agent, not from people."
    return _ours(Report, value, msg, field="report")


def read_carry(value: Any, *more: Any) -> Carry | None:
    """What an earlier execution of the same run handed over.

    Raises:
        ConfigurationError: a client gave more than one argument.
    """
    msg = "The workflow takes one argument, the run request; a second one is not for clients."
    if more:
        raise ConfigurationError(msg, field="input")
    if value is None:
        return None
    return _ours(Carry, value, msg, field="input")


def _ours(kind: type[T], value: Any, otherwise: str, *, field: str) -> T:
    """What workflows of ours send each other; people are told that it is not for them."""
    try:
        found: T = value_to_type(kind, value)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ConfigurationError(otherwise, field=field) from error
    return found


def read_decision(value: Any) -> Decision:
    """A decision of the form ``{id, approved, note?, by?}``. Free text never counts as one.

    Raises:
        ConfigurationError: it has another form.
    """
    form = '{"id": "…", "approved": true}'
    decision = _object(value, "A decision", _DECISION_KEYS, form)
    approval_id = _text(decision, "id")
    approved = decision.get("approved")
    if not isinstance(approved, bool):
        msg = f"approved is true or false, not {json.dumps(approved)}; a decision is {form}."
        raise ConfigurationError(msg, field="approved")
    scope = decision.get("scope")
    if scope not in (None, ONCE, SESSION):
        msg = f"The scope {json.dumps(scope)} is not known; it is {ONCE} or {SESSION}."
        raise ConfigurationError(msg, field="scope")
    if scope == SESSION and (not approved or "result" in decision):
        msg = f"Only an approval can be for the {SESSION}; a rejection is for one call."
        raise ConfigurationError(msg, field="scope")
    size = len(json.dumps(decision.get("result")))
    if size > _RESULT_LIMIT:
        msg = f"The supplied result is {size:,} bytes of JSON; at most {_RESULT_LIMIT:,} fit."
        raise ConfigurationError(msg, field="result")
    return Decision(
        id=approval_id,
        approved=approved,
        note=_optional_text(decision, "note"),
        by=_optional_text(decision, "by"),
        result=decision.get("result"),
        has_result="result" in decision,
        scope=scope if scope == SESSION else None,
    )


def to_json(decision: Decision) -> dict[str, Any]:
    """A decision in the form in which it came."""
    value: dict[str, Any] = {"id": decision.id, "approved": decision.approved}
    if decision.note is not None:
        value["note"] = decision.note
    if decision.by is not None:
        value["by"] = decision.by
    if decision.has_result:
        value["result"] = decision.result
    if decision.scope is not None:
        value["scope"] = decision.scope
    return value


def read_joining(value: Any) -> tuple[Any, dict[str, Any]]:
    """What a run that goes on is sent: the input, and what came with it.

    Either the input itself, or the run request as it would have started a run.

    Raises:
        ConfigurationError: it has another form.
    """
    if not isinstance(value, dict) or set(value) == {INPUT_REF}:
        return value, {}
    request = _object(value, "Input", _REQUEST_KEYS, '{"input": …}')
    given = {INPUT_REF: request[INPUT_REF]} if INPUT_REF in request else request.get("input")
    return given, {key: request[key] for key in _JOINING_KEYS if key in request}


def check_joining(asked: RunRequest, options: dict[str, Any], *, store: str, retry: bool) -> None:
    """Whether what came with the input of a run that goes on is what this run has anyway.

    Only its start can set it, and its ``store`` is where it began. To drop it without a word
    would be worse than to refuse it.

    Raises:
        ConfigurationError: it is not; ``field`` names the option.
    """
    agent = options.get("agent", asked.agent)
    if agent != asked.agent:
        msg = (
            f"Session {asked.session_id!r} has a run of agent {asked.agent!r} that goes on, "
            f"not of {agent!r}."
        )
        raise ConfigurationError(msg, field="agent", hint=_WAIT)
    if options.get("store", store) != store:
        msg = f"The run of session {asked.session_id!r} goes on in another store."
        hint = "Give all clients and workers of a task queue the same store."
        raise ConfigurationError(msg, field="store", hint=hint)
    own = {"metadata": asked.metadata, "max_steps": asked.max_steps}
    if asked.has_business_state:
        own["business_state"] = asked.business_state
    for name in ("business_state", "metadata", "max_steps"):
        if name in options and not (retry and name in own and options[name] == own[name]):
            msg = (
                f"Session {asked.session_id!r} has a run that goes on, and {name} is set "
                "when a run starts."
            )
            raise ConfigurationError(msg, field=name, hint=_WAIT)


def check_input(value: Any) -> None:
    """Input that arrives while a run goes on.

    Raises:
        ConfigurationError: it is neither a text, nor messages, nor a reference to them.
    """
    if isinstance(value, dict) and set(value) == {INPUT_REF} and isinstance(value[INPUT_REF], str):
        return
    if not input_messages(value):
        msg = "Input is a text or a list of messages, and not empty."
        raise ConfigurationError(msg, field="input")


def input_digest(value: Any) -> str:
    """By what the same input, sent again, is recognised."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def _object(value: Any, what: str, keys: set[str], form: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{what} is one JSON object {form}, not {type(value).__name__}."
        raise ConfigurationError(msg, field="input")
    if is_deeper(value):
        msg = f"{what} is nested deeper than {MAX_NESTING} levels."
        raise ConfigurationError(msg, field="input")
    unknown = sorted(set(value) - keys)
    if unknown:
        msg = f"{what} has no key {unknown[0]!r}; it has: {', '.join(sorted(keys))}."
        raise ConfigurationError(msg, field=unknown[0])
    return value


def _text(value: dict[str, Any], key: str) -> str:
    text = value.get(key)
    if not isinstance(text, str) or not text:
        msg = f"{key} is a text that is not empty, not {json.dumps(text)}."
        raise ConfigurationError(msg, field=key)
    return text


def _optional_text(value: dict[str, Any], key: str) -> str | None:
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        msg = f"{key} is a text, not {json.dumps(text)}."
        raise ConfigurationError(msg, field=key)
    return text
