"""The TypeScript SDK's layout of keys: which, in which order, and what is missing."""

from __future__ import annotations

import json

import pytest

from perdure.checkpoint_bridge import KeyValueStore
from perdure.checkpoint_bridge.errors import SessionIdInvalidError, StorageError


class Service:
    """A key-value service that remembers what was asked of it and can fail."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.fail_at: int | None = None

    def _note(self, verb: str, key: str) -> None:
        if len(self.calls) == self.fail_at:
            raise ConnectionError
        self.calls.append((verb, key))

    async def get(self, key: str) -> bytes | None:
        self._note("get", key)
        found = self.texts.get(key)
        return None if found is None else found.encode()

    async def put(self, key: str, value: str) -> None:
        self._note("put", key)
        self.texts[key] = value

    async def delete(self, key: str) -> None:
        self._note("delete", key)
        self.texts.pop(key, None)

    def store(self, **options) -> KeyValueStore:
        return KeyValueStore(self.get, self.put, self.delete, **options)

    def ids(self) -> list[str]:
        found: list[str] = json.loads(self.texts["p/trip#history"])
        return found


@pytest.fixture
def service() -> Service:
    return Service()


async def test_keys_and_the_order_of_writes(service, record, text):
    store = service.store(prefix="p/", history_limit=2)
    for step in (1, 2, 3):
        service.calls.clear()
        await store.save("trip", record("trip", step))
        if step == 2:
            first = service.ids()[0]
    *_, newest = service.ids()
    assert [call for call in service.calls if call[0] != "get"] == [
        ("put", "p/trip"),
        ("put", f"p/trip#history/{newest}"),
        ("put", "p/trip#history"),
        ("delete", f"p/trip#history/{first}"),
    ]
    assert set(service.texts) == {
        "p/trip",
        "p/trip#history",
        *(f"p/trip#history/{each}" for each in service.ids()),
    }
    assert text(json.loads(service.texts["p/trip"])) == text(record("trip", 3))
    assert json.loads(service.texts[f"p/trip#history/{newest}"])["step"] == 3


async def test_without_a_history_a_save_is_one_write(service, record):
    await service.store(history_limit=0).save("trip", record("trip"))
    assert service.calls == [("put", "trip")]


async def test_a_missing_or_damaged_entry_is_skipped(service, record):
    store = service.store(prefix="p/")
    for step in range(1, 6):
        await store.save("trip", record("trip", step))
    ids = service.ids()
    del service.texts[f"p/trip#history/{ids[1]}"]
    service.texts[f"p/trip#history/{ids[3]}"] = '{"step": 4'
    assert [entry.step for entry in await store.history("trip")] == [5, 3, 1]
    assert [entry.step for entry in await store.history("trip", 2)] == [5, 3]
    await store.delete("trip")
    assert service.texts == {}


@pytest.mark.parametrize("index", ["", "{}", "7", '["x", 1', "[1, null]"])
async def test_a_damaged_index_is_empty_and_built_anew(service, record, index):
    store = service.store(prefix="p/")
    await store.save("trip", record("trip", 1))
    service.texts["p/trip#history"] = index
    assert await store.history("trip") == []
    await store.save("trip", record("trip", 2))
    assert [entry.step for entry in await store.history("trip")] == [2]


async def test_a_damaged_checkpoint_is_named(service):
    service.texts["p/trip"] = '{"sessionId'
    with pytest.raises(StorageError, match="Key 'p/trip' is damaged"):
        await service.store(prefix="p/").load("trip")


async def test_a_store_written_before_there_was_a_history(service, record, text):
    service.texts["trip"] = json.dumps(record("trip").to_json())
    store = service.store()
    assert text(await store.load("trip")) == text(record("trip"))
    assert await store.history("trip") == []


@pytest.mark.parametrize("fail_at", range(5))
async def test_a_crash_between_writes_leaves_a_store_that_reads(service, record, fail_at):
    store = service.store(prefix="p/", history_limit=2)
    for step in (1, 2):
        await store.save("trip", record("trip", step))
    service.calls.clear()
    service.fail_at = fail_at
    with pytest.raises(ConnectionError):
        await store.save("trip", record("trip", 3))
    service.fail_at = None
    assert (await store.load("trip")).step_index in (2, 3)
    assert [entry.step for entry in await store.history("trip")] in ([2, 1], [3, 2])
    await store.save("trip", record("trip", 4))
    assert (await store.history("trip"))[0].step == 4


@pytest.mark.parametrize("fail_at", range(5))
async def test_a_delete_that_was_cut_short_can_be_done_again(service, record, fail_at):
    store = service.store()
    for step in (1, 2):
        await store.save("trip", record("trip", step))
    service.calls.clear()
    service.fail_at = fail_at
    with pytest.raises(ConnectionError):
        await store.delete("trip")
    service.fail_at = None
    await store.delete("trip")
    assert service.texts == {}


@pytest.mark.parametrize("session_id", ["../x", "a#history", "a/b", "", "x" * 201])
async def test_an_id_that_is_another_key_is_refused(service, record, session_id):
    with pytest.raises(SessionIdInvalidError):
        await service.store().save(session_id, record(session_id))
    assert service.calls == []
