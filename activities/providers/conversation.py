"""The stored transcript as services accept it: calls, results, ids, names and arguments.

The transcript keeps what the model wrote, faults included (format page: ``arguments`` is the raw
string). A service refuses some of it on the next turn, and then a conversation is dead for good
(field reports R6, R15, R24, R25), so what is sent is repaired here, for both dialects, by rules
that depend on nothing but the transcript: the same one gives the same request.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from perdure.activities.providers.failures import cannot_send
from perdure.checkpoint_bridge.format.stable_json import parse_json

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = ["Call", "Entry", "make_ids_usable", "settle", "text_only"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUSPICIOUS_NESTING = 400
"""Brackets from which it is worth a look whether a text is nested too deep to be sent."""


@dataclass(frozen=True)
class Call:
    """One call of an assistant turn, ready to be sent."""

    id: str
    name: str
    arguments: JsonObject
    raw_arguments: str
    """Parses to ``arguments``; the model's own text where that is an object."""


@dataclass(frozen=True)
class Entry:
    """One message of the settled conversation."""

    index: int
    """Place in the stored transcript, from 0, for error messages."""
    message: JsonObject
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    """Of a tool message: the id, as sent, of the call that it answers."""

    @property
    def role(self) -> str:
        """``system``, ``user``, ``assistant`` or ``tool``."""
        return str(self.message.get("role"))

    @property
    def where(self) -> str:
        """The message in the words of an error, counted from 1."""
        return f"message {self.index + 1} ({self.role})"


def settle(
    messages: list[JsonObject], *, label: str, id_pattern: re.Pattern[str], known: set[str]
) -> list[Entry]:
    """Put each call's result directly behind its turn, in call order, and make ids unique.

    Ids that the service would refuse, and ids that an earlier turn has used, are replaced by ones
    derived from the call's place. Names that are not ``known`` (a tool of this request) are cut
    down to the characters that services allow.

    Raises:
        ProviderError: not retryable, when a call has no result or a result no call; the service
            would answer 400.
    """
    entries: list[Entry] = []
    used: set[str] = set()
    position = 0
    while position < len(messages):
        message = messages[position]
        index, position = position, position + 1
        role = message.get("role")
        if role == "tool":
            _refuse(label, index, f"answers {message.get('toolCallId')!r}, which nothing asked for")
        if role not in {"system", "user", "assistant"}:
            _refuse(label, index, f"has the unknown role {role!r}")
        stored_calls = message.get("toolCalls") if role == "assistant" else None
        if not stored_calls:
            entries.append(Entry(index, message))
            continue
        calls = [
            _call(stored, place=f"{index}:{number}", used=used, pattern=id_pattern, known=known)
            for number, stored in enumerate(stored_calls)
        ]
        entries.append(Entry(index, message, tuple(calls)))
        results: dict[str, list[Entry]] = {str(stored.get("id")): [] for stored in stored_calls}
        rest: list[Entry] = []
        while position < len(messages) and messages[position].get("role") != "assistant":
            entry = Entry(position, messages[position])
            position += 1
            answered = entry.message.get("toolCallId")
            if entry.role != "tool":
                rest.append(entry)
            elif str(answered) in results:
                results[str(answered)].append(entry)
            else:
                _refuse(label, entry.index, f"answers {answered!r}, which nothing asked for")
        counts = Counter(str(stored.get("id")) for stored in stored_calls)
        # Of more results than calls the last ones count, as everywhere in the format.
        waiting = {key: iter(found[-counts[key] :]) for key, found in results.items()}
        for stored, call in zip(stored_calls, calls, strict=True):
            result = next(waiting[str(stored.get("id"))], None)
            if result is None:
                _refuse(label, index, f"asks for {call.name} ({call.id}), which has no result")
            entries.append(Entry(result.index, result.message, call_id=call.id))
        entries.extend(rest)
    return entries


def make_ids_usable(calls: list[JsonObject]) -> list[JsonObject]:
    """Give every call of a response a non-empty id that no other call of it has."""
    seen: set[str] = set()
    usable = []
    for call in calls:
        identity = call.get("id")
        if not isinstance(identity, str) or not identity.strip() or identity in seen:
            identity = f"call_{uuid.uuid4().hex}"
        seen.add(identity)
        usable.append({**call, "id": identity})
    return usable


def text_only(entry: Entry, label: str) -> str:
    """The text of a message that may hold nothing else where it goes."""
    content = entry.message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(label, entry.index, "has a content that is neither text nor a list of parts")
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            _refuse(label, entry.index, "holds a part other than text, which cannot be sent there")
        texts.append(str(part.get("text", "")))
    return "".join(texts)


def _refuse(label: str, index: int, why: str) -> NoReturn:
    raise cannot_send(label, f"message {index + 1} of the transcript {why}")


def _call(
    stored: JsonObject, *, place: str, used: set[str], pattern: re.Pattern[str], known: set[str]
) -> Call:
    identity = stored.get("id")
    if not isinstance(identity, str) or identity in used or not pattern.fullmatch(identity):
        digest = hashlib.sha256(f"{place}:{identity}".encode(errors="replace")).hexdigest()
        identity = f"call_{digest[:24]}"
    used.add(identity)
    function = stored.get("function")
    if not isinstance(function, dict):
        function = {}
    name = str(function.get("name", ""))
    if name not in known and not _NAME.fullmatch(name):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"
    raw = function.get("arguments")
    parsed = _object_of(raw)
    if parsed is None:
        return Call(identity, name, {}, "{}")
    return Call(identity, name, parsed, str(raw))


def _object_of(raw: object) -> JsonObject | None:
    """The object that a raw argument text is, by strict JSON, or ``None``."""
    if not isinstance(raw, str):
        return None
    try:
        value = parse_json(raw)
        if isinstance(value, dict) and raw.count("{") + raw.count("[") > _SUSPICIOUS_NESTING:
            json.dumps(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
