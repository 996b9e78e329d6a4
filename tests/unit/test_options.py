"""Options of an agent's turns, and the presets: section 3 of the features."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.stores.retention import Retention
from perdure.options import PROFILES, Limits, Profile


def agent(**options: Any) -> Agent:
    return Agent("agent", model="openai/gpt-4o-mini", **options)


def choices(made: Agent) -> tuple[Any, ...]:
    names = ("recovery", "on_crash", "model_recovery", "turn_policy", "history_policy")
    return tuple(getattr(made, name) for name in names)


@pytest.mark.parametrize(
    ("profile", "chosen"),
    [
        ("lousho", ("rerun", "continue", "retry", "reject", "keep")),
        ("dsh", ("ambiguous", "interrupt", "retry", "reject", "keep")),
        ("brain", ("ambiguous", "fail", "once", "reject", "keep")),
        ("faden", ("ambiguous", "interrupt", "once", "reject", "exclude_unfinished")),
    ],
)
def test_profiles_set_defaults_and_each_option_can_be_set_alone(
    profile: str, chosen: tuple[Any, ...]
) -> None:
    assert choices(agent(profile=profile)) == chosen
    own: dict[str, Any] = {
        "recovery": "ask",
        "on_crash": "continue",
        "model_recovery": "retry",
        "turn_policy": "wait",
        "history_policy": "keep",
    }
    for at, (name, value) in enumerate(own.items()):
        expected = [*chosen]
        expected[at] = value
        assert choices(agent(profile=profile, **{name: value})) == tuple(expected)
    assert choices(agent(profile=Profile(**own))) == tuple(own.values())


def test_the_default_is_the_profile_of_the_documented_format() -> None:
    assert choices(agent()) == choices(agent(profile="lousho"))
    assert set(PROFILES) == {"lousho", "dsh", "brain", "faden"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"profile": "other"}, "profile"),
        ({"recovery": "never"}, "recovery"),
        ({"on_crash": "explode"}, "on_crash"),
        ({"model_recovery": "twice"}, "model_recovery"),
        ({"turn_policy": "steer"}, "turn_policy"),
    ],
)
def test_what_is_no_choice_is_refused_in_one_line(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field} is one of .*, not '.*'\\.$") as caught:
        agent(**options)
    assert caught.value.field == field


@pytest.mark.parametrize("value", [-1, 1.5, True, "many", float("nan")])
def test_limits_are_numbers(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_model_calls is a whole number from 0"):
        Limits(max_model_calls=value)


@pytest.mark.parametrize("value", [-0.1, True, "long", float("nan"), float("inf")])
def test_limits_of_time_are_numbers(value: Any) -> None:
    for name in ("max_turn_seconds", "max_tool_seconds"):
        with pytest.raises(ConfigurationError, match=f"{name} is a number from 0"):
            Limits(**{name: value})


def test_a_tool_has_its_own_timeout_or_the_limit() -> None:
    assert Limits().tool_seconds(600.0) == 600.0
    assert Limits(max_tool_seconds=0).tool_seconds(600.0) == 600.0
    assert Limits(max_tool_seconds=5).tool_seconds(600.0) == 5
    assert Limits(max_tool_seconds=5).tool_seconds(1.0) == 1.0


async def _asks(_arguments: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"needs_approval": "always"}, "needs_approval"),
        ({"needs_approval": _asks}, "needs_approval"),  # its coroutine would always count as yes
        ({"timeout": "5"}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"name": "two words"}, "tools"),
        ({"name": ""}, "tools"),
    ],
)
def test_options_of_a_tool_are_checked(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        tool(**options)(lambda: "")
    assert refused.value.field == field
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limits": {"max_model_calls": 3}}, "limits"),
        ({"instructions": None}, "instructions"),
        ({"tools": ["look"]}, "tools"),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        agent(**options)
    assert refused.value.field == field


def test_an_agent_among_the_tools_is_told_how_to_become_one() -> None:
    with pytest.raises(ConfigurationError, match="is no tool") as refused:
        agent(tools=[Agent("below", model="openai/gpt-4o-mini")])
    assert "as_tool()" in refused.value.hint


@pytest.mark.parametrize("value", ["50", True, 1.5])
def test_retention_is_in_numbers(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_sessions"):
        Retention(max_sessions=value)
