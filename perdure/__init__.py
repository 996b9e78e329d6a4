"""Durable agents on Temporal: runs as workflows, approvals as signals, checkpoints you own.

Names are loaded when they are used: this module runs again in every workflow sandbox.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.activities.turn_context import (
        TurnContext as TurnContext,
        UserMessage as UserMessage,
    )
    from perdure.agent import Agent as Agent
    from perdure.checkpoint_bridge import (
        ForkPatch as ForkPatch,
        compare_trajectories as compare_trajectories,
    )
    from perdure.checkpoint_bridge.errors import (
        PerdureError as PerdureError,
        PropagatingToolError as PropagatingToolError,
    )
    from perdure.checkpoint_bridge.log.derived import (
        derive_messages as derive_messages,
        fold as fold,
    )
    from perdure.client import connect as connect
    from perdure.history_options import Chars as Chars, Tokens as Tokens
    from perdure.options import Limits as Limits
    from perdure.tools import ToolContext as ToolContext, tool as tool
    from perdure.workflows.calling import run_agent as run_agent

__version__ = "0.1.0"

_EXPORTS = {
    "Agent": "perdure.agent",
    "Chars": "perdure.history_options",
    "ForkPatch": "perdure.checkpoint_bridge.format.fork",
    "Limits": "perdure.options",
    "PerdureError": "perdure.checkpoint_bridge.errors",
    "PropagatingToolError": "perdure.checkpoint_bridge.errors",
    "Tokens": "perdure.history_options",
    "ToolContext": "perdure.tools",
    "TurnContext": "perdure.activities.turn_context",
    "UserMessage": "perdure.activities.turn_context",
    "compare_trajectories": "perdure.checkpoint_bridge.format.trajectory",
    "connect": "perdure.client",
    "derive_messages": "perdure.checkpoint_bridge.log.derived",
    "fold": "perdure.checkpoint_bridge.log.derived",
    "run_agent": "perdure.workflows.calling",
    "tool": "perdure.tools",
}

__all__ = [
    "Agent",
    "Chars",
    "ForkPatch",
    "Limits",
    "PerdureError",
    "PropagatingToolError",
    "Tokens",
    "ToolContext",
    "TurnContext",
    "UserMessage",
    "compare_trajectories",
    "connect",
    "derive_messages",
    "fold",
    "run_agent",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_EXPORTS[name]), name)
