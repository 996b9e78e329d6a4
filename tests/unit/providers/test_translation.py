from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from perdure.activities.providers.conversation import make_ids_usable, settle
from perdure.activities.providers.parts import parts_of
from perdure.activities.providers.retry_after import (
    MAX_RETRY_AFTER_SECONDS,
    retry_after_seconds,
)
from perdure.activities.providers.usage import usage_of
from perdure.checkpoint_bridge.errors import ProviderError

ANY = re.compile(r".+")
MIDNIGHT = "Thu, 01 Jan 1970 00:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-4"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e300"}, MAX_RETRY_AFTER_SECONDS),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        ({"retry-after": MIDNIGHT}, 0.0),
        # The service's clock counts, not ours.
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT", "date": MIDNIGHT}, 120.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT", "date": "?"}, 20.0),
        ({"retry-after": "Thu, 99 Jan 1970 00:02:00 GMT"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, now=100.0) == seconds


def test_usage_counts_are_tolerant_and_sum_up() -> None:
    assert usage_of(input_tokens=None, output_tokens="7") is None
    assert usage_of(input_tokens=True, output_tokens=-1) is None
    assert usage_of(input_tokens=2.0, output_tokens=None, cached=0, reasoning="x") == {
        "inputTokens": 2,
        "outputTokens": 0,
        "totalTokens": 2,
    }


def call(identity: Any, arguments: Any = "{}", name: str = "ping") -> dict[str, Any]:
    return {"id": identity, "function": {"name": name, "arguments": arguments}}


def turn(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "toolCalls": list(calls)}


def result(identity: Any, content: str = "1") -> dict[str, Any]:
    return {"role": "tool", "toolCallId": identity, "content": content}


def settled(*messages: dict[str, Any]) -> list[Any]:
    return settle(list(messages), label="x", id_pattern=ANY, known=set())


def test_results_stand_behind_their_turn_and_nothing_stored_changes() -> None:
    messages = [
        turn(call("a"), call("b")),
        {"role": "user", "content": "wait"},
        result("b"),
        {"role": "system", "content": "s"},
        result("a"),
        {"role": "assistant", "content": "done"},
    ]
    before = copy.deepcopy(messages)
    entries = settled(*messages)
    assert [e.index for e in entries] == [0, 4, 2, 1, 3, 5]
    assert [e.call_id for e in entries] == ["", "a", "b", "", "", ""]
    assert messages == before


def test_results_of_doubled_ids_keep_their_order_and_the_last_ones_count() -> None:
    entries = settled(
        turn(call("a"), call("a")), result("a", "0"), result("a", "1"), result("a", "2")
    )
    assert [e.message["content"] for e in entries[1:]] == ["1", "2"]
    assert [e.call_id for e in entries[1:]] == [c.id for c in entries[0].calls]
    assert len({c.id for c in entries[0].calls}) == 2


def test_replaced_ids_depend_on_their_place_only() -> None:
    messages = [turn(call("a")), result("a"), turn(call("a")), result("a")]
    more = [turn(call("a")), result("a")]
    first, second = settled(*messages), settled(*messages, *more)
    assert [e.call_id for e in first] == [e.call_id for e in second[:4]]


def test_arguments_nested_too_deep_for_json_are_not_sent() -> None:
    deep = '{"a":' + "[" * 50_000 + "]" * 50_000 + "}"
    entries = settled(turn(call("a", deep), call("b", {"not": "text"})), result("a"), result("b"))
    assert [c.arguments for c in entries[0].calls] == [{}, {}]


def test_the_ids_of_a_response_become_usable_without_losing_good_ones() -> None:
    calls = [call(i) for i in ("a", "", None, 7, " ", "a", "b")]
    made = [c["id"] for c in make_ids_usable(calls)]
    assert (made[0], made[6]) == ("a", "b")
    assert len(set(made)) == 7
    assert all(re.fullmatch(r"call_[0-9a-f]{32}", i) for i in made[1:6])
    assert calls[1]["id"] == ""


def media(part: dict[str, Any]) -> Any:
    (entry,) = settled({"role": "user", "content": [part]})
    (made,) = parts_of(entry, "x")
    return made.media


@pytest.mark.parametrize(
    ("value", "mime", "data"),
    [
        ("data:image/png;base64,aGk=", "image/png", "aGk="),
        ("data:image/png;base64,aGk", "image/png", "aGk="),
        ("data:image/png;charset=x;base64,a%47k%3D", "image/png", "aGk="),
        ("DATA:image/svg+xml,%3Csvg%2F%3E", "image/svg+xml", "PHN2Zy8+"),
        ({"$bytes": "/9j/"}, "image/jpeg", "/9j/"),
        ({"$bytes": "_9j_"}, "image/jpeg", "/9j/"),
        (b"GIF89a", "image/gif", "R0lGODlh"),
        (b"RIFF0000WEBP", "image/webp", "UklGRjAwMDBXRUJQ"),
    ],
)
def test_the_spellings_of_an_image(value: Any, mime: str, data: str) -> None:
    made = media({"type": "image", "image": value})
    assert (made.mime, made.data, made.url) == (mime, data, "")


def test_the_type_that_a_part_names_wins() -> None:
    made = media({"type": "file", "data": "data:text/plain,x", "mimeType": "Text/CSV"})
    assert made.mime == "text/csv"
    assert made.name_or_default() == "file.csv"


@pytest.mark.parametrize("value", ["data:image/png", "aGk=", {"$bytes": "a", "b": 1}, None, 7])
def test_what_is_no_media_is_refused_without_showing_it(value: Any) -> None:
    with pytest.raises(ProviderError, match="part 1 holds") as caught:
        media({"type": "image", "image": value})
    assert not caught.value.retryable
    assert "aGk" not in str(caught.value)
