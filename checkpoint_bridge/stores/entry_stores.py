"""Stores of one's own for conversations as people read them: entries, in the order of writing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import quote, unquote

from perdure.checkpoint_bridge.format.messages import text_of
from perdure.checkpoint_bridge.log.entries import Entry, EntryTypes, entries_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

__all__ = ["ConversationInfo", "JsonLinesStore", "SessionStore", "SqlEntries", "session_info"]

_TITLE_LENGTH = 80


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """A list item that any store can make of a session's entries."""

    agent: str
    session_id: str
    title: str
    """Start of the first user message."""
    created_at: int
    """Unix milliseconds of the first entry."""
    last_activity: int
    """Unix milliseconds of the newest entry."""
    entry_count: int


@runtime_checkable
class SessionStore(Protocol):
    """What keeps the entries of sessions, apart for each agent."""

    async def append(self, agent: str, session_id: str, entry: Entry) -> None:
        """Add an entry behind the others."""

    async def read(self, agent: str, session_id: str) -> list[Entry]:
        """The entries in the order of their appends; ``[]`` for an unknown session."""

    async def list(self, agent: str) -> list[ConversationInfo]:
        """The agent's sessions, newest activity first."""

    async def delete(self, agent: str, session_id: str) -> None:
        """Forget a session, if it is there."""


def session_info(agent: str, session_id: str, entries: Sequence[Entry]) -> ConversationInfo:
    """The list item of a session: the same entries give the same item in every store."""
    said = next((each for each in entries if each.type == EntryTypes.USER), None)
    words = " ".join(text_of(said.data).split()) if said else ""
    cut = words if len(words) <= _TITLE_LENGTH else words[: _TITLE_LENGTH - 1] + "…"
    return ConversationInfo(
        agent=agent,
        session_id=session_id,
        title=cut,
        created_at=entries[0].time_ms if entries else 0,
        last_activity=entries[-1].time_ms if entries else 0,
        entry_count=len(entries),
    )


def _by_activity(found: list[ConversationInfo]) -> list[ConversationInfo]:
    return sorted(found, key=lambda each: (-each.last_activity, each.session_id))


class JsonLinesStore:
    """A file of JSON lines for each session, in a folder for each agent."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    async def append(self, agent: str, session_id: str, entry: Entry) -> None:
        """Add a line to the session's file."""
        line = json.dumps(entry.to_json(), ensure_ascii=False) + "\n"
        await asyncio.to_thread(self._write, self._file(agent, session_id), line)

    async def read(self, agent: str, session_id: str) -> list[Entry]:
        """Read the session's file; ``[]`` when there is none."""
        return await asyncio.to_thread(_entries, self._file(agent, session_id))

    async def list(self, agent: str) -> list[ConversationInfo]:
        """List the files of the agent's folder."""

        def look() -> list[ConversationInfo]:
            files = self._home(agent).glob("*.jsonl")
            read = [(unquote(file.stem), _entries(file)) for file in files]
            return [session_info(agent, name, entries) for name, entries in read if entries]

        return _by_activity(await asyncio.to_thread(look))

    async def delete(self, agent: str, session_id: str) -> None:
        """Remove the session's file, if it is there."""
        await asyncio.to_thread(self._file(agent, session_id).unlink, missing_ok=True)

    def _home(self, agent: str) -> Path:
        # An agent's name can hold what a file's cannot.
        return self._folder / quote(agent, safe="").replace(".", "%2E")

    def _file(self, agent: str, session_id: str) -> Path:
        return self._home(agent) / f"{quote(session_id, safe='')}.jsonl"

    def _write(self, file: Path, line: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as opened:
            opened.write(line)


def _entries(file: Path) -> list[Entry]:
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        return []
    return [Entry.from_json(json.loads(line)) for line in text.split("\n") if line]


class SqlEntries:
    """The sessions of a store of ours as entries, to read, list, delete and copy."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def read(self, agent: str, session_id: str) -> list[Entry]:
        """The entries of a session; ``[]`` when the agent has no such session."""
        row = await self._store.session(session_id)
        if row is None or row.agent != agent:
            return []
        return entries_of(await self._store.events(session_id))

    async def list(self, agent: str) -> list[ConversationInfo]:
        """The agent's sessions, newest activity first. Their logs are read."""
        rows = await self._store.sessions(agent=agent)
        read = [(row.session_id, await self.read(agent, row.session_id)) for row in rows]
        return _by_activity([session_info(agent, name, entries) for name, entries in read])

    async def delete(self, agent: str, session_id: str) -> None:
        """Delete a session with its log."""
        row = await self._store.session(session_id)
        if row is not None and row.agent == agent:
            await self._store.delete(session_id)

    async def copy_to(self, target: SessionStore, agent: str, session_id: str) -> int:
        """Append what ``target`` does not have yet; returns how many entries that were.

        It stops where an append raises: no later entry is there then.
        """
        has = len(await target.read(agent, session_id))
        missing = (await self.read(agent, session_id))[has:]
        for entry in missing:
            await target.append(agent, session_id, entry)
        return len(missing)
