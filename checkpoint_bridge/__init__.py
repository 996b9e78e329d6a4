"""The bridge between durable runs and the documented checkpoint format.

Its rooms: ``format`` (the documented records and rules), ``log`` (events and the views of them),
``tables`` (rows, within a transaction), ``stores`` (ours, and the TypeScript SDK's forms),
``mirrors`` (to and from other stores), ``errors``. What is done with a session of our store, as
closing, forking or compacting it, stands beside them.

Names are loaded when they are first used. This module runs again in every workflow sandbox, and
a user who compares two checkpoints needs no database, so importing it imports nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.checkpoint import (
        ApprovalDecision,
        Checkpoint,
        ExecutionSnapshot,
        HistoryEntry,
        PendingApproval,
        RunUsage,
        StepUsage,
        WaitingApproval,
        decode_bytes,
        encode_bytes,
    )
    from perdure.checkpoint_bridge.format.fingerprints import (
        AgentFingerprint,
        describe_drift,
        drift_of,
        fingerprint,
    )
    from perdure.checkpoint_bridge.format.fork import UNSET, ForkPatch, apply_patch
    from perdure.checkpoint_bridge.format.messages import Message, ToolCall, text_of
    from perdure.checkpoint_bridge.format.stable_json import normalize_arguments
    from perdure.checkpoint_bridge.format.tool_errors import tool_error_result
    from perdure.checkpoint_bridge.format.trajectory import (
        TrajectoryComparison,
        compare_trajectories,
    )
    from perdure.checkpoint_bridge.format.transcript import (
        PendingTurn,
        assert_valid,
        new_session_messages,
        split_pending_turn,
        with_tool_result,
    )
    from perdure.checkpoint_bridge.log.derived import derive_messages
    from perdure.checkpoint_bridge.log.surface import derive_event_message
    from perdure.checkpoint_bridge.mirrors.importing import Imported, import_all, import_session
    from perdure.checkpoint_bridge.mirrors.mirror import Mirror, mirroring
    from perdure.checkpoint_bridge.stores.entry_stores import (
        ConversationInfo,
        JsonLinesStore,
        SessionStore,
        SqlEntries,
        session_info,
    )
    from perdure.checkpoint_bridge.stores.hooks import SessionHooks
    from perdure.checkpoint_bridge.stores.key_value import KeyValueStore
    from perdure.checkpoint_bridge.stores.lousho_files import LoushoFileStore
    from perdure.checkpoint_bridge.stores.lousho_sqlite import LoushoSqliteStore
    from perdure.checkpoint_bridge.stores.retention import Retention
    from perdure.checkpoint_bridge.stores.sql_store import MemoryStore, SqlStore
    from perdure.checkpoint_bridge.stores.store import (
        CheckpointStore,
        fork_session,
        get_checkpoint_history,
    )
    from perdure.checkpoint_bridge.stores.stored import StoredApproval

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
    "WaitingApproval",
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
    "format.checkpoint": (
        "ApprovalDecision",
        "Checkpoint",
        "ExecutionSnapshot",
        "HistoryEntry",
        "PendingApproval",
        "RunUsage",
        "StepUsage",
        "WaitingApproval",
        "decode_bytes",
        "encode_bytes",
    ),
    "log.derived": ("derive_messages",),
    "format.fingerprints": ("AgentFingerprint", "describe_drift", "drift_of", "fingerprint"),
    "format.fork": ("UNSET", "ForkPatch", "apply_patch"),
    "mirrors.importing": ("Imported", "import_all", "import_session"),
    "stores.key_value": ("KeyValueStore",),
    "stores.lousho_files": ("LoushoFileStore",),
    "stores.lousho_sqlite": ("LoushoSqliteStore",),
    "format.messages": ("Message", "ToolCall", "text_of"),
    "mirrors.mirror": ("Mirror", "mirroring"),
    "stores.entry_stores": (
        "ConversationInfo",
        "JsonLinesStore",
        "SessionStore",
        "SqlEntries",
        "session_info",
    ),
    "stores.hooks": ("SessionHooks",),
    "stores.retention": ("Retention",),
    "stores.sql_store": ("MemoryStore", "SqlStore"),
    "format.stable_json": ("normalize_arguments",),
    "stores.store": ("CheckpointStore", "fork_session", "get_checkpoint_history"),
    "stores.stored": ("StoredApproval",),
    "log.surface": ("derive_event_message",),
    "format.tool_errors": ("tool_error_result",),
    "format.trajectory": ("TrajectoryComparison", "compare_trajectories"),
    "format.transcript": (
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
