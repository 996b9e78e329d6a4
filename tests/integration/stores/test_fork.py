"""fork_session, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.checkpoint_bridge import UNSET, ForkPatch, fork_session
from perdure.checkpoint_bridge.errors import CheckpointNotFoundError, ConfigurationError

with_history = pytest.mark.usefixtures("keeps_history")


@pytest.fixture
async def trip(store, record):
    """A store with a session of three steps, the last of them paused."""
    for step in (1, 2):
        await store.save("trip", record("trip", step, later={"kept": [1]}, businessState={"n": 1}))
    more = {"status": "awaiting-approval", "approvalId": "a1", "businessState": {"n": 1}}
    await store.save("trip", record("trip", 3, **more))
    return store


async def everything(store: Any, session_id: str, text: Any) -> list[str]:
    loaded = await store.load(session_id)
    return [text(loaded), *(text(entry) for entry in await store.history(session_id))]


@with_history
async def test_a_fork_is_the_checkpoint_of_the_step(trip, record, text):
    before = await everything(trip, "trip", text)
    fork_id, checkpoint = await fork_session(trip, "trip", from_step=2)
    assert fork_id == "trip.fork-1"
    expected = record("trip.fork-1", 2, later={"kept": [1]}, businessState={"n": 1})
    assert text(checkpoint) == text(expected)
    assert text(await trip.load("trip.fork-1")) == text(expected)
    assert [entry.step for entry in await trip.history("trip.fork-1")] == [2]
    assert await everything(trip, "trip", text) == before


@with_history
async def test_a_paused_step_forks_without_its_approval(trip):
    _, checkpoint = await fork_session(trip, "trip", from_step=3)
    assert (checkpoint.status, "approvalId" in checkpoint) == ("in-progress", False)
    loaded = await trip.load("trip.fork-1")
    assert (loaded.status, "approvalId" in loaded) == ("in-progress", False)
    assert (await trip.load("trip")).approval_id == "a1"


@with_history
async def test_the_newest_entry_of_the_step_counts(store, record):
    for state in ("old", "new"):
        await store.save("trip", record("trip", 1, businessState=state))
    await store.save("trip", record("trip", 2, businessState="later"))
    _, checkpoint = await fork_session(store, "trip", from_step=1)
    assert checkpoint.business_state == "new"


@with_history
@pytest.mark.parametrize("state", [UNSET, None, {"n": True}, {"n": 1}])
async def test_a_patch_is_applied(trip, state):
    patch = ForkPatch(
        messages=lambda messages: [{"role": "system", "content": "Be brief."}, *messages],
        business_state=state,
        tool_result=("c1", {"forecast": "rain"}),
        append_input="And hotels?",
    )
    fork_id, _ = await fork_session(trip, "trip", from_step=1, patch=patch)
    loaded = (await trip.load(fork_id)).to_json()
    roles = [message["role"] for message in loaded["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert loaded["messages"][3]["content"] == '{"forecast":"rain"}'
    expected = {"n": 1} if state is UNSET else state
    assert repr(loaded["businessState"]) == repr(expected)


@with_history
async def test_a_patch_that_changes_a_value_for_one_that_python_takes_as_equal(store, record):
    saved = record("trip")
    saved.raw["messages"][0]["metadata"] = {"flag": 1}
    await store.save("trip", saved)

    def change(messages):
        messages[0]["metadata"]["flag"] = True
        return messages

    await fork_session(store, "trip", from_step=1, patch=ForkPatch(messages=change))
    assert (await store.load("trip.fork-1")).to_json()["messages"][0]["metadata"]["flag"] is True


@with_history
async def test_a_patch_that_does_not_fit_writes_nothing(trip):
    with pytest.raises(ConfigurationError) as caught:
        await fork_session(trip, "trip", from_step=1, patch=ForkPatch(tool_result=("c9", 1)))
    assert caught.value.field == "patch.toolResult"
    assert await trip.load("trip.fork-1") is None


@with_history
async def test_changing_the_fork_that_was_given_out_changes_nothing_stored(trip, text, spoil):
    patch = ForkPatch(business_state={"a": [1]})
    fork_id, checkpoint = await fork_session(trip, "trip", from_step=2, patch=patch)
    before = [await everything(trip, each, text) for each in ("trip", fork_id)]
    spoil(checkpoint)
    patch.business_state["a"].append(2)
    assert [await everything(trip, each, text) for each in ("trip", fork_id)] == before


@with_history
async def test_forks_are_numbered_and_can_be_forked(trip, record):
    ids = [(await fork_session(trip, "trip", from_step=1))[0] for _ in range(3)]
    assert ids == ["trip.fork-1", "trip.fork-2", "trip.fork-3"]
    await trip.save("trip.fork-1", record("trip.fork-1", 5))
    fork_id, checkpoint = await fork_session(trip, "trip.fork-1", from_step=5)
    assert (fork_id, checkpoint.step_index) == ("trip.fork-1.fork-1", 5)


@with_history
@pytest.mark.parametrize("keep", [False, True])
async def test_an_id_without_a_checkpoint_is_free_again(trip, record, text, keep):
    for _ in range(2):
        await fork_session(trip, "trip", from_step=1)
    await trip.delete("trip.fork-1", keep_history=keep)
    fork_id, checkpoint = await fork_session(trip, "trip", from_step=2)
    assert fork_id == "trip.fork-1"
    assert text(await trip.load(fork_id)) == text(checkpoint)
    steps = [entry.step for entry in await trip.history(fork_id)]
    assert steps == ([2, 1] if keep else [2])


@with_history
async def test_a_session_whose_checkpoint_was_deleted_can_be_forked(trip):
    await trip.delete("trip", keep_history=True)
    fork_id, checkpoint = await fork_session(trip, "trip", from_step=2)
    assert (fork_id, checkpoint.step_index) == ("trip.fork-1", 2)
    with pytest.raises(ConfigurationError, match="already has a checkpoint"):
        await fork_session(trip, "trip", from_step=2, new_session_id="trip")


@with_history
@pytest.mark.parametrize("taken", ["trip", "other"])
async def test_a_taken_id_is_refused_and_nothing_is_written(trip, record, text, taken):
    await trip.save("other", record("other", 1))
    before = [await everything(trip, each, text) for each in ("trip", "other")]
    with pytest.raises(ConfigurationError, match="already has a checkpoint") as caught:
        await fork_session(trip, "trip", from_step=1, new_session_id=taken)
    assert caught.value.field == "newSessionId"
    assert [await everything(trip, each, text) for each in ("trip", "other")] == before


@with_history
async def test_a_fork_can_have_a_name(trip):
    fork_id, checkpoint = await fork_session(trip, "trip", from_step=1, new_session_id="what-if")
    assert (fork_id, checkpoint.session_id) == ("what-if", "what-if")
    assert await trip.load("trip.fork-1") is None


@with_history
@pytest.mark.parametrize(
    ("session_id", "step", "kept"),
    [("trip", 9, [1, 2, 3]), ("trip", 0, [1, 2, 3]), ("nope", 1, [])],
)
async def test_r36_a_step_that_is_not_kept(trip, record, session_id, step, kept):
    await trip.save("trip", record("trip", 2))  # out of order and twice
    with pytest.raises(CheckpointNotFoundError) as caught:
        await fork_session(trip, session_id, from_step=step)
    shown = ", ".join(map(str, kept)) or "none"
    assert str(caught.value).endswith(f"(steps kept: {shown})")
    assert caught.value.code == "LOUSHO_CHECKPOINT_NOT_FOUND"
    assert caught.value.kept == kept


@with_history
async def test_a_step_beyond_the_limit_is_not_kept(stores, record):
    store = await stores.open(2)
    for step in range(1, 5):
        await store.save("trip", record("trip", step))
    with pytest.raises(CheckpointNotFoundError, match=r"\(steps kept: 3, 4\)$"):
        await fork_session(store, "trip", from_step=1)


@with_history
async def test_forks_at_once_get_ids_of_their_own(trip, text):
    before = await everything(trip, "trip", text)
    forks = await asyncio.gather(
        *(
            fork_session(
                trip, "trip", from_step=2, patch=ForkPatch(append_input=f"variant {number}")
            )
            for number in range(8)
        )
    )
    assert sorted(fork_id for fork_id, _ in forks) == [f"trip.fork-{n}" for n in range(1, 9)]
    for fork_id, checkpoint in forks:
        assert text(await trip.load(fork_id)) == text(checkpoint)
    assert await everything(trip, "trip", text) == before


@with_history
async def test_one_of_many_gets_a_name(trip, text):
    forks = await asyncio.gather(
        *(
            fork_session(
                trip,
                "trip",
                from_step=2,
                patch=ForkPatch(append_input=f"variant {number}"),
                new_session_id="one",
            )
            for number in range(8)
        ),
        return_exceptions=True,
    )
    made = [each for each in forks if isinstance(each, tuple)]
    refused = [each for each in forks if isinstance(each, ConfigurationError)]
    assert (len(made), len(refused)) == (1, 7)
    assert {error.field for error in refused} == {"newSessionId"}
    assert text(await trip.load("one")) == text(made[0][1])


@pytest.mark.parametrize(
    "place", ["sqlite", "postgres", "lousho-sqlite", "lousho-files"], indirect=True
)
async def test_forks_of_several_stores_over_the_same_data(stores, record):
    opened = [await stores.open() for _ in range(4)]
    await opened[0].save("trip", record("trip"))
    forks = await asyncio.gather(*(fork_session(each, "trip", from_step=1) for each in opened * 2))
    assert sorted(fork_id for fork_id, _ in forks) == [f"trip.fork-{n}" for n in range(1, 9)]


@pytest.mark.parametrize("place", ["three-methods"], indirect=True)
async def test_a_store_without_a_history_cannot_fork(store, record):
    await store.save("trip", record("trip"))
    with pytest.raises(ConfigurationError, match="keeps no history") as caught:
        await fork_session(store, "trip", from_step=1)
    assert caught.value.field == "checkpointStore"
