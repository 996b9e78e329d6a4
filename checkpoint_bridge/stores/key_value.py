"""Checkpoints in a key-value service, in the TypeScript SDK's layout (``KVStore``)."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import StorageError
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry
from perdure.checkpoint_bridge.format.stable_json import parse_json, to_stored_text
from perdure.checkpoint_bridge.option_checks import refusal
from perdure.checkpoint_bridge.stores.store import DEFAULT_HISTORY_LIMIT, check_history_limit
from perdure.checkpoint_bridge.stores.stored import (
    check_checkpoint_id,
    entry_of,
    entry_record,
    now_ms,
    read_object,
    record_text,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["KeyValueStore"]


class KeyValueStore:
    """A documented store over three functions of a key-value service.

    The checkpoint is at ``<prefix><sessionId>``, the ids of the history's entries (oldest first)
    at ``<prefix><sessionId>#history`` and each entry at ``<prefix><sessionId>#history/<id>``. So
    no value grows with the history, and a crash between two writes leaves an entry that nobody
    lists at worst.

    Such a service has no transactions: two processes that save one session at the same time can
    lose an entry of the history (never the checkpoint). Within a process saves take turns.

    Args:
        get: gives the text (or UTF-8 bytes) under a key, or ``None``.
        put: stores a text under a key.
        delete: removes a key; one that is not there is no error.
        prefix: goes before every key.
        history_limit: how many saves are kept for a session; 0 turns the history off, which
            saves a read and two writes at every save.

    Raises:
        ConfigurationError: the limit is negative or no whole number, or a function is none.
    """

    def __init__(
        self,
        get: Callable[[str], Awaitable[str | bytes | None]],
        put: Callable[[str, str], Awaitable[object]],
        delete: Callable[[str], Awaitable[object]],
        prefix: str = "",
        history_limit: int = DEFAULT_HISTORY_LIMIT,
    ) -> None:
        for option, function in (("get", get), ("put", put), ("delete", delete)):
            if not callable(function):
                raise refusal(option, "an async function", function)
        self._get = get
        self._put = put
        self._delete = delete
        self._prefix = prefix
        self.history_limit = check_history_limit(history_limit)
        self._turn = asyncio.Lock()

    async def save(self, session_id: str, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, then add it to the history.

        Raises:
            SessionIdInvalidError: the id could be mistaken for another key.
        """
        await self.save_at(session_id, checkpoint, now_ms())

    async def save_at(self, session_id: str, checkpoint: Checkpoint, saved_at_ms: int) -> None:
        """As :meth:`save`, with the time that the save had where it comes from."""
        key = self._key(session_id)
        text = record_text(checkpoint)
        async with self._turn:
            await self._put(key, text)
            if not self.history_limit:
                return
            # The time is for people who look at the keys; the index says the order.
            entry_id = f"{saved_at_ms}-{uuid.uuid4().hex[:12]}"
            entry = to_stored_text(entry_record(checkpoint.to_json(), saved_at_ms))
            await self._put(self._entry(key, entry_id), entry)
            ids = [*await self._index(key), entry_id]
            kept = ids[-self.history_limit :]
            await self._put(self._history(key), to_stored_text(kept))
            for dropped in ids[: -self.history_limit]:
                await self._delete(self._entry(key, dropped))

    async def load(self, session_id: str) -> Checkpoint | None:
        """The session's checkpoint, or ``None``.

        Raises:
            StorageError: what is under the key is no checkpoint.
        """
        key = self._key(session_id)
        text = await self._get(key)
        return None if text is None else Checkpoint.from_json(read_object(text, f"Key {key!r}"))

    async def history(self, session_id: str, limit: int | None = None) -> list[HistoryEntry]:
        """The saves that are kept, newest first; an entry that is missing is left out."""
        count = self.history_limit if limit is None else min(limit, self.history_limit)
        key = self._key(session_id)
        if count <= 0:
            return []
        entries: list[HistoryEntry] = []
        for entry_id in reversed((await self._index(key))[-self.history_limit :]):
            entry = await self._read_entry(self._entry(key, entry_id))
            if entry is not None:
                entries.append(entry)
            if len(entries) == count:
                break
        return entries

    async def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        """Remove the checkpoint, and the history unless it is to be kept."""
        key = self._key(session_id)
        async with self._turn:
            await self._delete(key)
            if keep_history:
                return
            # The index last: until it is gone, a second try finds all that is left.
            for entry_id in await self._index(key):
                await self._delete(self._entry(key, entry_id))
            await self._delete(self._history(key))

    def _key(self, session_id: str) -> str:
        return self._prefix + check_checkpoint_id(session_id)

    @staticmethod
    def _history(key: str) -> str:
        return f"{key}#history"

    @staticmethod
    def _entry(key: str, entry_id: str) -> str:
        return f"{key}#history/{entry_id}"

    async def _index(self, key: str) -> list[str]:
        """Ids of the entries, oldest first; an index that cannot be read counts as empty."""
        text = await self._get(self._history(key))
        if text is None:
            return []
        try:
            ids = parse_json(text if isinstance(text, str) else text.decode("utf-8"))
        except ValueError:
            return []
        return [each for each in ids if isinstance(each, str)] if isinstance(ids, list) else []

    async def _read_entry(self, key: str) -> HistoryEntry | None:
        text = await self._get(key)
        if text is None:
            return None
        try:
            return entry_of(read_object(text, f"Key {key!r}"))
        except StorageError:
            return None
