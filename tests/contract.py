"""The public contract with Temporal: names and JSON that open runs and other programs rely on.

    python -m tests.contract            print what differs from tests/contract.json
    python -m tests.contract --write    write tests/contract.json

Nothing in the file may be renamed or go away once it has been released: runs that are open hold
recorded values of all of it. What is added has a default.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import difflib
import json
import sys
import typing
from pathlib import Path
from typing import Any

from temporalio import activity, workflow

from perdure import Agent
from perdure.activities import wire
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.testing import ScriptedModel
from perdure.worker import activities
from perdure.workflows.agent_workflow import AgentWorkflow

FILE = Path(__file__).with_name("contract.json")


def contract() -> dict[str, Any]:
    """What the code says now."""
    found = workflow._Definition.must_from_class(AgentWorkflow)
    handlers: dict[str, Any] = {
        "signals": found.signals,
        "updates": found.updates,
        "queries": found.queries,
    }
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        agent = Agent("agent", provider=ScriptedModel([]))
        served = activities([agent], SqlStore("sqlite://"), threads)
    return {
        "workflow": found.name,
        **{
            kind: {name: each.description for name, each in sorted(of_kind.items()) if name}
            for kind, of_kind in handlers.items()
        },
        "activities": {
            str(activity._Definition.must_from_callable(function).name): _signature(function)
            for function in served
        },
        "types": {
            name: _fields(each)
            for name, each in sorted(vars(wire).items())
            if dataclasses.is_dataclass(each)
        },
    }


def _signature(function: Any) -> list[str]:
    hints = typing.get_type_hints(function, vars(wire))
    return [getattr(hint, "__name__", str(hint)) for hint in hints.values()]


def _fields(kind: Any) -> dict[str, str]:
    shown = {}
    for field in dataclasses.fields(kind):
        default = ""
        if field.default is not dataclasses.MISSING:
            default = f" = {field.default!r}"
        elif field.default_factory is not dataclasses.MISSING:
            default = f" = {field.default_factory()!r}"
        shown[field.name] = f"{field.type}{default}"
    return shown


def as_text() -> str:
    """The contract as the file has it."""
    return json.dumps(contract(), indent=2) + "\n"


if __name__ == "__main__":
    now = as_text()
    before = FILE.read_text("utf-8") if FILE.exists() else ""
    for line in difflib.unified_diff(before.splitlines(), now.splitlines(), lineterm=""):
        print(line)
    if "--write" in sys.argv:
        FILE.write_text(now, "utf-8")
