"""The TypeScript SDK's directory of files: layout, damage, and names that lead elsewhere."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from perdure.checkpoint_bridge import LoushoFileStore
from perdure.checkpoint_bridge.errors import SessionIdInvalidError, StorageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lousho" / "agents"


@pytest.fixture
def store(folder: Path) -> LoushoFileStore:
    return LoushoFileStore(folder)


def files(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


async def test_files_are_where_the_format_says(store, folder, record, text):
    for step in (1, 2):
        await store.save("trip.fork-1", record("trip.fork-1", step, odd="\ud800é"))
    assert files(folder) == ["checkpoint-history/trip.fork-1.json", "checkpoints/trip.fork-1.json"]
    content = (folder / "checkpoints" / "trip.fork-1.json").read_text("utf-8")
    assert text(json.loads(content)) == text(record("trip.fork-1", 2, odd="\ud800é"))
    ring = json.loads((folder / "checkpoint-history" / "trip.fork-1.json").read_text("utf-8"))
    assert [entry["step"] for entry in ring] == [1, 2]
    assert all(each.stat().st_mode & 0o077 == 0 for each in folder.rglob("*.json"))


async def test_reading_makes_nothing(store, folder):
    assert await store.load("trip") is None
    assert await store.history("trip") == []
    assert await store.pending_approvals() == []
    await store.delete("trip")
    assert not folder.exists()


@pytest.mark.parametrize("left", [b"", b'{"sessionId": "trip", "mess', b"[]", b"\xff\xfe", b"null"])
async def test_r35_a_damaged_checkpoint_is_named_and_never_absent(store, folder, record, left):
    await store.save("trip", record("trip"))
    path = folder / "checkpoints" / "trip.json"
    path.write_bytes(left)
    with pytest.raises(StorageError) as caught:
        await store.load("trip")
    assert str(path) in str(caught.value)
    assert caught.value.code == "LOUSHO_STORAGE_FAILED"
    assert path.read_bytes() == left
    assert len(await store.history("trip")) == 1
    await store.save("trip", record("trip", 2))
    assert (await store.load("trip")).step_index == 2


@pytest.mark.parametrize("left", [b"", b'[{"step": 1, "che', b"{}", b"\xff", b"7", b"[1, {}]"])
async def test_a_damaged_history_is_empty_and_built_anew(store, folder, record, left):
    await store.save("trip", record("trip"))
    path = folder / "checkpoint-history" / "trip.json"
    path.write_bytes(left)
    assert await store.history("trip") == []
    assert path.read_bytes() == left
    await store.save("trip", record("trip", 2))
    assert [entry.step for entry in await store.history("trip")] == [2]


async def test_a_damaged_approval_is_named(store, folder):
    (folder / "approvals").mkdir(parents=True)
    (folder / "approvals" / "a1.json").write_text('{"pending": {}}')
    for read in (store.pending_approvals(), store.claim_approval("a1")):
        with pytest.raises(StorageError, match=r"a1\.json is damaged"):
            await read
    assert files(folder) == ["approvals/a1.json"]


@pytest.mark.parametrize(
    "session_id",
    ["../x", "..", ".", "", ".hidden", "a/b", "a\\b", "/etc/passwd", "x" * 201, "a\0", "a\n", "é"],
)
async def test_an_id_that_leads_elsewhere_is_refused(store, tmp_path, record, session_id):
    for refused in (
        store.save(session_id, record(session_id)),
        store.create(session_id, record(session_id)),
        store.load(session_id),
        store.history(session_id),
        store.delete(session_id),
    ):
        with pytest.raises(SessionIdInvalidError) as caught:
            await refused
        assert caught.value.code == "LOUSHO_SESSION_ID_INVALID"
    assert list(tmp_path.iterdir()) == []


async def test_r35_what_a_killed_writer_left_is_nobodys(store, folder, record, monkeypatch):
    await store.save("trip", record("trip", 1))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr("pathlib.Path.unlink", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            store._save("trip", [(record("trip", 2), 1)], overwrite=True)
    assert len(files(folder)) == 3
    assert (await store.load("trip")).step_index == 1
    await store.save("trip", record("trip", 3))
    assert [entry.step for entry in await store.history("trip")] == [3, 1]


async def test_what_cannot_be_written_is_one_error(tmp_path, record):
    (tmp_path / "file").write_text("not a folder")
    store = LoushoFileStore(tmp_path / "file")
    with pytest.raises(StorageError, match=r"cannot be used: (File exists|Not a directory)"):
        await store.save("trip", record("trip"))
    with pytest.raises(StorageError, match="cannot be used: Not a directory"):
        await store.load("trip")
