"""Decides what is to happen with each call of a model turn, before anything runs.

This is where a run needs the agent's code: the tools there are, their argument models and their
approval predicates. The loop gets the decisions as values.
"""

from __future__ import annotations

import json
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from temporalio import activity

from perdure.activities.content import to_json_value
from perdure.activities.wire import CallPlan, Content
from perdure.checkpoint_bridge.format.tool_errors import not_found_message, tool_error_result
from perdure.checkpoint_bridge.format.tool_results import error_result
from perdure.checkpoint_bridge.log.events import digest_of, dump
from perdure.tools import AgentTool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.agent import Agent
    from perdure.tools import Tool

_SHOWN_LIMIT = 64 * 1024
"""Characters of changed arguments that travel with an approval."""


def _no_constant(name: str) -> Any:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def parse_arguments(tool: Tool, raw: str) -> BaseModel | dict[str, Any]:
    """Validated arguments, or the error object that the model gets."""
    try:
        value = _DECODER.decode(raw) if raw.strip() else {}
    except (ValueError, RecursionError) as error:
        message = f"The arguments are not valid JSON: {error}"
        return tool_error_result("validation", tool.name, message)
    if not isinstance(value, dict):
        message = f"The arguments are a JSON object, not {type(value).__name__}."
        return tool_error_result("validation", tool.name, message)
    try:
        # Strings as JSON gives them: pydantic's JSON mode reads dates, enums and the like.
        return tool.arguments.model_validate_json(json.dumps(value))
    except ValidationError as error:
        issues = [
            {"path": list(issue["loc"]), "message": issue["msg"], "type": issue["type"]}
            for issue in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        summary = "; ".join(
            f"{'.'.join(map(str, issue['path'])) or 'arguments'}: {issue['message']}"
            for issue in issues
        )
        return tool_error_result("validation", tool.name, summary, issues=issues)
    except BaseException as error:  # noqa: BLE001 - a validator of the user's own raises anything
        # Of what it raises, pydantic takes ValueError and AssertionError alone as a refusal.
        name = type(error).__name__
        activity.logger.exception("The arguments' checks of %s raised %s", tool.name, name)
        message = f"The tool's checks of the arguments raised {name}."
        return tool_error_result("validation", tool.name, message)


def plan_calls(
    agent: Agent, message: dict[str, Any], grants: Mapping[str, int] | None = None
) -> list[CallPlan]:
    """What is to happen with each call of a model's answer."""
    calls = message.get("toolCalls") or []
    return [plan_call(agent, index, call, grants) for index, call in enumerate(calls)]


def announce(plans: Iterable[CallPlan]) -> list[CallPlan]:
    """Mark the calls that run at once, those before the first gated one, as announced."""
    found = []
    for plan in takewhile(lambda plan: plan.action != "approve", plans):
        if plan.action == "run":
            plan.announced = True
            found.append(plan)
    return found


def plan_call(
    agent: Agent, index: int, call: dict[str, Any], grants: Mapping[str, int] | None = None
) -> CallPlan:
    """What is to happen with one call: run it, ask a person first, or refuse it.

    Nobody is asked about a tool of ``grants``: it was approved for the session, by the event of
    that sequence.
    """
    function = call.get("function") or {}
    name, raw = str(function.get("name")), str(function.get("arguments") or "")
    plan = CallPlan(index=index, call_id=str(call.get("id")), tool=name)
    tool = agent.tools.get(name)
    if tool is None:
        message = not_found_message(name, list(agent.tools))
        error = tool_error_result("not-found", name, message)
        return refuse(plan, error_result(plan.call_id, name, error))
    arguments = parse_arguments(tool, raw)
    if not isinstance(arguments, BaseModel):
        return refuse(plan, error_result(plan.call_id, name, arguments))
    if isinstance(tool, AgentTool):
        plan.child = tool.agent.name
    if not _needs_approval(tool, arguments):
        return plan
    plan.grant = (grants or {}).get(name)
    if plan.grant is None:
        plan.action = "approve"
        plan.digest = arguments_digest(tool, arguments)
        read = _as_read(arguments)
        if read is not None and dump(read) != dump(json.loads(raw) if raw.strip() else {}):
            plan.shown = read if len(dump(read)) <= _SHOWN_LIMIT else None
    return plan


def arguments_digest(tool: Tool, arguments: BaseModel) -> str | None:
    """By what an approved call is recognised: its tool, and the arguments as the tool reads them.

    A validator can change them, so the raw arguments alone do not say what will run.
    """
    try:
        # Not as it is shown: a set has no order there, and this must be the same in any process.
        read = to_json_value(arguments.model_dump(by_alias=True, exclude_unset=True))
    except Exception:  # noqa: BLE001 - a type of the user's own can do anything here
        return None
    return digest_of(dump([tool.name, read]))[:16]


def _as_read(arguments: BaseModel) -> dict[str, Any] | None:
    """The given arguments after validation; ``None`` where they have no JSON form."""
    try:
        return arguments.model_dump(mode="json", by_alias=True, exclude_unset=True)
    except Exception:  # noqa: BLE001 - a type of the user's own can do anything here
        return None


def refuse(plan: CallPlan, message: dict[str, Any]) -> CallPlan:
    """Turn a plan into a refusal with ``message`` as the call's result."""
    plan.action = "refuse"
    plan.result = Content(message=message)
    return plan


def _needs_approval(tool: Tool, arguments: BaseModel) -> bool:
    if not callable(tool.needs_approval):
        return tool.needs_approval
    try:
        return bool(tool.needs_approval(arguments))
    except BaseException:  # noqa: BLE001 - as below
        # Whatever it was, the answer is to ask: a broken gate must not let a payment through.
        activity.logger.exception("The approval predicate of %s raised; asking a person", tool.name)
        return True
