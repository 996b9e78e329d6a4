"""What is known of a session beside its log, from its creation on and for ever the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.stable_json import MAX_NESTING, is_deeper
from perdure.checkpoint_bridge.log.events import dump
from perdure.checkpoint_bridge.log.lineage import ancestors

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

SESSION_FORMAT_VERSION = 1
"""The format of the logs that this code writes."""

HEADER_LIMIT = 64 * 1024
"""Bytes of JSON that a header may be."""


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """A session's header. No model is ever shown it."""

    version: int
    """Format of the session's log; only a migration of old logs changes it."""
    id: str
    created_at: int
    """Unix milliseconds."""
    cwd: str | None = None
    """The directory that the session is about, where it is about one."""
    parent_session: str | None = None
    """The session whose fork or child it is."""
    is_seeded: bool = False
    """Whether the log began with events from elsewhere: a fork's, a seed, a transcript."""
    inherited_event_count: int = 0
    """How many events at the beginning are the parent's."""
    delegation_depth: int | None = None
    """How deep below a session of a person this one is, where an agent started it."""
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, row: SessionRow) -> SessionHeader:
        """The header of a stored session."""
        kept = json.loads(row.header)
        return cls(
            version=row.version,
            id=row.session_id,
            created_at=row.created_at,
            cwd=kept.get("cwd"),
            parent_session=row.parent_session or next(iter(ancestors(row.session_id)), None),
            is_seeded=kept.get("isSeeded", False),
            inherited_event_count=kept.get("inheritedEventCount", 0),
            delegation_depth=kept.get("delegationDepth"),
            metadata=kept.get("metadata"),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with camelCase keys; absent values have no key."""
        value: dict[str, Any] = {
            "version": self.version,
            "id": self.id,
            "createdAt": self.created_at,
            "cwd": self.cwd,
            "parentSession": self.parent_session,
            "isSeeded": self.is_seeded,
            "inheritedEventCount": self.inherited_event_count or None,
            "delegationDepth": self.delegation_depth,
            "metadata": self.metadata,
        }
        return {key: item for key, item in value.items() if item is not None}


def header_text(
    *,
    cwd: Any = None,
    metadata: Any = None,
    delegation_depth: int | None = None,
    is_seeded: bool = False,
    inherited: int = 0,
    claim: str | None = None,
) -> str:
    """The part of a header that has no column of its own, as it is stored.

    Raises:
        ConfigurationError: a value is none that a header can have; ``field`` names it.
    """
    if cwd is not None and not isinstance(cwd, str):
        msg = f"cwd is a text, not {type(cwd).__name__}."
        raise ConfigurationError(msg, field="cwd")
    if metadata is not None and (not isinstance(metadata, dict) or is_deeper(metadata)):
        msg = f"metadata is a JSON object, nested at most {MAX_NESTING} levels deep."
        raise ConfigurationError(msg, field="metadata")
    kept: dict[str, Any] = {
        "cwd": cwd,
        "metadata": metadata,
        "delegationDepth": delegation_depth,
        "isSeeded": is_seeded or None,
        "inheritedEventCount": inherited or None,
        "claim": claim,
    }
    try:
        json.dumps(metadata, allow_nan=False)
        text = dump({key: item for key, item in kept.items() if item is not None})
    except (TypeError, ValueError) as error:
        msg = f"metadata is not JSON: {error}"
        raise ConfigurationError(msg, field="metadata") from error
    if len(text) > HEADER_LIMIT:
        msg = f"metadata is {len(text):,} bytes of JSON; a header holds {HEADER_LIMIT:,}."
        raise ConfigurationError(msg, field="metadata")
    return text
