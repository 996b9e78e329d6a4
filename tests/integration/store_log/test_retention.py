"""What a store keeps of an agent's sessions, and what it tells of their lives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.checkpoint_bridge import Retention, SessionHooks, SqlStore
from perdure.checkpoint_bridge.creating import create_session, from_transcript
from perdure.checkpoint_bridge.ending import begin_end, finish_end
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.stores.stored import now_ms

DAY = 24 * 60 * 60 * 1000


async def ids(store: Any) -> set[str]:
    return {row.session_id for row in await store.sessions()}


async def finished(store: Any, begin: Any, session_id: str, age_ms: int) -> None:
    run = await begin(store, session_id)
    run.time_ms = now_ms() - age_ms
    await run.finish()


async def test_f112_the_51st_session_takes_the_place_of_the_oldest(store, begin, make, sql_url):
    for number in range(50):
        await finished(store, begin, f"s{number}", (50 - number) * 1000)
    async with SqlStore(sql_url, retention=Retention()) as kept:
        await kept.sessions()
        assert len(await ids(store)) == 50
        await create_session(kept, "new", agent="trip")
        assert await ids(store) == {"new", *(f"s{number}" for number in range(1, 50))}
        # Another agent has its own fifty.
        await create_session(kept, "theirs", agent="other")
        assert len(await ids(store)) == 51
        new = [make.start("r"), make.user("Hi")]
        opened: dict[str, Any] = {
            "agent": "trip",
            "run_id": "r",
            "head": 0,
            "time_ms": now_ms(),
            "events": new,
        }
        await kept.open_session("opened", **opened)
        assert "s1" not in await ids(store)


async def test_f112_what_is_too_old_goes_unless_it_waits(store, begin, make, sql_url, rows):
    await finished(store, begin, "old", 91 * DAY)
    await finished(store, begin, "young", 89 * DAY)
    run = await begin(store, "waits")
    run.time_ms = now_ms() - 91 * DAY
    seq = run.head
    await run.append(make.answer("", "book"), make.ask("a1", seq), save="awaiting-approval")
    await begin(store, "runs")
    before = rows()
    async with SqlStore(sql_url, retention=Retention(max_sessions=1)) as kept:
        await kept.sessions()
        await kept.load("old")
        assert rows() == before
        await create_session(kept, "new", agent="trip")
    assert await ids(store) == {"waits", "runs", "new"}


def test_f112_limits_that_are_none():
    wrongs: list[dict[str, Any]] = [
        {"max_sessions": 0},
        {"max_sessions": True},
        {"max_age_days": 0},
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            Retention(**wrong)
    assert Retention(max_sessions=None, max_age_days=None).max_sessions is None


async def test_f15_hooks_of_a_session(sql_url, begin, caplog):
    seen: list[tuple[str, str]] = []

    def note(name: str) -> Any:
        async def hook(session_id: str) -> None:
            await asyncio.sleep(0)
            seen.append((name, session_id))
            if session_id == "no" or name == "flush":
                raise PermissionError("not here")

        return hook

    hooks = SessionHooks(note("created"), note("flush"), note("disposed"))
    words = [{"role": "user", "content": "Hi"}]
    async with SqlStore(sql_url, hooks=hooks) as store:
        with pytest.raises(ConfigurationError, match="not here"):
            await create_session(store, "no", agent="trip", beginning=from_transcript(words))
        with pytest.raises(ConfigurationError, match="not here"):
            await begin(store, "no")
        assert await ids(store) == set()
        run = await begin(store, "trip")
        await run.finish()
        assert "A hook of session trip failed" in caplog.text
        await begin_end(store, "trip")
        await finish_end(store, "trip")
        await store.delete("trip")
    assert seen == [
        ("created", "no"),
        ("created", "no"),
        ("created", "trip"),
        ("flush", "trip"),
        ("disposed", "trip"),
        ("disposed", "trip"),
    ]
