"""What tools return: everything that JSON can hold, and one clear error for the rest."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field

from perdure import Agent, tool
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


class Flight(BaseModel):
    number: str = Field(serialization_alias="flightNumber")
    at: datetime
    price: Decimal


@dataclasses.dataclass
class Seat:
    row: int
    letter: str


class Colour(enum.Enum):
    RED = "red"


NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
BIG = 2**200 + 1

VALUES: dict[str, tuple[Any, str]] = {
    "none": (None, "null"),
    "zero": (0, "0"),
    "false": (False, "false"),
    "true": (True, "true"),
    "empty text": ("", '""'),
    "empty list": ([], "[]"),
    "empty object": ({}, "{}"),
    "text": ('é "quoted"\n \u2028 😀', '"é \\"quoted\\"\\n \u2028 😀"'),
    "a lone surrogate": ("\ud800", '"\\ud800"'),
    "a null character": ("a\0b", '"a\\u0000b"'),
    "big integer": (BIG, str(BIG)),
    "big integer in a list": ([10**400], f"[{10**400}]"),
    "float": (0.1, "0.1"),
    "whole float": (2.0, "2.0"),
    "datetime": (NOON, '"2026-05-04T12:00:00Z"'),
    "date": (date(2026, 5, 4), '"2026-05-04"'),
    "timedelta": (timedelta(hours=1), '"PT1H"'),
    "decimal": (Decimal("10.10"), '"10.10"'),
    "uuid": (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    "path": (Path("a/b"), '"a/b"'),
    "enum": (Colour.RED, '"red"'),
    "bytes": (b"\x00\xff", '{"$bytes":"AP8="}'),
    "bytes inside": ({"a": [b""]}, '{"a":[{"$bytes":""}]}'),
    "set": ({"b", "a", "c"}, '["a","b","c"]'),
    "frozen set of numbers": (frozenset({1}), "[1]"),
    "tuple": ((1, "a"), '[1,"a"]'),
    "dataclass": (Seat(7, "C"), '{"row":7,"letter":"C"}'),
    "model": (
        Flight(number="P1", at=NOON, price=Decimal("1.50")),
        '{"flightNumber":"P1","at":"2026-05-04T12:00:00Z","price":"1.50"}',
    ),
    "models in a list": (
        {"flights": [Flight(number="P1", at=NOON, price=Decimal(2))]},
        '{"flights":[{"flightNumber":"P1","at":"2026-05-04T12:00:00Z","price":"2"}]}',
    ),
    "keys that are not texts": ({1: "a", None: "b"}, '{"1":"a","None":"b"}'),
    "nested": ({"a": {"b": [{"c": [[]]}]}}, '{"a":{"b":[{"c":[[]]}]}}'),
    "key order": ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
}


@pytest.mark.parametrize("restarted", [False, True])
async def test_r10_r24_values(
    bench: Bench,
    session: str,
    restarted: bool,
) -> None:
    @tool(read_only=True)
    async def give(name: str) -> Any:
        return VALUES[name][0]

    calls = [call("give", {"name": name}) for name in VALUES]
    model = bench.model(calls, "Done.")
    agent = Agent("agent", provider=model, tools=[give])
    if restarted:
        gate = model.gate(2)
        async with bench.serving(agent):
            await bench.client.start("agent", "Go", session_id=session)
            await gate.reached()
            await bench.workflow().terminate()
        gate.open()
    async with bench.serving(agent):
        await bench.client.execute("agent", "Go", session_id=session)
    results = await bench.results()
    got = {name: result["content"] for name, result in zip(VALUES, results, strict=True)}
    assert got == {name: text for name, (_, text) in VALUES.items()}
    assert not any("isError" in result for result in results)
    # What the model is shown is what the record says.
    assert [message["content"] for message in model.requests[-1].messages[2:]] == list(got.values())


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> Any:
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    return value


UNHOLDABLE: dict[str, Any] = {
    "nan": float("nan"),
    "inf": {"a": [float("inf")]},
    "-inf": [float("-inf")],
    "object": object(),
    "function": len,
    "endless": endless(),
    "deep": deep(),
    "generator": (each for each in [float("nan")]),
}


async def test_r10_f18_what_json_cannot_hold(bench: Bench, session: str) -> None:
    ran: list[str] = []

    @tool(read_only=True)
    def give(name: str) -> Any:
        ran.append(name)
        return UNHOLDABLE[name]

    model = bench.model([call("give", {"name": name}) for name in UNHOLDABLE], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[give])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert result.text == "Done."
    for message in await bench.results():
        error = json.loads(message["content"])
        assert message["isError"] is True
        assert (error["kind"], error["toolName"]) == ("invalid-output", "give")
        assert "which JSON cannot hold" in error["message"]
    assert sorted(ran) == sorted(UNHOLDABLE)
    # Every call has its one event, and nothing half done is beside it.
    assert len(await bench.events("tool/result")) == len(UNHOLDABLE)


class EvilError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


class Evil:
    def __repr__(self) -> str:
        raise RuntimeError("even this fails")


async def test_exceptions_and_values_that_cannot_be_shown(bench: Bench, session: str) -> None:
    @tool(read_only=True)
    async def act(how: str) -> Any:
        if how == "group":
            raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])
        if how == "error":
            raise EvilError
        return Evil()

    model = bench.model([call("act", {"how": how}) for how in ("group", "error", "value")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[act])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert result.text == "Done."
    errors = [json.loads(message["content"]) for message in await bench.results()]
    assert [error["kind"] for error in errors] == ["execution", "execution", "invalid-output"]
    assert [error["error"] for error in errors] == [
        "ExceptionGroup",
        "EvilError",
        "ToolInvalidOutputError",
    ]


class OwnExit(BaseException):
    """What a library may raise past every ``except Exception``."""


ESCAPES = (SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration, GeneratorExit)
ESCAPES_ASYNC = (*ESCAPES[:3], OwnExit)


async def test_what_is_raised_past_every_except(bench: Bench, session: str) -> None:
    """``sys.exit()`` in a tool, say, is that call's error; worker and run live on."""
    ran: list[str] = []

    @tool(read_only=True)
    def leave(how: int) -> None:
        ran.append(ESCAPES[how].__name__)
        raise ESCAPES[how]

    @tool(read_only=True)
    async def leave_async(how: int) -> None:
        ran.append(ESCAPES_ASYNC[how].__name__)
        raise ESCAPES_ASYNC[how]

    calls = [call("leave", {"how": how}) for how in range(5)]
    calls += [call("leave_async", {"how": how}) for how in range(4)]
    model = bench.model(calls, "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[leave, leave_async])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert result.text == "Done."
    names = [escape.__name__ for escape in (*ESCAPES, *ESCAPES_ASYNC)]
    results = [json.loads(message["content"]) for message in await bench.results()]
    assert [(each["kind"], each["error"]) for each in results] == [("execution", n) for n in names]
    assert sorted(ran) == sorted(names)


@pytest.mark.parametrize("error", [KeyError("a rate that is not there"), OwnExit()])
async def test_a_validator_that_raises(bench: Bench, session: str, error: BaseException) -> None:
    """A bug in a tool's checks, which arguments of the model's bring out, is no end of the run."""

    def check(_currency: str) -> str:
        raise error

    @tool(read_only=True)
    def convert(currency: Annotated[str, AfterValidator(check)]) -> str:
        return currency

    model = bench.model([call("convert", {"currency": "XYZ"})], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[convert])):
        result = await bench.client.execute("agent", "Go", session_id=session)
    assert result.text == "Done."
    (message,) = await bench.results()
    refused = json.loads(message["content"])
    assert refused["kind"] == "validation"
    assert type(error).__name__ in refused["message"]


async def test_an_async_function_in_a_plain_wrapper(bench: Bench, session: str) -> None:
    async def inner() -> str:
        await asyncio.sleep(0)
        return "inner"

    @tool(read_only=True)
    def wrapped() -> Any:
        return inner()

    model = bench.model([call("wrapped")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[wrapped])):
        await bench.client.execute("agent", "Go", session_id=session)
    assert [message["content"] for message in await bench.results()] == ['"inner"']
