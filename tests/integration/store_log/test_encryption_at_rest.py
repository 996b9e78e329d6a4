"""A store that was made with keys: what is in its rows, and who can read them."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from perdure.checkpoint_bridge.errors import EncryptionKeyError
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint
from perdure.checkpoint_bridge.format.fork import ForkPatch
from perdure.checkpoint_bridge.keyring import Keyring
from perdure.checkpoint_bridge.log.events import USER_MESSAGE, NewEvent, digest_of, dump
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.checkpoint_bridge.tables.database import parse_store_url
from perdure.checkpoint_bridge.tables.event_log import Batch
from perdure.checkpoint_bridge.tables.ledger import EffectId

if TYPE_CHECKING:
    from pathlib import Path

MARKER = "zebra-7731"
OLD = {"k1": b"1" * 32}
KEYS = Keyring(OLD)
ROTATED = Keyring({"k2": b"2" * 32, **OLD})
LARGE = f"{MARKER} " * 1000
GUESS = digest_of(dump({"role": "user", "content": LARGE}))
"""What somebody who guesses the content would look for."""


def record(*texts: str, step: int = 1) -> Checkpoint:
    messages = [{"role": "user", "content": each} for each in texts]
    state = {"order": MARKER}
    return Checkpoint.from_json({"messages": messages, "businessState": state, "stepIndex": step})


def first(loaded: Checkpoint | None) -> Any:
    assert loaded is not None
    return loaded.to_json()["messages"][0]["content"]


def rows(url: str) -> str:
    """All that the database's tables hold, as whoever reads it without us sees it."""
    engine = create_engine(parse_store_url(url))
    found: list[Any] = []
    with engine.connect() as connection:
        for table in ("sessions", "events", "blobs", "effects", "approvals", "keys", "claims"):
            found += connection.execute(text(f"SELECT * FROM perdure_{table}")).all()
    engine.dispose()
    return repr(found)


async def fill(store: SqlStore) -> None:
    await store.save("trip", record(MARKER))
    log_id, head = await store.open_session(
        "run", agent="a", run_id="r", head=0, time_ms=1, events=[]
    )
    said = NewEvent(USER_MESSAGE, {"message": {"role": "user", "content": LARGE}})
    await store.append(Batch("run", log_id, "r", head, 2, [said]))
    effect = EffectId(log_id, head, 0)
    await store.begin_effect(effect, session_id="run", run_id="r", name="tool")
    await store.note_attempt(effect, {"error": {"code": "X", "message": MARKER}}, name="tool")
    message = {"role": "tool", "content": MARKER}
    await store.end_effect(
        effect, session_id="run", name="tool", outcome={"note": MARKER}, message=message
    )


async def test_f110_no_content_is_in_the_rows_and_all_of_it_is_read(sql_url: str) -> None:
    async with SqlStore(sql_url, encryption=KEYS) as store:
        await fill(store)
    found = rows(sql_url)
    assert MARKER not in found
    assert "enc:1:k1:" in found
    # Nor can a guess be compared with a digest.
    assert GUESS not in found
    async with SqlStore(sql_url, encryption=KEYS) as store:
        loaded = await store.load("trip")
        assert first(loaded) == MARKER
        events = await store.events("run")
        assert events[-1].data["message"]["content"] == LARGE
        titles = {row.title for row in await store.sessions()}
        assert MARKER in titles
        row = await store.session("run")
        assert row is not None
        effect = await store.effect(EffectId(row.log_id, row.head - 1, 0))
        assert effect is not None
        assert effect.message == {"role": "tool", "content": MARKER}
        assert effect.attempts[0]["error"]["message"] == MARKER


async def test_a_fork_reads_what_it_shares(sql_url: str) -> None:
    async with SqlStore(sql_url, encryption=KEYS) as store:
        await fill(store)
        patch = ForkPatch(append_input=LARGE)
        fork_id, checkpoint = await store.fork("trip", from_step=1, patch=patch)
        assert first(checkpoint) == first(await store.load(fork_id)) == MARKER
        assert checkpoint.to_json()["messages"][1]["content"] == LARGE
    assert MARKER not in rows(sql_url)


async def test_appending_again_and_content_by_digest_work_as_ever(sql_url: str) -> None:
    async with SqlStore(sql_url, encryption=KEYS) as store:
        log_id, head = await store.open_session(
            "run", agent="a", run_id="r", head=0, time_ms=1, events=[]
        )
        said = NewEvent(USER_MESSAGE, {"message": {"role": "user", "content": LARGE}})
        batch = Batch("run", log_id, "r", head, 2, [said])
        assert await store.append(batch) == await store.append(batch)
        digest = await store.put_content(LARGE)
        assert digest == digest_of(dump(LARGE))
        assert await store.content(digest) == dump(LARGE)


async def test_after_a_rotation_old_sessions_read_and_new_ones_have_the_new_key(
    sql_url: str,
) -> None:
    async with SqlStore(sql_url, encryption=KEYS) as store:
        await fill(store)
    async with SqlStore(sql_url, encryption=ROTATED) as store:
        loaded = await store.load("trip")
        assert first(loaded) == MARKER
        # The same large content is known again: digests do not change with the key.
        digest = await store.put_content(LARGE)
        assert await store.content(digest) == dump(LARGE)
        fork, _ = await store.fork("trip", from_step=1, patch=ForkPatch(append_input="more"))
        assert await store.load(fork) is not None
    found = rows(sql_url)
    assert "enc:1:k1:" in found
    assert "enc:1:k2:" in found
    # The old key is still needed, and missed at the opening already.
    with pytest.raises(EncryptionKeyError, match="key 'k1'; the keys here are: k2"):
        await SqlStore(sql_url, encryption=Keyring({"k2": b"2" * 32})).open()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (False, "key 'k1'; there are no keys here"),
        (Keyring({"k9": b"9" * 32}), "key 'k1'; the keys here are: k9"),
        (Keyring({"k1": b"9" * 32}), "'k1' does not decrypt"),
    ],
)
async def test_a_missing_or_wrong_key_is_one_line_when_the_store_is_opened(
    store_url: str, keys: Any, why: str
) -> None:
    async with SqlStore(store_url, encryption=KEYS) as store:
        await fill(store)
    with pytest.raises(EncryptionKeyError, match=why) as caught:
        await SqlStore(store_url, encryption=keys).open()
    assert "\n" not in caught.value.message


async def test_a_process_without_keys_is_told_of_the_others(store_url: str) -> None:
    async with SqlStore(store_url, encryption=False) as plain:
        await plain.save("trip", record(MARKER))
        async with SqlStore(store_url, encryption=KEYS) as store:
            await store.save("later", record(MARKER))
        with pytest.raises(EncryptionKeyError, match="key 'k1'; there are no keys here"):
            await plain.load("later")


async def test_a_store_that_was_begun_in_clear_goes_on_encrypted(store_url: str) -> None:
    async with SqlStore(store_url, encryption=False) as store:
        await fill(store)
        digest = await store.put_content(LARGE)
    async with SqlStore(store_url, encryption=KEYS) as store:
        assert await store.content(digest) == dump(LARGE)
        await store.save("later", record("kangaroo-1"))
        loaded = await store.load("trip")
        assert first(loaded) == MARKER
    found = rows(store_url)
    assert MARKER in found
    assert GUESS in found
    assert "kangaroo" not in found


async def test_f110_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """Also the files that SQLite puts beside it."""
    async with SqlStore(f"sqlite:///{tmp_path / 'perdure.db'}") as store:
        await store.save("trip", record("x"))
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path)}
    assert len(modes) > 1
    assert set(modes.values()) == {0o600}


async def test_without_keys_values_are_stored_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "perdure.db"
    async with SqlStore(f"sqlite:///{file}", encryption=False) as store:
        await store.save("trip", record(MARKER))
    with sqlite3.connect(file) as connection:
        kept = connection.execute("SELECT title FROM perdure_sessions").fetchall()
        keys = connection.execute("SELECT * FROM perdure_keys").fetchall()
    connection.close()
    assert (kept, keys) == ([(MARKER,)], [])
