"""save and load, for every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.checkpoint_bridge import Checkpoint

ODD: dict[str, Any] = {
    "lone surrogate": "\ud800 and \udc00",
    "nul": "a\0b",
    "emoji": "😀 \u2028",
    "big": 12345678901234567890123,
    "small": -0.1,
    "float": 1.0,
    "bytes": {"$bytes": "AAEC/w=="},
    "not bytes": {"$bytes": "AAEC/w==", "more": 1},
    "nothing": None,
    "empty": [{}, [], ""],
    "10": "an index",
    "": "an empty key",
    "__proto__": {"a": 1},
}


async def test_an_unknown_session_has_no_checkpoint(store):
    assert await store.load("nope") is None


async def test_what_was_saved_is_loaded(store, record, text):
    saved = record("trip", 2)
    await store.save("trip", saved)
    loaded = await store.load("trip")
    assert isinstance(loaded, Checkpoint)
    assert text(loaded) == text(saved)


async def test_unknown_keys_and_odd_values_are_kept(store, record, text):
    saved = record("trip", odd=ODD, businessState=ODD, runConfig={"ctx": ODD})
    saved.raw["messages"][0]["metadata"] = ODD
    saved.raw["messages"][0]["content"] = [
        {"type": "text", "text": "\ud83d"},
        {"type": "file", "data": {"$bytes": ""}, "mimeType": "text/plain", "later": [1, True]},
    ]
    saved.raw["usage"]["later"] = 1.5
    await store.save("trip", saved)
    assert text(await store.load("trip")) == text(saved)


async def test_raw_bytes_are_stored_as_the_format_writes_them(store, record):
    saved = record("trip")
    saved.raw["messages"][0]["content"] = [{"type": "image", "image": b"\x00\xff"}]
    await store.save("trip", saved)
    loaded = await store.load("trip")
    assert loaded.to_json()["messages"][0]["content"][0]["image"] == {"$bytes": "AP8="}


async def test_an_older_record_is_kept_without_the_newer_keys(store, record, text):
    old = record("trip", usage={"promptTokens": 3, "completionTokens": 2, "totalTokens": 5})
    for key in ("status", "stepUsage", "finishReason"):
        del old.raw[key]
    await store.save("trip", old)
    loaded = await store.load("trip")
    assert text(loaded) == text(old)
    assert loaded.status == "in-progress"


@pytest.mark.parametrize("given", [{}, {"businessState": None}, {"businessState": {"a": []}}])
async def test_a_business_state_is_absent_or_null_or_a_value(store, record, given):
    await store.save("trip", record("trip", **given))
    loaded = (await store.load("trip")).to_json()
    assert {key: loaded[key] for key in loaded if key == "businessState"} == given


async def test_a_paused_record_keeps_its_approval(store, record, text):
    approval = "A-" * 64
    paused = record(
        "trip", status="awaiting-approval", finishReason="awaiting-approval", approvalId=approval
    )
    await store.save("trip", paused)
    assert text(await store.load("trip")) == text(paused)
    await store.save("trip", record("trip"))
    assert "approvalId" not in await store.load("trip")


@pytest.mark.parametrize(
    "texts",
    [("x" * 300, "y" * 300, "z" * 300), ("\ud800", "\0", "\udfff\0"), (7, [1], {"a": 1})],
    ids=["long", "not text for a database", "no text at all"],
)
async def test_texts_that_are_anything(store, record, text, texts):
    odd = record("trip", **dict(zip(("status", "finishReason", "agentId"), texts, strict=True)))
    await store.save("trip", odd)
    assert text(await store.load("trip")) == text(odd)


@pytest.mark.parametrize("step", ["three", None, [1], 1e300, -1, 10**12])
async def test_a_step_that_is_no_count(store, record, text, step):
    odd = record("trip", stepIndex=step)
    await store.save("trip", odd)
    assert text(await store.load("trip")) == text(odd)


async def test_the_last_save_counts(store, record, text):
    for step in (1, 2, 3, 2):
        await store.save("trip", record("trip", step))
    assert text(await store.load("trip")) == text(record("trip", 2))


async def test_a_transcript_can_be_rewritten_from_any_message_on(store, record, text):
    await store.save("trip", record("trip", 3))
    changed = record("trip", 3)
    changed.raw["messages"][2]["content"] = "rain"
    await store.save("trip", changed)
    assert text(await store.load("trip")) == text(changed)
    await store.save("trip", record("trip", 3, messages=[]))
    assert (await store.load("trip")).messages == []


@pytest.mark.parametrize(("before", "after"), [(1, True), (True, 1), (1, 1.0), (0, False)])
async def test_values_that_python_takes_for_equal_are_told_apart(
    store, record, text, before, after
):
    first, second = record("trip"), record("trip")
    first.raw["messages"][0]["metadata"] = {"flag": before}
    second.raw["messages"][0]["metadata"] = {"flag": after}
    await store.save("trip", first)
    await store.save("trip", second)
    assert text(await store.load("trip")) == text(second)


async def test_changing_what_was_passed_in_changes_nothing_stored(store, record, text, spoil):
    saved = record("trip", 2, businessState={"a": [1]})
    expected = text(saved)
    await store.save("trip", saved)
    spoil(saved)
    assert text(await store.load("trip")) == expected


async def test_changing_what_was_given_out_changes_nothing_stored(store, record, text, spoil):
    await store.save("trip", record("trip", 2, businessState={"a": [1]}))
    loaded = await store.load("trip")
    expected = text(loaded)
    spoil(loaded)
    assert text(await store.load("trip")) == expected


async def test_what_was_loaded_and_changed_can_be_saved(store, record, text):
    await store.save("trip", record("trip", 2))
    loaded = await store.load("trip")
    loaded.raw["messages"][0]["content"] = "Plan his trip"
    await store.save("trip", loaded)
    assert text(await store.load("trip")) == text(loaded)


async def test_sessions_are_apart(store, record, text):
    ids = ["a", "a.fork-1", "a.fork-10", "A-1", "x" * 128, "_", "0"]
    await asyncio.gather(*(store.save(each, record(each, 2)) for each in ids))
    for each in ids:
        assert text(await store.load(each)) == text(record(each, 2))


@pytest.mark.parametrize(
    "place", ["sqlite", "postgres", "lousho-sqlite", "lousho-files", "key-value"], indirect=True
)
async def test_another_store_over_the_same_data_sees_the_save(stores, record, text):
    await (await stores.open()).save("trip", record("trip"))
    assert text(await (await stores.open()).load("trip")) == text(record("trip"))


async def test_a_message_that_is_none(store, record, text):
    odd = record("trip", messages=[{"role": "user", "content": "a"}, "b", None, []])
    await store.save("trip", odd)
    assert text(await store.load("trip")) == text(odd)


async def test_large_transcripts(store, record, text):
    big = record("trip", 300, businessState="x" * 1_000_000)
    await store.save("trip", big)
    assert text(await store.load("trip")) == text(big)


async def test_many_saves_of_many_sessions_at_once(store, record, text):
    async def run(session_id: str) -> None:
        for step in range(1, 5):
            await store.save(session_id, record(session_id, step))

    await asyncio.gather(*(run(f"s{number}") for number in range(10)))
    for number in range(10):
        assert text(await store.load(f"s{number}")) == text(record(f"s{number}", 4))
