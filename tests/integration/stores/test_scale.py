"""What a store reads and writes does not grow with what it holds: counted, not timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from perdure.checkpoint_bridge import ForkPatch, SqlStore
from perdure.checkpoint_bridge.errors import SessionNotFoundError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.log.fold import TAKES_OVER, SessionState
from perdure.checkpoint_bridge.tables.event_log import Batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
async def store(sql_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(sql_url) as opened:
        yield opened


class Seen:
    """What was asked of the database."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.parameters: list[Any] = []

    def reads(self, table: str) -> int:
        name = f"perdure_{table}"
        return sum(name in each and "SELECT" in each for each in self.statements)


@pytest.fixture
def seen() -> Iterator[Seen]:
    found = Seen()

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "perdure_" in statement:
            found.statements.append(statement)
            found.parameters.append(parameters)

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


async def fill(store: SqlStore, session_id: str, steps: int, size: int = 300) -> None:
    """A finished run of so many steps."""
    start = {"turn": 1, "runId": "r", "agent": "a", "fresh": True, "fingerprint": None}
    new = [NewEvent(ev.TURN_START, start)]
    for number in range(steps):
        said = f"{number} ".ljust(size, "x")
        new.append(NewEvent(ev.USER_MESSAGE, {"message": {"role": "user", "content": said}}))
        message = {"role": "assistant", "content": said}
        new.append(NewEvent(ev.ASSISTANT_MESSAGE, {"message": message, "model": "m"}))
    new.append(NewEvent(ev.TURN_END, {"turn": 1, "reason": {"kind": "completed"}}))
    log_id, head = await store.open_session(
        session_id, agent="a", run_id="r", head=0, time_ms=1, events=[]
    )
    save = NewSave(len(new), ev.FINISHED, "stop")
    await store.append(Batch(session_id, log_id, "r", head, 2, new, [save]))


async def test_a_fork_reads_no_conversation(store, sql_url, seen):
    """Three events are written, and none of the log is read, however long it is."""
    await fill(store, "long", 200)
    store._states.clear()
    seen.statements.clear()
    patch = ForkPatch(append_input="And then?", business_state={"a": 1})
    fork_id, made = await store.fork("long", from_step=200, patch=patch)
    content = [each for each in seen.statements if "perdure_blobs" in each and "SELECT" in each]
    # The one event that says whether the record came from outside.
    assert len(content) == 1
    fork = await store.session(fork_id)
    async with SqlStore(sql_url) as other:
        log = await other.events(fork_id, after=401 + 1)
        assert [each.type for each in log] == [ev.END_SEED, ev.USER_MESSAGE, ev.BUSINESS_STATE]
        assert (fork.head, fork.step, fork.title) == (405, 200, (await store.session("long")).title)
        # It is the checkpoint that the fork began with, also when it has gone on.
        begun = await other.load(fork_id)
        end = NewEvent(ev.USER_MESSAGE, {"message": {"role": "user", "content": "More"}})
        batch = Batch(fork_id, fork.log_id, None, fork.head, 3, [end], [NewSave(1, "finished", "")])
        await other.append(batch)
    assert made == begun
    assert made.messages[-1].text == "And then?"
    assert made.business_state == {"a": 1}


async def test_a_fork_that_is_gone_before_it_was_read(store):
    await fill(store, "long", 2)
    fork_id, made = await store.fork("long", from_step=2)
    await store.delete(fork_id)
    if not store.database.in_memory:
        with pytest.raises(SessionNotFoundError):
            made.to_json()


@pytest.mark.parametrize("type_", sorted(TAKES_OVER))
def test_what_takes_a_record_from_outside_over(type_):
    """The list by which a fork knows that without reading is that of the fold."""
    known: dict[str, dict[str, Any]] = {
        ev.TURN_START: {"turn": 1, "agent": "a"},
        ev.TRANSCRIPT_DELTA: {"keep": 0, "append": []},
        ev.TOOL_RESULT: {"seq": 0, "index": 0, "message": {"role": "tool"}},
        ev.ASSISTANT_MESSAGE: {"message": {"role": "assistant", "content": "x"}, "model": "m"},
        ev.BUSINESS_STATE: {"value": 1},
        ev.SESSION_CLEARED: {},
    }
    data = known.get(type_, {"message": {"role": "user", "content": "x"}})
    state = SessionState()
    state.raw = {"status": "finished"}
    state.fold([ev.Event(0, type_, 1, data)])
    assert state.raw is None


async def test_a_page_of_events_loads_no_session(store, seen):
    await fill(store, "long", 500)
    seen.statements.clear()
    page = await store.events("long", after=400, limit=20)
    assert [each.seq for each in page] == list(range(400, 420))
    reads = [each for each in seen.statements if "perdure_events" in each]
    assert len(reads) == 1
    assert "LIMIT" in reads[0]
    assert seen.reads("blobs") == 1  # content is joined, not asked for one by one


async def test_one_session_is_read_of_many(store_url, seen):
    """Nothing scans: each read finds its rows by a key."""
    async with SqlStore(store_url) as store:
        for number in range(3):
            await fill(store, f"s{number}", 2, size=10_000)
        fork_id, _ = await store.fork("s1", from_step=2)
        store._states.clear()
        seen.statements.clear()
        seen.parameters.clear()
        await store.events(fork_id, limit=5)
        await store.load(fork_id)
        await store.history(fork_id, 5)
        await store.sessions(limit=2)
        await store.approvals(fork_id)
        asked = list(zip(seen.statements, seen.parameters, strict=True))
        assert len(asked) >= 8
        for statement, parameters in asked:
            plan = await store.database.read(explain, statement, parameters)
            scans = [line for line in plan if line.startswith("SCAN") and "INDEX" not in line]
            assert scans == [], (statement, plan)
            if "perdure_sessions" in statement:
                assert not any("TEMP B-TREE FOR ORDER BY" in line for line in plan), plan


def explain(connection: Any, statement: str, parameters: Any) -> list[str]:
    cursor = connection.connection.cursor()
    cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
    return [row[-1] for row in cursor.fetchall()]
