"""What holds for every transcript and every JSON value."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given, strategies as st

from perdure.checkpoint_bridge import (
    Checkpoint,
    ForkPatch,
    Message,
    apply_patch,
    assert_valid,
    compare_trajectories,
    decode_bytes,
    drift_of,
    encode_bytes,
    new_session_messages,
    normalize_arguments,
    split_pending_turn,
    text_of,
    with_tool_result,
)
from perdure.checkpoint_bridge.format.stable_json import (
    copy_json,
    json_equal,
    parse_json,
    stable_json,
    to_json_text,
)
from perdure.checkpoint_bridge.format.transcript import tool_message
from perdure.checkpoint_bridge.format.usage import add_model_call, restore_usage

texts = st.text(st.characters(exclude_categories=()), max_size=8)
numbers = st.one_of(st.integers(), st.floats(), st.integers(min_value=2**60), st.just(10**400))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
keys = st.one_of(texts, st.sampled_from(["0", "10", "9", "01", "__proto__", "$bytes", "type"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)
finite = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)

# Objects with the format's keys and anything for values.
FORMAT_KEYS = (
    "role content toolCalls toolCallId name toolName id function arguments type text messages "
    "finishReason usage byModel inputTokens promptTokens costUsd status version hash tools model"
)
odd = st.dictionaries(st.sampled_from(FORMAT_KEYS.split()), values, max_size=6)
odd_message = st.one_of(
    values,
    odd,
    st.fixed_dictionaries(
        {"role": st.sampled_from(["assistant", "tool", "user", "system"])},
        optional={"content": values, "toolCallId": values, "toolCalls": st.lists(odd, max_size=3)},
    ),
)
odd_messages = st.lists(odd_message, max_size=6)


@st.composite
def transcripts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Whole turns, then a turn with some of its results, in any order, input in between."""
    messages: list[dict[str, Any]] = []
    turns = draw(st.integers(0, 3))
    for number in range(turns + 1):
        if draw(st.booleans()):
            messages.append({"role": "user", "content": draw(texts)})
        count = draw(st.integers(0, 3))
        calls = [
            {
                "id": f"call_{number}_{n}",
                "type": "function",
                "function": {"name": draw(st.sampled_from("ab")), "arguments": draw(texts)},
            }
            for n in range(count)
        ]
        turn: dict[str, Any] = {"role": "assistant", "content": draw(texts)}
        messages.append(turn | {"toolCalls": calls} if calls else turn)
        results = [tool_message(call, to_json_text(draw(finite))) for call in calls]
        if number == turns:
            results = draw(st.permutations(results))[: draw(st.integers(0, count))]
            users = st.lists(st.just({"role": "user", "content": "queued"}), max_size=2)
            results = draw(st.permutations(results + draw(users)))
        messages += results
    return messages


def exact(value: Any) -> str:
    return json.dumps(value)


@given(transcripts())
def test_a_split_transcript_is_valid_for_a_provider(messages: list[dict[str, Any]]) -> None:
    before = exact(messages)
    split = split_pending_turn(messages)
    both = split.messages + split.queued_input
    assert sorted(map(exact, both)) == sorted(map(exact, messages))
    if not split.pending_tool_calls:
        assert split.queued_input == []
        assert_valid(split.messages)
    answers = [tool_message(call, "null") for call in split.pending_tool_calls]
    answered = split_pending_turn(split.messages + answers + split.queued_input)
    assert answered.pending_tool_calls == answered.queued_input == []
    assert_valid(answered.messages)
    assert split_pending_turn(answered.messages) == answered
    assert exact(messages) == before


@given(transcripts())
def test_a_run_does_not_differ_from_itself(messages: list[dict[str, Any]]) -> None:
    compared = compare_trajectories(messages, {"messages": messages})
    assert compared.diverged_at is None
    assert compared.drift == []
    assert json_equal(compared.a, compared.b)


@given(transcripts(), transcripts())
def test_call_ids_change_nothing_but_themselves(
    a: list[dict[str, Any]], b: list[dict[str, Any]]
) -> None:
    renamed = json.loads(json.dumps(b).replace('"call_', '"toolu-'))
    before, after = compare_trajectories(a, b), compare_trajectories(a, renamed)
    assert (before.diverged_at, before.drift) == (after.diverged_at, after.drift)
    assert compare_trajectories(b, renamed).diverged_at is None


@given(transcripts(), transcripts())
def test_divergence_is_the_same_seen_from_either_side(
    a: list[dict[str, Any]], b: list[dict[str, Any]]
) -> None:
    there, back = compare_trajectories(a, b), compare_trajectories(b, a)
    assert there.diverged_at == back.diverged_at
    assert [(d["committed"], d["current"]) for d in there.drift] == [
        (d["current"], d["committed"]) for d in back.drift
    ]


@given(transcripts(), st.booleans())
def test_sending_the_stored_history_again_adds_only_what_is_new(
    messages: list[dict[str, Any]],
    finished: bool,
) -> None:
    new = {"role": "user", "content": "new"}
    assert new_session_messages(messages, messages, finished) == []
    assert new_session_messages(messages, [*messages, new], finished) == [new]
    assert new_session_messages([], messages, finished) == messages


@given(transcripts(), finite)
def test_a_patched_result_is_there_once(messages: list[dict[str, Any]], value: Any) -> None:
    for message in messages:
        for call in message.get("toolCalls", []):
            patched = with_tool_result(messages, call["id"], value)
            results = [m for m in patched if m.get("toolCallId") == call["id"]]
            assert results == [tool_message(call, to_json_text(value))]


@given(values)
def test_stable_json_takes_any_json(value: Any) -> None:
    text = stable_json(value)
    text.encode("utf-8")
    assert stable_json(parse_json(text)) == text
    assert stable_json(copy_json(value)) == text
    assert normalize_arguments(text) == text
    assert json_equal(parse_json(to_json_text(value)), value)


@given(st.one_of(texts, values.map(json.dumps), values.map(lambda v: json.dumps(v, indent=1))))
def test_normalising_is_idempotent(raw: str) -> None:
    once = normalize_arguments(raw)
    assert normalize_arguments(once) == once


@given(st.one_of(odd, st.dictionaries(keys, values)))
def test_records_come_back_as_they_were(record: dict[str, Any]) -> None:
    before = exact(record)
    for kind in (Checkpoint, Message):
        assert exact(kind.from_json(record).to_json()) == before
        again = kind.from_json(json.loads(before))
        assert exact(again.to_json()) == before
    assert exact(encode_bytes(decode_bytes(record))) == before


@given(odd_messages, odd_messages, odd, st.booleans())
def test_odd_json_raises_nowhere(
    a: list[Any],
    b: list[Any],
    record: Any,
    finished: bool,
) -> None:
    before = exact([a, b, record])
    split_pending_turn(a)
    new_session_messages(a, b, finished)
    compare_trajectories(a, record)
    drift_of(record, {"version": 1, "hash": "x"})
    add_model_call(
        restore_usage(record), model="m", usage_of_call=record, cost_usd=0.5, estimated=False
    )
    apply_patch(record, ForkPatch(append_input="x"))
    for message in a:
        text_of(message)
    with contextlib.suppress(ValueError):
        assert_valid(a)
    assert exact([a, b, record]) == before
