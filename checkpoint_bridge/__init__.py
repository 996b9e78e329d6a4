"""The bridge between durable runs and the documented checkpoint format.

Names are loaded when they are first used. This module runs again in every workflow sandbox, and
a user who compares two checkpoints needs no database, so importing it imports nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.checkpoint import (
        ApprovalDecision,
        Checkpoint,
        ExecutionSnapshot,
        HistoryEntry,
        PendingApproval,
        RunUsage,
        StepUsage,
        decode_bytes,
        encode_bytes,
    )
    from perdure.checkpoint_bridge.derived import derive_messages
    from perdure.checkpoint_bridge.entry_stores import (
        ConversationInfo,
        JsonLinesStore,
        SessionStore,
        SqlEntries,
        session_info,
    )
    from perdure.checkpoint_bridge.fingerprints import (
        AgentFingerprint,
        describe_drift,
        drift_of,
        fingerprint,
    )
    from perdure.checkpoint_bridge.fork import UNSET, ForkPatch, apply_patch
    from perdure.checkpoint_bridge.hooks import SessionHooks
    from perdure.checkpoint_bridge.importing import Imported, import_all, import_session
    from perdure.checkpoint_bridge.key_value import KeyValueStore
    from perdure.checkpoint_bridge.lousho_files import LoushoFileStore
    from perdure.checkpoint_bridge.lousho_sqlite import LoushoSqliteStore
    from perdure.checkpoint_bridge.messages import Message, ToolCall, text_of
    from perdure.checkpoint_bridge.mirror import Mirror, mirroring
    from perdure.checkpoint_bridge.retention import Retention
    from perdure.checkpoint_bridge.sql_store import MemoryStore, SqlStore
    from perdure.checkpoint_bridge.stable_json import normalize_arguments
    from perdure.checkpoint_bridge.store import (
        CheckpointStore,
        fork_session,
        get_checkpoint_history,
    )
    from perdure.checkpoint_bridge.stored import StoredApproval
    from perdure.checkpoint_bridge.surface import derive_event_message
    from perdure.checkpoint_bridge.tool_errors import tool_error_result
    from perdure.checkpoint_bridge.trajectory import TrajectoryComparison, compare_trajectories
    from perdure.checkpoint_bridge.transcript import (
        PendingTurn,
        assert_valid,
        new_session_messages,
        split_pending_turn,
        with_tool_result,
    )

__all__ = [
    "UNSET",
    "AgentFingerprint",
    "ApprovalDecision",
    "Checkpoint",
    "CheckpointStore",
    "ConversationInfo",
    "ExecutionSnapshot",
    "ForkPatch",
    "HistoryEntry",
    "Imported",
    "JsonLinesStore",
    "KeyValueStore",
    "LoushoFileStore",
    "LoushoSqliteStore",
    "MemoryStore",
    "Message",
    "Mirror",
    "PendingApproval",
    "PendingTurn",
    "Retention",
    "RunUsage",
    "SessionHooks",
    "SessionStore",
    "SqlEntries",
    "SqlStore",
    "StepUsage",
    "StoredApproval",
    "ToolCall",
    "TrajectoryComparison",
    "apply_patch",
    "assert_valid",
    "compare_trajectories",
    "decode_bytes",
    "derive_event_message",
    "derive_messages",
    "describe_drift",
    "drift_of",
    "encode_bytes",
    "fingerprint",
    "fork_session",
    "get_checkpoint_history",
    "import_all",
    "import_session",
    "mirroring",
    "new_session_messages",
    "normalize_arguments",
    "session_info",
    "split_pending_turn",
    "text_of",
    "tool_error_result",
    "with_tool_result",
]

# Which module a name comes from. A new public name has its line here, in __all__ and in the
# imports for type checkers above. No public name may be that of a module: importing the module
# would put it in the name's place.
_MODULES = {
    "checkpoint": (
        "ApprovalDecision",
        "Checkpoint",
        "ExecutionSnapshot",
        "HistoryEntry",
        "PendingApproval",
        "RunUsage",
        "StepUsage",
        "decode_bytes",
        "encode_bytes",
    ),
    "derived": ("derive_messages",),
    "fingerprints": ("AgentFingerprint", "describe_drift", "drift_of", "fingerprint"),
    "fork": ("UNSET", "ForkPatch", "apply_patch"),
    "importing": ("Imported", "import_all", "import_session"),
    "key_value": ("KeyValueStore",),
    "lousho_files": ("LoushoFileStore",),
    "lousho_sqlite": ("LoushoSqliteStore",),
    "messages": ("Message", "ToolCall", "text_of"),
    "mirror": ("Mirror", "mirroring"),
    "entry_stores": (
        "ConversationInfo",
        "JsonLinesStore",
        "SessionStore",
        "SqlEntries",
        "session_info",
    ),
    "hooks": ("SessionHooks",),
    "retention": ("Retention",),
    "sql_store": ("MemoryStore", "SqlStore"),
    "stable_json": ("normalize_arguments",),
    "store": ("CheckpointStore", "fork_session", "get_checkpoint_history"),
    "stored": ("StoredApproval",),
    "surface": ("derive_event_message",),
    "tool_errors": ("tool_error_result",),
    "trajectory": ("TrajectoryComparison", "compare_trajectories"),
    "transcript": (
        "PendingTurn",
        "assert_valid",
        "new_session_messages",
        "split_pending_turn",
        "with_tool_result",
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
