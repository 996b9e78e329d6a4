"""Checkpoints in a directory of files, in the TypeScript SDK's layout (``fileStore(dir)``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import StorageError
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, HistoryEntry
from perdure.checkpoint_bridge.format.stable_json import parse_json, to_stored_text
from perdure.checkpoint_bridge.stores.store import DEFAULT_HISTORY_LIMIT, check_history_limit
from perdure.checkpoint_bridge.stores.stored import (
    StoredApproval,
    approval_record,
    approval_text,
    check_approval_id,
    check_checkpoint_id,
    entry_of,
    entry_record,
    in_order,
    now_ms,
    read_object,
    record_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LoushoFileStore"]


class LoushoFileStore:
    """A documented store in files that the TypeScript SDK reads and writes too.

    ``checkpoints/<id>.json``, ``checkpoint-history/<id>.json`` (the ring, oldest first) and
    ``approvals/<id>.json``. A file is written beside its place, flushed to the disk and renamed,
    so that it is whole at any time; only its owner can read it. Reading changes nothing, not
    even what is damaged.

    Two processes that save one session at the same time can lose an entry of the history (never
    the checkpoint). Within a process saves take turns.

    Args:
        directory: made by the first save when it is missing.
        history_limit: how many saves are kept for a session; 0 keeps none.

    Raises:
        ConfigurationError: the limit is negative or no whole number.
    """

    def __init__(
        self, directory: str | os.PathLike[str], history_limit: int = DEFAULT_HISTORY_LIMIT
    ) -> None:
        self.directory = Path(directory)
        self.history_limit = check_history_limit(history_limit)
        self._turn = asyncio.Lock()

    # -- the documented contract -------------------------------------------------------------

    async def save(self, session_id: str, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, then add it to the history.

        Raises:
            SessionIdInvalidError: the id cannot be a file's name.
            StorageError: the file cannot be written.
        """
        await self.save_at(session_id, checkpoint, now_ms())

    async def save_at(self, session_id: str, checkpoint: Checkpoint, saved_at_ms: int) -> None:
        """As :meth:`save`, with the time that the save had where it comes from."""
        await self.save_all(session_id, [(checkpoint, saved_at_ms)])

    async def save_all(self, session_id: str, saves: Sequence[tuple[Checkpoint, int]]) -> None:
        """Several saves, oldest first; the history is written once."""
        check_checkpoint_id(session_id)
        async with self._turn:
            await asyncio.to_thread(self._save, session_id, saves, overwrite=True)

    async def create(self, session_id: str, checkpoint: Checkpoint) -> bool:
        """Save, unless the session has a checkpoint; returns whether it was saved."""
        check_checkpoint_id(session_id)
        async with self._turn:
            saves = [(checkpoint, now_ms())]
            return await asyncio.to_thread(self._save, session_id, saves, overwrite=False)

    async def load(self, session_id: str) -> Checkpoint | None:
        """The session's checkpoint, or ``None``.

        Raises:
            StorageError: the file is damaged or cannot be read; the message names it.
        """
        path = self._checkpoint(check_checkpoint_id(session_id))
        content = await asyncio.to_thread(_read, path)
        return None if content is None else Checkpoint.from_json(read_object(content, str(path)))

    async def history(self, session_id: str, limit: int | None = None) -> list[HistoryEntry]:
        """The saves that are kept, newest first; ``[]`` when the file cannot be understood."""
        count = self.history_limit if limit is None else min(limit, self.history_limit)
        check_checkpoint_id(session_id)
        if count <= 0:
            return []
        entries = await asyncio.to_thread(self._entries, session_id)
        return [HistoryEntry.from_json(entry) for entry in entries[: -count - 1 : -1]]

    async def delete(self, session_id: str, *, keep_history: bool = False) -> None:
        """Remove the checkpoint, and the history unless it is to be kept."""
        check_checkpoint_id(session_id)
        paths = [self._checkpoint(session_id)]
        if not keep_history:
            paths.append(self._history(session_id))
        async with self._turn:
            for path in paths:
                await asyncio.to_thread(_remove, path)

    async def session_ids(self) -> list[str]:
        """Ids of the sessions that have a checkpoint, sorted."""
        return await asyncio.to_thread(self._session_ids)

    # -- approvals ---------------------------------------------------------------------------

    async def save_approval(self, approval: StoredApproval) -> None:
        """Write what waits for a decision (again, to put back one that was claimed)."""
        await self.save_approval_at(approval, now_ms())

    async def save_approval_at(self, approval: StoredApproval, time_ms: int) -> None:
        """As :meth:`save_approval`, at the time of the pause: approvals are listed by it."""
        path = self._approval(check_approval_id(approval.pending.id))
        await asyncio.to_thread(_write, path, approval_text(approval), overwrite=True)
        time_ns = time_ms * 1_000_000
        with contextlib.suppress(FileNotFoundError):  # claimed meanwhile
            await asyncio.to_thread(os.utime, path, ns=(time_ns, time_ns))

    async def pending_approvals(self) -> list[StoredApproval]:
        """What waits for a decision, oldest first.

        Raises:
            StorageError: the file of one is damaged; the message names it.
        """
        return await asyncio.to_thread(self._pending)

    async def claim_approval(self, approval_id: str) -> StoredApproval | None:
        """Take an approval in order to decide it: one caller gets it, the others ``None``."""
        return await self.claim_approval_at(approval_id, now_ms())

    async def claim_approval_at(self, approval_id: str, _time_ms: int) -> StoredApproval | None:
        """As :meth:`claim_approval`; a file that is gone keeps no time."""
        path = self._approval(check_approval_id(approval_id))
        content = await asyncio.to_thread(_read, path)
        if content is None:
            return None
        approval = approval_record(content, str(path))
        return approval if await asyncio.to_thread(_remove, path) else None

    # -- files -------------------------------------------------------------------------------

    def _checkpoint(self, session_id: str) -> Path:
        return self.directory / "checkpoints" / f"{session_id}.json"

    def _history(self, session_id: str) -> Path:
        return self.directory / "checkpoint-history" / f"{session_id}.json"

    def _approval(self, approval_id: str) -> Path:
        return self.directory / "approvals" / f"{approval_id}.json"

    def _save(
        self, session_id: str, saves: Sequence[tuple[Checkpoint, int]], *, overwrite: bool
    ) -> bool:
        newest, _ = saves[-1]
        if not _write(self._checkpoint(session_id), record_text(newest), overwrite=overwrite):
            return False
        if self.history_limit:
            new = [entry_record(each.to_json(), time_ms) for each, time_ms in saves]
            kept = [*self._entries(session_id), *new][-self.history_limit :]
            _write(self._history(session_id), to_stored_text(kept), overwrite=True)
        return True

    def _session_ids(self) -> list[str]:
        with _errors(self.directory):
            names = [path.stem for path in self._checkpoint("x").parent.glob("*.json")]
        return sorted(name for name in names if not name.startswith("."))

    def _entries(self, session_id: str) -> list[dict[str, Any]]:
        """The ring, oldest first. What cannot be read as one counts as empty (format page)."""
        content = _read(self._history(session_id))
        try:
            entries = parse_json((content or b"[]").decode("utf-8"))
        except ValueError:
            return []
        if not isinstance(entries, list):
            return []
        return [entry for entry in entries if entry_of(entry) is not None]

    def _pending(self) -> list[StoredApproval]:
        found = []
        with _errors(self.directory):
            for path in self._approval("x").parent.glob("*.json"):
                if (content := _read(path)) is None:
                    continue  # claimed meanwhile
                approval = approval_record(content, str(path))
                with contextlib.suppress(FileNotFoundError):
                    found.append((path.stat().st_mtime_ns, approval))
        return in_order(found)


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"{path} cannot be used: {error.strerror or error}"
        raise StorageError(msg) from error


def _read(path: Path) -> bytes | None:
    with _errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def _remove(path: Path) -> bool:
    with _errors(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True


def _write(path: Path, text: str, *, overwrite: bool) -> bool:
    """Write a file in one step; returns whether it was written (it was there: not)."""
    with _errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # An id cannot start with a dot, so what a crash leaves here is nobody's checkpoint.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                os.replace(name, path)  # noqa: PTH105 - of a plain name
            else:
                try:
                    os.link(name, path)
                except FileExistsError:
                    return False
        finally:
            Path(name).unlink(missing_ok=True)
        _flush_directory(path.parent)
        return True


def _flush_directory(path: Path) -> None:
    """Make the rename survive a power cut, where directories can be flushed."""
    with contextlib.suppress(PermissionError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
