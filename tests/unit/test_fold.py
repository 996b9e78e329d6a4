"""The fold of a log, and events as rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from perdure.checkpoint_bridge.errors import ConfigurationError, SessionFormatUnsupportedError
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import (
    INLINE_LIMIT,
    Event,
    NewEvent,
    decode,
    digest_of,
    dump,
    encode,
    label,
    shared_beginning,
    step_of,
)
from perdure.checkpoint_bridge.log.fold import SessionState

USAGE = {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}


def user(text: str) -> NewEvent:
    return NewEvent(ev.USER_MESSAGE, {"message": {"role": "user", "content": text}})


def answer(text: str = "", *calls: str, **more: Any) -> NewEvent:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["toolCalls"] = [
            {"id": call, "type": "function", "function": {"name": "t", "arguments": "{}"}}
            for call in calls
        ]
    return NewEvent(
        ev.ASSISTANT_MESSAGE, {"message": message, "model": "m", "usage": USAGE, **more}
    )


def result(seq: int, index: int, call: str, content: str = "") -> NewEvent:
    message = {"role": "tool", "content": content or f"{index}", "toolCallId": call}
    return NewEvent(ev.TOOL_RESULT, {"seq": seq, "index": index, "message": message})


def start(*, fresh: bool = True, turn: int = 1, **more: Any) -> NewEvent:
    data = {"turn": turn, "runId": "r", "agent": "trip", "fresh": fresh, **more}
    return NewEvent(ev.TURN_START, data)


def end(kind: str = "completed") -> NewEvent:
    return NewEvent(ev.TURN_END, {"turn": 1, "reason": {"kind": kind}})


def save_of(record: dict[str, Any]) -> list[NewEvent]:
    """What a record from outside is written as."""
    fields = {key: value for key, value in record.items() if key != "messages"}
    delta = {"keep": 0, "append": record["messages"]}
    return [
        NewEvent(ev.TRANSCRIPT_DELTA, delta),
        NewEvent(ev.CHECKPOINT_SET, {"fields": fields}),
    ]


def fold(*new: NewEvent, onto: SessionState | None = None) -> SessionState:
    state = onto or SessionState()
    first = state.through
    return state.fold(
        Event(seq, event.type, 0, event.data) for seq, event in enumerate(new, start=first)
    )


def record_of(state: SessionState) -> dict[str, Any]:
    return state.checkpoint("s", status="in-progress", finish_reason="tool_calls")


def contents(state: SessionState) -> list[str]:
    return [message["content"] for message in state.messages]


def test_an_empty_log():
    state = SessionState()
    assert (state.through, state.messages, state.calls, state.results) == (0, [], [], 0)
    assert state.finished


def test_a_run():
    log = [start(), user("Hi"), answer("", "a", "b"), result(2, 0, "a"), result(2, 1, "b")]
    state = fold(*log)
    assert [message["role"] for message in state.messages] == ["user", "assistant", "tool", "tool"]
    assert (state.step, state.through, state.call_seq, state.call_at) == (1, 5, 2, 1)
    assert (len(state.calls), state.results, state.finished) == (2, 2, False)
    state = fold(answer("Done"), end(), onto=state)
    record = record_of(state)
    assert (record["stepIndex"], record["usage"]["totalTokens"]) == (2, 24)
    assert [call["id"] for call in record["toolCalls"]] == ["a", "b"]
    assert [entry["step"] for entry in record["stepUsage"]] == [1, 2]
    assert (state.finished, state.open_turn) == (True, None)
    # A turn without calls leaves those of the turn before as they are: all answered.
    assert len(state.calls) == state.results == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
def test_results_stand_in_call_order(order):
    ids = ["a", "b", "c"]
    state = fold(start(), answer("", *ids), *(result(1, index, ids[index]) for index in order))
    assert contents(state)[1:] == ["0", "1", "2"]


def test_calls_of_one_id_have_results_of_their_own():
    state = fold(start(), answer("", "x", "x", "x"), *(result(1, index, "x") for index in range(3)))
    assert contents(state)[1:] == ["0", "1", "2"]


def test_input_that_was_queued_stays_behind_the_results():
    state = fold(
        start(), answer("", "a", "b"), user("wait"), result(1, 1, "b"), user("!"), result(1, 0, "a")
    )
    assert contents(state)[1:] == ["0", "1", "wait", "!"]
    assert state.results == 2


def test_calls_are_announced_for_their_own_turn_only():
    announced = [
        NewEvent(ev.TOOL_CALL, {"seq": seq, "index": index}) for seq, index in [(1, 0), (9, 1)]
    ]
    state = fold(start(), answer("", "a", "b"), *announced)
    assert state.announced == {0}
    assert fold(answer("", "c"), onto=state).announced == set()


def test_a_blank_answer_counts_and_is_no_message():
    state = fold(start(), user("Hi"), answer(""))
    assert (len(state.messages), state.step, state.usage["modelCalls"]) == (1, 1, 1)
    with_reasoning = answer("")
    with_reasoning.data["message"]["reasoning"] = [{"text": "…"}]
    assert len(fold(with_reasoning).messages) == 1


def test_a_fresh_run_counts_from_zero_and_keeps_the_conversation():
    state = fold(start(), user("Hi"), answer("", "a"), result(2, 0, "a"), answer("Done"), end())
    state = fold(start(turn=2), user("More"), answer("Sure"), onto=state)
    record = record_of(state)
    assert contents(state) == ["Hi", "", "0", "Done", "More", "Sure"]
    assert (record["stepIndex"], record["toolCalls"], record["usage"]["totalTokens"]) == (1, [], 12)
    assert len(record["stepUsage"]) == 1


def test_a_run_that_goes_on_counts_on():
    state = fold(start(), user("Hi"), answer("", "a"), end("error"))
    assert not state.finished
    state = fold(start(fresh=False, turn=2), result(2, 0, "a"), answer("Done"), onto=state)
    assert (state.step, state.usage["totalTokens"], len(state.tool_calls)) == (2, 24, 1)


@pytest.mark.parametrize(
    ("kind", "finished"),
    [("completed", True), ("max-tokens", True), ("error", False), ("aborted", False)],
)
def test_whether_the_next_input_starts_a_run(kind, finished):
    assert fold(start(), user("Hi"), answer("x"), end(kind)).finished is finished
    assert not fold(start(), user("Hi")).finished


def test_a_price_that_is_unknown_once_is_unknown():
    state = fold(start(), answer("a", costUsd=0.5), answer("b", costUsd=0.25))
    assert record_of(state)["usage"]["costUsd"] == 0.75
    assert "costUsd" not in record_of(fold(answer("c"), onto=state))["usage"]


@pytest.mark.parametrize("value", [None, 0, {"a": [1]}])
def test_a_business_state_is_a_value_even_when_it_is_null(value):
    state = fold(start(), user("Hi"))
    assert "businessState" not in record_of(state)
    state = fold(NewEvent(ev.BUSINESS_STATE, {"value": value}), onto=state)
    assert record_of(state)["businessState"] == value
    assert record_of(fold(start(turn=2), user("More"), onto=state))["businessState"] == value


def test_an_agents_fingerprint_is_that_of_its_newest_run():
    state = fold(start(fingerprint={"hash": "1"}), user("Hi"), answer("x"), end())
    assert record_of(state)["agentFingerprint"] == {"hash": "1"}
    state = fold(start(turn=2, fingerprint={"hash": "2"}), onto=state)
    assert record_of(state)["agentFingerprint"] == {"hash": "2"}


def asked(seq: int) -> NewEvent:
    return NewEvent(ev.APPROVAL_REQUESTED, {"id": "p", "seq": seq, "index": 1, "pending": {}})


def test_an_approval_is_open_until_it_is_decided():
    state = fold(start(), answer("", "a", "b"), asked(1))
    assert state.approval is not None
    decision = {"id": "other", "approved": True}
    assert fold(NewEvent(ev.APPROVAL_DECIDED, decision), onto=state).approval is not None
    decision = {"id": "p", "approved": False}
    state = fold(NewEvent(ev.APPROVAL_DECIDED, decision), onto=state)
    assert (state.approval, state.decided) == (None, {1: decision})
    assert fold(answer("", "c"), onto=state).decided == {}


def test_a_fork_inherits_the_conversation_and_nothing_that_was_open():
    announced = NewEvent(ev.TOOL_CALL, {"seq": 2, "index": 0})
    decided = NewEvent(ev.APPROVAL_DECIDED, {"id": "p", "approved": True})
    source = [start(), user("Hi"), answer("", "a", "b"), announced, asked(2), decided]
    state = fold(*source, NewEvent(ev.END_SEED, {"inherited": True}))
    assert (state.approval, state.announced, state.decided) == (None, set(), {})
    assert (state.open_turn, state.open_step, state.finished) == (None, False, False)
    assert (contents(state), state.step, len(state.calls), state.results) == (["Hi", ""], 1, 2, 0)


def test_a_rewrite_finds_the_calls_again():
    state = fold(start(), user("Hi"), answer("", "a"), result(2, 0, "a"), answer("Done"))
    delta = {"keep": 2, "append": [{"role": "user", "content": "And hotels?"}]}
    state = fold(NewEvent(ev.TRANSCRIPT_DELTA, delta), onto=state)
    assert contents(state) == ["Hi", "", "And hotels?"]
    assert (state.call_at, state.call_seq, len(state.calls), state.results) == (1, 5, 1, 0)
    state = fold(result(5, 0, "a", "rain"), onto=state)
    assert contents(state) == ["Hi", "", "rain", "And hotels?"]
    state = fold(NewEvent(ev.TRANSCRIPT_DELTA, {"keep": 1, "append": []}), onto=state)
    assert (state.calls, state.call_at) == ([], -1)


RECORD = {
    "agentId": "theirs",
    "sessionId": "elsewhere",
    "stepIndex": 3,
    "messages": [{"role": "user", "content": "Hi"}, answer("", "a").data["message"]],
    "toolCalls": [{"id": "z"}],
    "usage": {"promptTokens": 3, "completionTokens": 2, "totalTokens": 5},
    "businessState": None,
    "later": {"kept": [1, True]},
}


def test_a_record_from_outside_is_kept_key_for_key():
    state = fold(*save_of(RECORD))
    record = state.checkpoint("s", status="finished", finish_reason="stop", approval_id="p")
    assert record == {**RECORD, "sessionId": "s"}
    assert (state.step, len(state.calls), state.results, state.finished) == (3, 1, 0, False)
    assert fold(*save_of({**RECORD, "status": "finished"})).finished


def test_what_is_added_to_a_record_from_outside_goes_on_from_it():
    state = fold(*save_of({**RECORD, "status": "awaiting-approval", "approvalId": "p"}))
    state = fold(start(fresh=False), result(1, 0, "a"), answer("Done"), onto=state)
    record = record_of(state)
    assert record["agentId"] == "trip"
    assert (record["stepIndex"], record["toolCalls"]) == (4, [{"id": "z"}])
    assert record["later"] == {"kept": [1, True]}
    assert record["businessState"] is None
    assert "approvalId" not in record
    assert record["usage"]["totalTokens"] == 17
    # The older record's tokens have no model and no price.
    assert set(record["usage"]["byModel"]) == {"unknown", "m"}
    assert "costUsd" not in record["usage"]
    assert contents(state) == ["Hi", "", "0", "Done"]


@pytest.mark.parametrize("odd", ["three", None, -1, [1], 1e300, float("nan"), True])
def test_a_record_from_outside_may_hold_anything(odd):
    record = {"stepIndex": odd, "messages": [odd, {"role": odd}], "toolCalls": None, "usage": odd}
    state = fold(*save_of(record))
    assert state.step == (1 if odd is True else 0)
    assert repr(record_of(state)) == repr({**record_of(state), **record})


def test_a_cleared_session_begins_anew():
    state = fold(start(), user("Hi"), answer("", "a"), asked(2), NewEvent(ev.SESSION_CLEARED, {}))
    assert (state.messages, state.step, state.calls, state.approval) == ([], 0, [], None)
    assert (state.finished, state.fields, state.raw, state.through) == (True, {}, None, 5)
    assert fold(*save_of(RECORD), NewEvent(ev.SESSION_CLEARED, {})).raw is None


def test_unknown_events_that_may_be_ignored_count_and_change_nothing():
    state = fold(start(), user("Hi"))
    before = json.dumps(record_of(state))
    state.fold([Event(2, "later/thing", 1, {"a": 1}, ignorable=True)])
    assert (json.dumps(record_of(state)), state.through) == (before, 3)
    with pytest.raises(SessionFormatUnsupportedError, match=r"sequence 4 .* later/other"):
        state.fold([Event(3, "later/other", 1, {})])


LOG = [
    start(),
    user("Hi"),
    answer("", "a", "b"),
    NewEvent(ev.TOOL_CALL, {"seq": 2, "index": 0}),
    result(2, 1, "b"),
    user("queued"),
    asked(2),
    NewEvent(ev.APPROVAL_DECIDED, {"id": "p", "approved": True}),
    result(2, 0, "a"),
    NewEvent(ev.BUSINESS_STATE, {"value": {"n": 1}}),
    answer("Done"),
    end(),
    *save_of(RECORD),
    start(turn=2),
    NewEvent(ev.SESSION_CLEARED, {}),
    user("Anew"),
]


@given(st.lists(st.integers(0, len(LOG)), max_size=6))
def test_a_fold_in_parts_is_the_fold_of_all(cuts):
    whole = fold(*LOG)
    state, kept = SessionState(), []
    for cut in sorted(cuts):
        state = fold(*LOG[state.through : cut], onto=state.copy())
        kept.append((cut, state, json.dumps(record_of(state))))
    state = fold(*LOG[state.through :], onto=state.copy())
    assert record_of(state) == record_of(whole)
    assert state.__dict__ == whole.__dict__
    # And a state that was copied and folded on is what it was.
    for cut, each, record in kept:
        assert (each.through, json.dumps(record_of(each))) == (cut, record)


def test_a_fold_changes_no_event():
    before = [json.dumps(event.data) for event in LOG]
    fold(*LOG)
    assert [json.dumps(event.data) for event in LOG] == before


# -- rows ----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), b"bytes", {1, 2}])
@pytest.mark.parametrize("kind", [ev.USER_MESSAGE, "app/progress"])
def test_f18_what_json_cannot_say_is_refused(kind, odd):
    for data in ({"message": {"content": odd}}, {"message": {}, "more": [odd]}):
        with pytest.raises(ConfigurationError, match=f"A {kind} cannot be stored as JSON"):
            encode(NewEvent(kind, data))


@given(st.sampled_from(sorted(ev.BULK)), JSON, JSON, st.booleans())
def test_an_event_comes_back_from_its_row(kind, content, other, large):
    if large:
        content = [content, "x" * INLINE_LIMIT]
    data = {ev.BULK[kind]: content, "other": other}
    row = encode(NewEvent(kind, data))
    assert row.data.isascii()
    apart = kind == ev.REQUEST_HEADER or len(dump(content)) > INLINE_LIMIT
    assert (row.blob is not None) == (row.ref is not None) == apart
    assert decode(kind, row.data, row.blob) == data
    if row.blob is not None:
        assert row.ref == digest_of(row.blob)


@given(JSON, JSON)
def test_named_or_given_an_event_has_one_digest(content, other):
    whole = NewEvent(ev.TOOL_RESULT, {"message": content, "other": other})
    named = NewEvent(ev.TOOL_RESULT, {"other": other}, ref=digest_of(dump(content)))
    assert encode(named).digest == encode(whole).digest
    assert encode(named).blob is None


def test_other_events_have_other_digests():
    events = [
        user("a"),
        user("b"),
        NewEvent(ev.SYSTEM_MESSAGE, user("a").data),
        NewEvent(ev.USER_MESSAGE, {**user("a").data, "more": 1}),
        NewEvent(ev.USER_MESSAGE, {**user("a").data, "more": True}),
        NewEvent(ev.BUSINESS_STATE, {"value": None}),
        NewEvent(ev.BUSINESS_STATE, {"value": {}}),
    ]
    assert len({encode(event).digest for event in events}) == len(events)


def test_a_digest_knows_no_order_of_keys():
    one = NewEvent(ev.BUSINESS_STATE, {"value": {"a": 1, "b": 2}})
    other = NewEvent(ev.BUSINESS_STATE, {"value": {"b": 2, "a": 1}})
    assert encode(one) == encode(other)


def test_what_a_database_cannot_hold_is_escaped():
    row = encode(user("\ud800 \0 é"))
    assert row.data == '{"message":{"content":"\\ud800 \\u0000 \\u00e9","role":"user"}}'
    assert decode(ev.USER_MESSAGE, row.data, None) == user("\ud800 \0 é").data


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([], [], 0),
        ([1, 2], [1, 2, 3], 2),
        ([{"a": 1}], [{"a": True}], 0),
        ([{"a": 1}], [{"a": 1.0}], 0),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}], 1),
        ([1, 2, 3], [1, 9, 3], 1),
    ],
)
def test_a_shared_beginning(a, b, expected):
    assert shared_beginning(a, b) == shared_beginning(b, a) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("abcdef", "abc"), ("a\0b", "ab"), ("\ud800x", "?x"), (None, ""), (7, ""), ("é", "é")],
)
def test_a_label(value, expected):
    assert label(value, 3) == expected


@pytest.mark.parametrize(
    ("step", "expected"), [(3, 3), (3.0, 3), ("3", 0), (None, 0), (-1, 0), (2**31, 0)]
)
def test_a_step(step, expected):
    assert step_of({"stepIndex": step}) == expected
