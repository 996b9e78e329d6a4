"""The ledger of effects and the decisions about approvals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.errors import LogConflictError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.tables.schema import effects

TRIP = {"session_id": "trip", "run_id": "run-1", "name": "book"}
NAMED = {"session_id": "trip", "name": "book"}
MESSAGE = {"role": "tool", "content": '"ok"', "toolCallId": "c1"}


async def test_an_effect_is_begun_and_ended(store, begin):
    run = await begin(store)
    effect = run.effect()
    assert await store.effect(effect) is None
    begun = await store.begin_effect(effect, **TRIP)
    assert (begun.starts, begun.done, begun.name) == (1, False, "book")
    ended = await store.end_effect(effect, **NAMED, outcome={"kind": "ok"}, message=MESSAGE)
    assert (ended.outcome, ended.message, ended.ref) == ({"kind": "ok"}, MESSAGE, None)
    assert await store.effect(effect) == ended


async def test_a_second_begin_counts_until_there_is_an_outcome(store, begin):
    run = await begin(store)
    effect = run.effect()
    assert [(await store.begin_effect(effect, **TRIP)).starts for _ in range(3)] == [1, 2, 3]
    await store.end_effect(effect, **NAMED, outcome={"kind": "ok"}, message=MESSAGE)
    again = await store.begin_effect(effect, **TRIP)
    assert (again.starts, again.outcome, again.message) == (3, {"kind": "ok"}, MESSAGE)


@pytest.mark.parametrize("size", [1, 10_000])
async def test_the_first_outcome_stays(store, begin, size):
    run = await begin(store)
    effect = run.effect()
    await store.begin_effect(effect, **TRIP)
    first = {"role": "tool", "content": "a" * size + "\ud800\0"}
    stored = await store.end_effect(effect, **NAMED, outcome={"n": 1}, message=first)
    late = await store.end_effect(
        effect, **NAMED, outcome={"n": 2}, message={"role": "tool", "content": ""}
    )
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
            store.end_effect(run.effect(), **NAMED, outcome={"n": number}, message=MESSAGE)
            for number in range(10)
        )
    )
    assert len({each.outcome["n"] for each in ended}) == 1


async def test_a_run_that_was_replaced_begins_nothing(store, begin):
    old = await begin(store)
    await begin(store, run_id="run-2")
    with pytest.raises(LogConflictError, match="newer run"):
        await store.begin_effect(old.effect(), **TRIP)
    assert await store.effect(old.effect()) is None


async def test_a_deleted_session_begins_and_ends_nothing(store, begin):
    run = await begin(store)
    await store.begin_effect(run.effect(), **TRIP)
    await store.delete("trip")
    with pytest.raises(LogConflictError, match="was deleted"):
        await store.begin_effect(run.effect(), **TRIP)
    with pytest.raises(LogConflictError, match="was deleted"):
        await store.end_effect(run.effect(), **NAMED, outcome={}, message=MESSAGE)


async def test_failed_attempts_are_kept_in_order(store, begin):
    run = await begin(store)
    for number in range(3):
        attempt = {"error": f"{number}\0"}
        attempts = await store.note_attempt(run.effect(-1), attempt, name="m")
    assert attempts == [{"error": f"{number}\0"} for number in range(3)]
    assert (await store.effect(run.effect(-1))).attempts == attempts


def recording(run: Any, *events: Any) -> Any:
    """What an outcome means for the log, as an activity says it."""
    return lambda _effect, _head: run.batch(*events, save=ev.IN_PROGRESS)


async def test_an_outcome_and_what_it_means_are_stored_together(store, begin, make):
    run = await begin(store)
    record = recording(run, make.answer("", "book"))
    given = {**NAMED, "outcome": {"n": 1}, "message": MESSAGE, "record": record}
    ended = await store.end_effect(run.effect(-1), **given)
    assert (ended.starts, ended.head, ended.late) == (1, run.head + 1, False)
    assert (await store.events("trip"))[-1].type == ev.ASSISTANT_MESSAGE
    # A second attempt of the same activity finds both.
    again = await store.end_effect(run.effect(-1), **given)
    assert (again.head, again.late) == (run.head + 1, True)
    assert len(await store.events("trip")) == run.head + 1


@pytest.mark.parametrize("size", [1, 10_000])
async def test_a_message_that_the_log_has_is_not_stored_twice(store, begin, make, size):
    run = await begin(store)
    bare = make.result(run.head, 0, "x" * size)
    message = bare.data["message"]
    await store.begin_effect(run.effect(), **TRIP)
    place = {"seq": run.effect().seq, "index": run.effect().index}
    result = replace(bare, data={**place, "message": message})
    ended = await store.end_effect(
        run.effect(), **NAMED, outcome={}, message=message, record=recording(run, result)
    )
    kept = await store.database.read(
        lambda connection: connection.execute(select(effects.c.message, effects.c.ref)).one()
    )
    assert tuple(kept) == (None, None)
    for found in (await store.effect(run.effect()), await store.begin_effect(run.effect(), **TRIP)):
        assert (found.message, found.ref, found.size) == (message, ended.ref, ended.size)
        assert (found.ref is None) == (size == 1)


@pytest.mark.parametrize("how", ["closed", "replaced"])
async def test_an_outcome_whose_place_is_taken_is_stored_alone(store, begin, make, how):
    run = await begin(store)
    await store.begin_effect(run.effect(), **TRIP)
    record = recording(run, make.result(run.head, 0, "book"))
    if how == "closed":
        await store.append(run.batch(make.user("too late")))
    else:
        await begin(store, run_id="run-2")
    before = await store.events("trip")
    ended = await store.end_effect(
        run.effect(), **NAMED, outcome={}, message=MESSAGE, record=record
    )
    assert ended.head is None
    assert (await store.effect(run.effect())).message == MESSAGE
    assert await store.events("trip") == before


async def test_a_failed_attempt_is_kept_with_the_outcome(store, begin):
    run = await begin(store)
    await store.note_attempt(run.effect(-1), {"error": "busy"}, name="m")
    assert not (await store.effect(run.effect(-1))).done
    ended = await store.end_effect(run.effect(-1), **NAMED, outcome={}, message=MESSAGE)
    assert ended.attempts == [{"error": "busy"}]


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
    assert (pending.id, pending.session_id) == ("a2", "b")
    assert (pending.tool_name, pending.args) == ("book", {})
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
