"""What an agent was when a run started, in hashes (format page, "AgentFingerprint")."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format._record import Field, Record, member, plain
from perdure.checkpoint_bridge.format.stable_json import (
    Json,
    JsonObject,
    json_equal,
    stable_json,
    utf16_key,
    well_formed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AgentFingerprint", "describe_drift", "drift_of", "fingerprint"]

VERSION = 1


class AgentFingerprint(Record):
    """The model, the tools' input schemas and the instructions of an agent.

    The parts are stored one by one so that a difference can say what changed.
    """

    __slots__ = ()

    version = Field[int]("version", lambda: VERSION)
    """Fingerprints of different versions are not compared."""

    hash = Field[str]("hash", str)
    """The hash over all the parts; equal hashes mean no drift."""

    model = Field[str | None]("model", lambda: None)
    """The agent's model, else the provider's default; ``None`` when unknown."""

    tools = Field[dict[str, str]]("tools", dict)
    """The hash of each tool's input schema, by the tool's name."""

    instructions = Field[str]("instructions", str)
    """The hash of the system prompt."""


def fingerprint(
    model: str | None, tools: Mapping[str, Json] | None, instructions: str | None
) -> AgentFingerprint:
    """Take an agent's fingerprint; ``tools`` holds each tool's input schema by its name."""
    names = sorted(tools or {}, key=utf16_key)
    hashes = {name: _hash(stable_json(_schema((tools or {})[name]))) for name in names}
    parts: JsonObject = {"version": VERSION}
    if model is not None:
        parts["model"] = model
    parts["tools"] = hashes
    parts["instructions"] = _hash(instructions or "")
    whole = _hash(stable_json(parts))
    return AgentFingerprint.from_json({"version": VERSION, "hash": whole} | parts)


def drift_of(
    saved: AgentFingerprint | JsonObject | None, current: AgentFingerprint | JsonObject | None
) -> JsonObject | None:
    """What changed between two fingerprints, or ``None`` when nothing did.

    A record without a fingerprint, or with one of another version, is not compared.
    """
    old, new = plain(saved), plain(current)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return None
    if not json_equal(old.get("version"), new.get("version")):
        return None
    if json_equal(old.get("hash"), new.get("hash")):
        return None
    drift: JsonObject = {}
    if not json_equal(old.get("model"), new.get("model")):
        sides = {"from": old.get("model"), "to": new.get("model")}
        drift["model"] = {side: name for side, name in sides.items() if name is not None}
    tools_then, tools_now = _tools(old), _tools(new)
    drift["toolsAdded"] = _names(tools_now.keys() - tools_then.keys())
    drift["toolsRemoved"] = _names(tools_then.keys() - tools_now.keys())
    both = tools_then.keys() & tools_now.keys()
    drift["toolsChanged"] = _names(
        {name for name in both if not json_equal(tools_then[name], tools_now[name])}
    )
    drift["instructions"] = not json_equal(old.get("instructions"), new.get("instructions"))
    return drift if any(drift.values()) else None


def describe_drift(drift: JsonObject) -> str:
    """Describe a drift in one line (format page, "AgentFingerprint")."""
    parts: list[str] = []
    model = drift.get("model")
    if model is not None:
        before, after = member(model, "from") or "unknown", member(model, "to") or "unknown"
        parts.append(f"model {before} -> {after}")
    for key, label in (
        ("toolsAdded", "tools added"),
        ("toolsRemoved", "tools removed"),
        ("toolsChanged", "tools changed (input schema)"),
    ):
        names = drift.get(key)
        if names:
            parts.append(f"{label}: {', '.join(map(str, names))}")
    if drift.get("instructions"):
        parts.append("instructions changed")
    return "; ".join(parts)


def _schema(schema: Json) -> Json:
    return {} if schema is None else schema


def _hash(text: str) -> str:
    """The first 8 bytes of SHA-256 of the text in UTF-8, as 16 lower-case hex digits."""
    return hashlib.sha256(well_formed(text).encode()).hexdigest()[:16]


def _tools(value: JsonObject) -> dict[str, Any]:
    tools = value.get("tools")
    return tools if isinstance(tools, dict) else {}


def _names(names: set[str]) -> list[str]:
    return sorted(names, key=utf16_key)
