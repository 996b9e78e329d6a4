"""The ledger of effects and the decisions about approvals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.checkpoint_bridge import SqlStore, events as ev
from perdure.checkpoint_bridge.errors import LogConflictError

TRIP = {"session_id": "trip", "run_id": "run-1", "name": "book"}
MESSAGE = {"role": "tool", "content": '"ok"', "toolCallId": "c1"}


async def test_an_effect_is_begun_and_ended(store, begin):
    run = await begin(store)
    effect = run.effect()
    assert await store.effect(effect) is None
    begun = await store.begin_effect(effect, **TRIP)
    assert (begun.starts, begun.done, begun.name) == (1, False, "book")
    ended = await store.end_effect(effect, outcome={"kind": "ok"}, message=MESSAGE)
    assert (ended.outcome, ended.message, ended.ref) == ({"kind": "ok"}, MESSAGE, None)
    assert await store.effect(effect) == ended


async def test_a_second_begin_counts_until_there_is_an_outcome(store, begin):
    run = await begin(store)
    effect = run.effect()
    assert [(await store.begin_effect(effect, **TRIP)).starts for _ in range(3)] == [1, 2, 3]
    await store.end_effect(effect, outcome={"kind": "ok"}, message=MESSAGE)
    again = await store.begin_effect(effect, **TRIP)
    assert (again.starts, again.outcome, again.message) == (3, {"kind": "ok"}, MESSAGE)


@pytest.mark.parametrize("size", [1, 10_000])
async def test_the_first_outcome_stays(store, begin, size):
    run = await begin(store)
    effect = run.effect()
    await store.begin_effect(effect, **TRIP)
    first = {"role": "tool", "content": "a" * size + "\ud800\0"}
    stored = await store.end_effect(effect, outcome={"n": 1}, message=first)
    late = await store.end_effect(effect, outcome={"n": 2}, message={"role": "tool", "content": ""})
    assert (late.outcome, late.message) == ({"n": 1}, first)
    assert late == stored
    assert (stored.ref is None) == (size == 1)


async def test_begun_many_times_at_once_counts_all(store, begin):
    run = await begin(store)
    begun = await asyncio.gather(*(store.begin_effect(run.effect(), **TRIP) for _ in range(10)))
    assert sorted(each.starts for each in begun) == list(range(1, 11))


async def test_ended_many_times_at_once_has_one_outcome(store, begin):
    run = await begin(store)
    await store.begin_effect(run.effect(), **TRIP)
    ended = await asyncio.gather(
        *(
            store.end_effect(run.effect(), outcome={"n": number}, message=MESSAGE)
            for number in range(10)
        )
    )
    assert len({each.outcome["n"] for each in ended}) == 1


async def test_a_run_that_was_replaced_begins_nothing(store, begin):
    old = await begin(store)
    await begin(store, run_id="run-2")
    with pytest.raises(LogConflictError, match="must not happen"):
        await store.begin_effect(old.effect(), **TRIP)
    assert await store.effect(old.effect()) is None


async def test_a_deleted_session_begins_and_ends_nothing(store, begin):
    run = await begin(store)
    await store.begin_effect(run.effect(), **TRIP)
    await store.delete("trip")
    with pytest.raises(LogConflictError, match="must not happen"):
        await store.begin_effect(run.effect(), **TRIP)
    with pytest.raises(LogConflictError, match="was deleted"):
        await store.end_effect(run.effect(), outcome={}, message=MESSAGE)


async def test_failed_attempts_are_kept_in_order(store, begin):
    run = await begin(store)
    await store.begin_effect(run.effect(-1), **TRIP)
    for number in range(3):
        attempts = await store.note_attempt(run.effect(-1), {"error": f"{number}\0"})
    assert attempts == [{"error": f"{number}\0"} for number in range(3)]
    assert (await store.effect(run.effect(-1))).attempts == attempts


async def paused(
    begin: Any, make: Any, store: Any, session_id: str = "trip", approval_id: str = "a1"
) -> Any:
    run = await begin(store, session_id)
    seq = run.head
    await run.append(make.answer("", "book"), make.ask(approval_id, seq), save=ev.AWAITING_APPROVAL)
    return run


async def test_what_waits_oldest_first(store, begin, make):
    for number, session_id in enumerate(["c", "a", "b"]):
        await paused(begin, make, store, session_id, f"a{number}")
    assert [row.session_id for row in await store.approvals()] == ["c", "a", "b"]
    assert [row.id for row in await store.approvals("a")] == ["a1"]
    (pending, *_) = await store.pending_approvals("b")
    assert (pending.id, pending.tool_name, pending.args) == ("a2", "book", {})
    assert pending.created_at == "1970-01-01T00:00:01.000Z"


async def test_the_first_of_twenty_decisions_counts(store, begin, make, sql_url):
    await paused(begin, make, store)
    others = [SqlStore(sql_url) for _ in range(3)]
    stores = [store, *others] * 5
    answers = await asyncio.gather(
        *(
            each.decide("a1", {"approved": number % 2 == 0, "by": f"person {number}"})
            for number, each in enumerate(stores)
        )
    )
    winners = [number for number, (mine, _) in enumerate(answers) if mine]
    assert len(winners) == 1
    decisions = {row.decision["by"] for _, row in answers}
    assert decisions == {f"person {winners[0]}"}
    assert await store.approvals() == []
    assert (await store.approval("a1")).decision["by"] == f"person {winners[0]}"
    for each in others:
        await each.close()


async def test_a_decision_about_nothing(store):
    assert await store.decide("nope", {"approved": True}) == (False, None)


async def test_the_same_announcement_again_is_one_approval(store, begin, make):
    run = await begin(store)
    batch = run.batch(make.answer("", "book"), make.ask("a1", run.head), save=ev.AWAITING_APPROVAL)
    await store.append(batch)
    await store.decide("a1", {"approved": True})
    await store.append(batch)
    assert await store.approvals() == []


async def test_a_run_that_ends_closes_what_it_waited_for(store, begin, make):
    run = await paused(begin, make, store)
    end = ev.NewEvent(ev.TURN_END, {"turn": 1, "reason": {"kind": "aborted"}})
    await store.close_run(run.batch(end, save=ev.IN_PROGRESS), "aborted")
    assert (await store.decide("a1", {"approved": True}))[0] is False
    assert (await store.approval("a1")).decision == {"closed": "aborted"}
