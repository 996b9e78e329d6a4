"""What a mirror holds: every save, once, in order, with its own time; whatever happens."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

import pytest

from perdure.checkpoint_bridge import Checkpoint, LoushoFileStore, LoushoSqliteStore, SqlStore
from perdure.checkpoint_bridge.errors import ConfigurationError, SessionConflictError
from perdure.checkpoint_bridge.mirrors.mirror import Mirror, _Retry, mirroring

from .conftest import LONG, OwnStore, content, record, texts, until, up_to_date


async def save_steps(store: SqlStore, first: int, last: int, session_id: str = "trip") -> None:
    for step in range(first, last + 1):
        await store.save_at(session_id, record(session_id, step), 1_700_000_000_000 + step)


async def test_every_save_is_there_with_its_own_time(source, make_target):
    target = make_target("target")
    await save_steps(source, 1, 3)
    async with up_to_date(source, target):
        await save_steps(source, 4, 6)
        await source.save("other", record("other", 1))
    assert texts(await target.history("trip")) == texts(await source.history("trip"))
    assert texts(await target.history("other")) == texts(await source.history("other"))
    loaded = await target.load("trip")
    assert loaded is not None
    assert loaded.to_json() == (await source.load("trip")).to_json()


async def test_another_process_is_noticed(source, store_url, make_target):
    target = make_target("target")
    async with up_to_date(source, target), SqlStore(store_url) as elsewhere:
        await elsewhere.save("trip", record("trip", 1))
        await elsewhere.save("trip", record("trip", 2))
    assert len(await target.history("trip")) == 2


async def test_a_store_of_three_methods_is_a_mirror(source):
    own = OwnStore()
    async with up_to_date(source, own):
        await save_steps(source, 1, 3)
    assert own.writes == [("trip", 1), ("trip", 2), ("trip", 3)]
    loaded = await own.load("trip")
    assert loaded is not None
    assert loaded.to_json() == (await source.load("trip")).to_json()


async def test_what_was_down_catches_up_to_the_same_bytes(source, tmp_path, make_target, caplog):
    caplog.set_level(logging.INFO, "perdure.mirror")
    steady, shaky = make_target("steady"), make_target("shaky")
    async with up_to_date(source, steady, shaky) as mirrors:
        await save_steps(source, 1, 2)
        await until(lambda: caught_up(mirrors[1]))
        async with away(shaky):
            await save_steps(source, 3, 5)
            await until(lambda: said(caplog, "lags by"))
            await save_steps(source, 6, 7)
            await until(lambda: caught_up(mirrors[0]))
            assert await mirrors[1].lag() >= 3
        await until(lambda: said(caplog, "has caught up"))
    assert content(shaky) == content(steady)
    said_so = [entry.getMessage() for entry in caplog.records]
    assert sum("lags by" in message for message in said_so) == 1
    assert sum("has caught up" in message for message in said_so) == 1


async def test_a_store_object_that_raises_catches_up(source, caplog):
    own = OwnStore()
    own.error = RuntimeError("no network")
    async with up_to_date(source, own):
        await save_steps(source, 1, 4)
        await until(lambda: said(caplog, "Mirror own lags by"))
        assert "no network" in caplog.text
        own.error = None
    assert own.writes[-1] == ("trip", 4)
    assert [step for _, step in own.writes] == [1, 2, 3, 4]


def test_a_store_that_is_down_is_asked_less_and_less() -> None:
    retry = _Retry()
    delays = []
    for _ in range(10):
        retry.failed()
        delays.append(retry.delay)
    assert delays[:3] == [0.2, 0.4, 0.8]
    assert delays[-1] == 30.0


@pytest.mark.parametrize("written", [0, 1])
async def test_after_a_crash_no_save_is_there_twice(source, make_target, written):
    """Killed between the write to the target and the note of it, or before the write."""
    target = make_target("target")
    await save_steps(source, 1, 3)
    mirror = Mirror(source, target)
    await mirror.copy_session("trip")
    await save_steps(source, 4, 5)
    if written:
        await target.save_at("trip", record("trip", 4), 1_700_000_000_004)
    async with up_to_date(source, target):
        pass
    assert texts(await target.history("trip")) == texts(await source.history("trip"))


async def test_one_of_two_processes_writes(source, store_url, make_target):
    target, same = make_target("target"), make_target("target")
    async with SqlStore(store_url) as elsewhere:
        first, second = Mirror(source, target), Mirror(elsewhere, same)
        tasks = [asyncio.create_task(each.run()) for each in (first, second)]
        await save_steps(source, 1, 5)
        await elsewhere.save("trip", record("trip", 6))
        await until(lambda: caught_up(first))
        assert texts(await target.history("trip")) == texts(await source.history("trip"))
        # The one that writes ends; the other takes its place at once.
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        await source.save("trip", record("trip", 11))
        await until(lambda: caught_up(second))
        tasks[1].cancel()
        await asyncio.wait(tasks)
    assert texts(await target.history("trip")) == texts(await source.history("trip"))


async def test_the_rings_end_the_same(store_url, make_target):
    steady, late = make_target("steady"), make_target("late")
    async with SqlStore(store_url, history_limit=5) as source:
        for target in (steady, late):
            target.history_limit = 5
        async with up_to_date(source, steady):
            for step in range(1, 9):
                await source.save_at("trip", record("trip", step, status="finished"), step)
                await until(lambda: is_at(steady, step))  # noqa: B023 - awaited before the next
        async with up_to_date(source, late):
            pass
        assert texts(await late.history("trip")) == texts(await steady.history("trip"))
        assert [entry.step for entry in await late.history("trip")] == [8, 7, 6, 5, 4]


async def test_what_is_there_from_elsewhere_is_not_written_over(source, make_target, caplog):
    target = make_target("target")
    await target.save("trip", record("trip", 9, theirs="only there"))
    before = content(target)
    await save_steps(source, 1, 2)
    await save_steps(source, 1, 2, "other")
    async with mirroring(source, target):
        await until(lambda: said(caplog, "does not take session trip"))
        await until(lambda: is_at(target, 2, "other"))
    assert content(target)[next(iter(before))] is not None
    assert (await target.load("trip")).to_json()["theirs"] == "only there"
    mirror = Mirror(source, target)
    with pytest.raises(SessionConflictError, match="holds another session 'trip'"):
        await mirror.copy_session("trip")
    assert await mirror.rebuild("trip") == 2
    assert texts(await target.history("trip")) == texts(await source.history("trip"))


async def test_a_session_that_cannot_be_written_holds_up_no_other(source, make_target, caplog):
    target = make_target("target")
    await save_steps(source, 1, 1, "not/an/id")
    await save_steps(source, 1, 3)
    async with mirroring(source, target):
        await until(lambda: is_at(target, 3))
        await until(lambda: said(caplog, "does not take session not/an/id"))
    assert "lags" not in caplog.text


async def test_a_rebuilt_session_is_the_same_bytes(source, make_target):
    steady, spoilt = make_target("steady"), make_target("spoilt")
    await save_steps(source, 1, 4)
    async with up_to_date(source, steady, spoilt):
        pass
    await spoilt.save("trip", record("trip", 99))
    assert await Mirror(source, spoilt).rebuild("trip") == 4
    if isinstance(steady, LoushoSqliteStore):
        # Rows of the history have other numbers.
        assert rows_of(spoilt) == rows_of(steady)
    else:
        assert content(spoilt) == content(steady)


async def test_a_target_that_was_emptied_gets_all_again(source, make_target):
    target = make_target("target")
    await save_steps(source, 1, 3)
    async with up_to_date(source, target):
        pass
    await target.delete("trip")
    async with up_to_date(source, target):
        await save_steps(source, 4, 4)
    assert texts(await target.history("trip")) == texts(await source.history("trip"))


async def test_a_mirror_ends_also_when_it_is_woken_in_the_same_instant(source):
    mirror = Mirror(source, OwnStore())
    task = asyncio.create_task(mirror.run())
    await until(lambda: rests(mirror))
    mirror._hurry.set()
    task.cancel()
    await asyncio.wait([task], timeout=LONG)
    assert task.cancelled()


async def test_a_session_begun_anew_goes_on_there(source, make_target):
    target = make_target("target")
    await save_steps(source, 1, 3)
    async with up_to_date(source, target):
        pass
    await source.delete("trip")
    async with up_to_date(source, target):
        await source.save("trip", record("trip", 1, theirs="new"))
    assert (await target.load("trip")).to_json()["theirs"] == "new"


async def test_a_mirror_may_be_a_store_of_ours(source, tmp_path):
    async with SqlStore(f"sqlite:///{tmp_path / 'copy.db'}") as target:
        async with up_to_date(source, target):
            await save_steps(source, 1, 3)
        assert texts(await target.history("trip")) == texts(await source.history("trip"))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("lousho-sqlite:", "names no file"),
        ("lousho-files:", "names no directory"),
        ("redis:x", "not the address of a store"),
        ("mysql://x/y", "not supported"),
        ("sqlite://", "in memory"),
        (5, "not int"),
        ([OwnStore("same"), OwnStore("same")], "named twice"),
    ],
)
async def test_an_address_that_is_wrong_is_told(source, given, reason):
    with pytest.raises(ConfigurationError, match=reason):
        async with mirroring(source, given):
            pass


async def test_the_store_itself_is_no_mirror(source, store_url):
    with pytest.raises(ConfigurationError, match="the store itself"):
        async with mirroring(source, store_url):
            pass


async def rests(mirror: Mirror) -> bool:
    return bool(mirror._hurry._waiters)


async def caught_up(mirror: Mirror) -> bool:
    return await mirror.lag() == 0


async def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def is_at(target: object, step: int, session_id: str = "trip") -> bool:
    loaded: Checkpoint | None = await target.load(session_id)  # type: ignore[attr-defined]
    return loaded is not None and loaded.step_index == step


def rows_of(store: LoushoSqliteStore) -> object:
    found = content(store)
    found["checkpoint_history"] = [row[1:] for row in found["checkpoint_history"]]
    return found


class away:  # noqa: N801 - a context
    """Takes a store away: its file is locked, or its directory cannot be written."""

    def __init__(self, store: LoushoSqliteStore | LoushoFileStore) -> None:
        self.store = store

    async def __aenter__(self) -> None:
        if isinstance(self.store, LoushoSqliteStore):
            self.lock = sqlite3.connect(self.store.path, isolation_level=None)
            self.lock.execute("BEGIN EXCLUSIVE")
        else:
            self.folder = self.store.directory / "checkpoints"
            self.folder.rename(self.folder.with_name("elsewhere"))
            self.folder.write_text("no directory")

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self.store, LoushoSqliteStore):
            self.lock.close()
        else:
            self.folder.unlink()
            self.folder.with_name("elsewhere").rename(self.folder)
