"""Records as the text that other programs read too."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    SessionIdInvalidError,
    StorageError,
)
from perdure.checkpoint_bridge.format.stable_json import parse_json, to_stored_text
from perdure.checkpoint_bridge.stores.stored import (
    check_approval_id,
    check_checkpoint_id,
    entry_of,
    entry_record,
    read_object,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_a_record_comes_back_from_its_text(value):
    text = to_stored_text(value)
    assert parse_json(text.encode("utf-8").decode("utf-8")) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345678901234567890123, "12345678901234567890123"),
        ([1, 1.0, True, -0.5], "[1,1.0,true,-0.5]"),
        ({"b": 1, "a": 2, "1": 3}, '{"b":1,"a":2,"1":3}'),
        ([4.122099887766669e16, float("inf")], "[4.122099887766669e+16,1e999]"),
        ("é 😀", '"é 😀"'),
        ("\ud800 é", '"\\ud800 é"'),
        ("\ud83d" + "\ude00", '"😀"'),
        ({"\udfff": "\0"}, '{"\\udfff":"\\u0000"}'),
    ],
)
def test_texts(value, text):
    assert to_stored_text(value) == text


def test_a_number_beyond_a_double_stays_one():
    value = parse_json('{"a": [1e999, -1e999, 7, "\\ud800"]}')
    text = to_stored_text(value)
    assert text == '{"a":[1e999,-1e999,7,"\\ud800"]}'
    assert parse_json(text) == value
    json.loads(text, parse_constant=pytest.fail)  # strict JSON: no Infinity


def test_any_depth_is_written():
    value: object = 12345678901234567890123
    for _ in range(5000):
        value = [value]
    assert to_stored_text(value) == "[" * 5000 + "12345678901234567890123" + "]" * 5000


@pytest.mark.parametrize("text", ["", "[]", "null", '"a"', '{"a": NaN}', '{"a"', b"{\xff}"])
def test_what_is_no_record_is_named(text):
    with pytest.raises(StorageError, match="The file is damaged") as caught:
        read_object(text, "The file")
    assert caught.value.code == "LOUSHO_STORAGE_FAILED"


@pytest.mark.parametrize("value", [None, [], {}, {"checkpoint": 1}, "entry"])
def test_what_is_no_entry(value):
    assert entry_of(value) is None


def test_an_entry():
    assert entry_record({"stepIndex": 2}, 1_767_323_045_678) == {
        "step": 2,
        "savedAt": "2026-01-02T03:04:05.678Z",
        "status": "in-progress",
        "checkpoint": {"stepIndex": 2},
    }


@pytest.mark.parametrize("session_id", ["a", "_", "-.", "trip.fork-1", "0", "x" * 200])
def test_ids_of_stored_sessions(session_id):
    assert check_checkpoint_id(session_id) == session_id


@pytest.mark.parametrize("session_id", ["", ".", "..", ".a", "a/b", "a\n", "é", "x" * 201, 7])
def test_what_is_no_id_of_a_stored_session(session_id):
    with pytest.raises(SessionIdInvalidError):
        check_checkpoint_id(session_id)


@pytest.mark.parametrize("approval_id", ["", "a.b", "../a", "a\n", "x" * 129, None])
def test_what_is_no_id_of_an_approval(approval_id):
    with pytest.raises(ConfigurationError) as caught:
        check_approval_id(approval_id)
    assert caught.value.field == "approvalId"
