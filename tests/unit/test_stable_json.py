"""JSON as JavaScript reads and prints it, where Python differs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.checkpoint_bridge import Message
from perdure.checkpoint_bridge.format.stable_json import (
    copy_json,
    json_equal,
    normalize_arguments,
    parse_json,
    stable_json,
    to_json_text,
    well_formed,
)

DEEP = 100_000


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (0.1 + 0.2, "0.30000000000000004"),
        (0.0001, "0.0001"),
        (0.00001, "0.00001"),
        (0.000001, "0.000001"),
        (-0.0000012, "-0.0000012"),
        (1e-7, "1e-7"),
        (1.25e-7, "1.25e-7"),
        (1e16, "10000000000000000"),
        (123456789012345680000, "123456789012345680000"),
        (1.5e20, "150000000000000000000"),
        (1e21, "1e+21"),
        (-1.5e21, "-1.5e+21"),
        (1e100, "1e+100"),
        (2**53 + 1, "9007199254740992"),
        (12345678901234567890, "12345678901234567000"),
        (10**400, "null"),
        (float("inf"), "null"),
        (float("nan"), "null"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)
def test_a_number_is_printed_as_javascript_prints_the_double(number: float, text: str) -> None:
    assert stable_json(number) == text
    assert to_json_text([number]) == f"[{text}]"


def test_keys_that_are_array_indices_come_first() -> None:
    value = {"b": 1, "10": 2, "a": 3, "9": 4, "01": 5, "4294967295": 6, "4294967294": 7, "-1": 8}
    assert stable_json(value) == (
        '{"9":4,"10":2,"4294967294":7,"-1":8,"01":5,"4294967295":6,"a":3,"b":1}'
    )
    assert to_json_text(value) == (
        '{"9":4,"10":2,"4294967294":7,"b":1,"a":3,"01":5,"4294967295":6,"-1":8}'
    )


def test_keys_are_sorted_by_utf_16_code_units() -> None:
    # By code points the emoji (U+1F600) would come last; its first code unit is D83D.
    assert (
        stable_json({"\ue000": 1, "\U0001f600": 2, "é": 3}) == '{"é":3,"\U0001f600":2,"\ue000":1}'
    )


def test_only_what_must_be_escaped_is_escaped() -> None:
    assert stable_json('\x00\x1f\b\f\n\r\t"\\/\x7fé\u2028\ud800x') == (
        '"\\u0000\\u001f\\b\\f\\n\\r\\t\\"\\\\/\x7fé\u2028\\ud800x"'
    )


def test_halves_of_a_pair_are_one_character() -> None:
    assert stable_json("\ud83d\ude00") == '"\U0001f600"'
    assert normalize_arguments('"\\ud83d\ude00"') == '"\U0001f600"'
    assert normalize_arguments('{"\ud83d\\ude00":1,"\\ud83d\\ude00":2}') == '{"\U0001f600":2}'
    assert normalize_arguments('"\\ude00\\ud83d"') == '"\\ude00\\ud83d"'
    assert well_formed("a\ud83d\ude00\ud83d") == "a\U0001f600\ufffd"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "tru",
        "NaN",
        "-Infinity",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "-",
        "'a'",
        '"a',
        '"\t"',
        '"\\x"',
        '"\\u12g4"',
        "[1,]",
        "[1 2]",
        "[,1]",
        '{"a"}',
        '{"a":}',
        '{"a":1,}',
        "{a:1}",
        '{"a" 1}',
        "[1}",
        '{"a":1]',
        "1 2",
        "\ufeff1",
        "\xa01",
        "\v1",
        "[" * DEEP,
        "[" * DEEP + "]" * (DEEP + 1),
        '["\ud800",]',
        '{"\ud800":1,}',
        '{"\ud800"}',
        '["\ud800" 01]',
        '["\ud800" x]',
    ],
)
def test_what_json_parse_refuses_stays_as_it_is(text: str) -> None:
    assert normalize_arguments(text) == text
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_whatever_has_no_end_in_python_is_read() -> None:
    assert normalize_arguments("9" * 5000) == "null"
    assert normalize_arguments("-" + "1" * 308) == "-1.1111111111111111e+307"
    arrays = "[" * 25 + '"[max depth]"' + "]" * 25
    assert normalize_arguments("[" * DEEP + "]" * DEEP) == arrays
    objects = '{"k":' * 25 + '"[max depth]"' + "}" * 25
    assert normalize_arguments('{"k": ' * DEEP + "[true, null, {}]" + " }" * DEEP) == objects


def test_deep_values_are_printed_copied_and_compared() -> None:
    text = "[" * DEEP + "-1.5" + "]" * DEEP
    value = parse_json(text)
    assert to_json_text(value) == text
    copy = copy_json(value)
    assert copy is not value
    assert json_equal(copy, value)


def test_24_levels_below_the_outermost_are_kept() -> None:
    kept: Any = 1
    for _ in range(25):
        kept = [kept]
    assert stable_json(kept) == json.dumps(kept)
    assert stable_json([kept]) == "[" * 25 + '"[max depth]"' + "]" * 25
    assert stable_json([[kept, {}], []]).count("[max depth]") == 1


def test_numbers_of_equal_value_are_equal_and_booleans_are_none() -> None:
    assert json_equal({"a": 1, "b": [1.0]}, {"b": [1], "a": 1.0})
    assert not json_equal([1], [True])
    assert not json_equal({"a": None}, {})


def test_parsing_keeps_integers() -> None:
    assert parse_json("[9007199254740993, 1.0, -0]") == [9007199254740993, 1.0, 0]
    assert parse_json('{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}


def test_what_stands_for_json_is_printed_as_it() -> None:
    value = {"m": Message(role="user"), "t": (1, 2), "b": b"\x00", 1: "int", None: 2, 2.5: 3}
    assert to_json_text(value) == (
        '{"1":"int","m":{"role":"user"},"t":[1,2],"b":{"$bytes":"AA=="},"null":2,"2.5":3}'
    )


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError, match="set is not JSON"):
        stable_json({1, 2})
    with pytest.raises(TypeError, match="tuple is not a JSON key"):
        stable_json({(1, 2): 3})
    with pytest.raises(TypeError, match="object is not JSON"):
        copy_json([object()])


def test_a_value_that_contains_itself_ends() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    with pytest.raises(ValueError, match="contains itself"):
        to_json_text(loop)
    assert stable_json(loop).count("1") == 25
    assert copy_json(loop)[1] is not loop


def test_one_value_in_two_places_is_no_loop() -> None:
    shared: list[Any] = [1]
    assert to_json_text([shared, [shared]]) == "[[1],[[1]]]"
