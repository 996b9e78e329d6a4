"""What the stores in the TypeScript SDK's forms share: ids, times, entries and JSON texts.

Section "Stored forms of the TypeScript SDK" of the format page.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import ConfigurationError, SessionIdInvalidError, StorageError
from perdure.checkpoint_bridge.format.checkpoint import (
    IN_PROGRESS,
    Checkpoint,
    ExecutionSnapshot,
    HistoryEntry,
    PendingApproval,
)
from perdure.checkpoint_bridge.format.stable_json import JsonObject, parse_json, to_stored_text
from perdure.checkpoint_bridge.log.events import iso, step_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "StoredApproval",
    "approval_record",
    "approval_text",
    "check_approval_id",
    "check_checkpoint_id",
    "entry_of",
    "entry_record",
    "in_order",
    "now_ms",
    "read_object",
    "record_text",
]

_CHECKPOINT_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_APPROVAL_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class StoredApproval:
    """A pause that waits for a decision, as the TypeScript SDK keeps it."""

    pending: PendingApproval
    """What is shown to the person who decides."""
    snapshot: ExecutionSnapshot
    """What the run goes on from."""


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def check_checkpoint_id(session_id: str) -> str:
    """Give back a session id that names a file and a key, and nothing outside their place.

    Raises:
        SessionIdInvalidError: it does not match ``^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}$``.
    """
    if not isinstance(session_id, str) or not _CHECKPOINT_ID.fullmatch(session_id):
        msg = f"{session_id!r} cannot be the id of a stored session."
        hint = "Use 1 to 200 of the characters A-Z a-z 0-9 _ - and . (not first)."
        raise SessionIdInvalidError(msg, hint=hint)
    return session_id


def check_approval_id(approval_id: str) -> str:
    """Give back an approval id that can name a file.

    Raises:
        ConfigurationError: it does not match ``^[A-Za-z0-9_-]{1,128}$`` (``field`` is
            ``approvalId``).
    """
    if not isinstance(approval_id, str) or not _APPROVAL_ID.fullmatch(approval_id):
        msg = f"{approval_id!r} cannot be the id of an approval."
        hint = "Use 1 to 128 of the characters A-Z a-z 0-9 _ and -."
        raise ConfigurationError(msg, field="approvalId", hint=hint)
    return approval_id


def record_text(record: Checkpoint) -> str:
    """The JSON text of a checkpoint, every key as it came."""
    try:
        return to_stored_text(record.raw)
    except TypeError:  # raw bytes and models in it: they are JSON in the copy
        return to_stored_text(record.to_json())


def read_object(text: str | bytes, place: str) -> JsonObject:
    """Read the JSON object of ``place``.

    Raises:
        StorageError: it is damaged: not UTF-8, not JSON, or not an object.
    """
    try:
        value = parse_json(text if isinstance(text, str) else text.decode("utf-8"))
    except ValueError as error:
        raise StorageError(_damaged(place), hint=_DAMAGED_HINT) from error
    if not isinstance(value, dict):
        raise StorageError(_damaged(place), hint=_DAMAGED_HINT)
    return value


_DAMAGED_HINT = "Restore it from a backup, or delete it; it was not changed."


def _damaged(place: str) -> str:
    return f"{place} is damaged: it does not hold a JSON object."


def entry_record(checkpoint: JsonObject, saved_ms: int) -> JsonObject:
    """The history entry of a save (format page, "History")."""
    status = checkpoint.get("status")
    return {
        "step": step_of(checkpoint),
        "savedAt": iso(saved_ms),
        "status": status if isinstance(status, str) else IN_PROGRESS,
        "checkpoint": checkpoint,
    }


def entry_of(value: object) -> HistoryEntry | None:
    """A stored entry, or ``None`` when it is not one (damaged entries count as not there)."""
    if not isinstance(value, dict) or not isinstance(value.get("checkpoint"), dict):
        return None
    return HistoryEntry.from_json(value)


def approval_text(approval: StoredApproval) -> str:
    """The JSON text of an approval: ``{pending, snapshot}``."""
    record = {"pending": approval.pending.to_json(), "snapshot": approval.snapshot.to_json()}
    return to_stored_text(record)


def approval_record(text: str | bytes, place: str) -> StoredApproval:
    """Read the approval of ``place``.

    Raises:
        StorageError: it is damaged.
    """
    value = read_object(text, place)
    pending, snapshot = value.get("pending"), value.get("snapshot")
    if not isinstance(pending, dict) or not isinstance(snapshot, dict):
        msg = f"{place} is damaged: it does not hold a pending approval and its snapshot."
        raise StorageError(msg, hint=_DAMAGED_HINT)
    return StoredApproval(PendingApproval.from_json(pending), ExecutionSnapshot.from_json(snapshot))


def in_order(approvals: Iterable[tuple[int, StoredApproval]]) -> list[StoredApproval]:
    """Approvals, oldest first, from pairs of a time and an approval."""
    return [each for _, each in sorted(approvals, key=lambda pair: (pair[0], pair[1].pending.id))]
