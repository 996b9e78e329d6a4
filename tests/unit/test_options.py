"""Options of agents, stores, clients and workers, and the presets of agents."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.keyring import Keyring
from perdure.checkpoint_bridge.stores.hooks import SessionHooks
from perdure.checkpoint_bridge.stores.key_value import KeyValueStore
from perdure.checkpoint_bridge.stores.retention import Retention
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.cli.options import Where
from perdure.client import connect
from perdure.codec_server import codec_app
from perdure.encryption import EncryptionCodec
from perdure.history_options import Tokens
from perdure.options import PROFILES, Limits, Profile
from perdure.plugin import PerdurePlugin
from perdure.testing import ScriptedModel
from perdure.worker import run_worker


def agent(**options: Any) -> Agent:
    return Agent("agent", **{"model": "openai/gpt-4o-mini", **options})


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
        ({"timeout": float("inf")}, "timeout"),
        ({"description": 5}, "description"),
        ({"read_only": "no"}, "read_only"),  # any text would count as true
        ({"idempotent": 1}, "idempotent"),
        ({"local": "no"}, "local"),
        ({"retry_on": ValueError}, "retry_on"),
        ({"retry_on": ("ValueError",)}, "retry_on"),
        ({"retry_on": (int,)}, "retry_on"),
        ({"max_result_chars": 1.5}, "max_result_chars"),
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
        ({"limits": 0}, "limits"),
        ({"tools": ["look"]}, "tools"),
        ({"tools": 5}, "tools"),
        ({"provider": "openai"}, "provider"),
        ({"provider": ScriptedModel(["Hi"]), "model": 5}, "model"),
        ({"settings": [("temperature", 1)]}, "settings"),
        ({"settings": {5: 1}}, "settings"),
        ({"profile": ["dsh"]}, "profile"),
        ({"approval_ttl": "60"}, "approval_ttl"),
        ({"approval_ttl": True}, "approval_ttl"),
        ({"approval_ttl": float("inf")}, "approval_ttl"),
        ({"on_turn_stopping": choices}, "on_turn_stopping"),
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


async def _no_number(_message: object) -> int:
    return 1


@pytest.mark.parametrize("value", [5, _no_number])
def test_what_counts_tokens_is_a_plain_function(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^count is a plain function of a message") as no:
        Tokens(10, count=value)
    assert no.value.field == "count"


def test_age_is_a_number_of_days() -> None:
    for value in (0, True, "90", float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match="max_age_days is a number of days above 0"):
            Retention(max_age_days=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["on_session_created", "on_flush", "on_session_disposed"])
@pytest.mark.parametrize("value", [5, choices])
def test_hooks_are_async_functions(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is an async function of") as refused:
        SessionHooks(**{name: value})
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention", 5),
        ("hooks", 5),
        ("hooks", None),
        ("entries", 5),
        ("create", "later"),
        ("encryption", "key"),
    ],
)
def test_options_of_a_store_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is .*\\.$") as refused:
        SqlStore("sqlite://", **{name: value})
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_queue", ""),
        ("task_queue", " "),
        ("task_queue", 5),
        ("workflow_id_prefix", 5),
        ("temporal", 5),
        ("store", 5),
    ],
)
async def test_a_client_is_not_connected_with_what_is_wrong(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is .*\\.$") as refused:
        await connect(**{"store": "sqlite://", name: value})
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_queue", ""),
        ("temporal", 5),
        ("store", 5),
        ("agents", [5]),
        ("agents", agent()),
        ("agents", 5),
    ],
)
async def test_a_worker_does_not_start_with_what_is_wrong(name: str, value: Any) -> None:
    given: dict[str, Any] = {"agents": [agent()], "store": "sqlite://", name: value}
    with pytest.raises(ConfigurationError, match=f"^{name} is .*\\.$") as refused:
        await run_worker(given.pop("agents"), **given)
    assert refused.value.field == name


@pytest.mark.parametrize(("name", "value"), [("agents", [5]), ("agents", 5), ("store", 5)])
def test_options_of_the_plugin_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is .*\\.$") as refused:
        PerdurePlugin(**{name: value})
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("codec", 5), ("token", ""), ("origin", "http://localhost"), ("namespaces", "default")],
)
def test_options_of_a_codec_server_are_checked(name: str, value: Any) -> None:
    codec = EncryptionCodec(Keyring({"one": bytes(32)}))
    given = {"codec": codec, {"origin": "origins"}.get(name, name): value}
    with pytest.raises(ConfigurationError, match=f"^{name} is .*\\.$") as refused:
        codec_app(**given)
    assert refused.value.field == name


def test_a_key_value_store_is_made_of_functions_and_a_keyring_of_keys() -> None:
    given: dict[str, Any] = {"get": _asks, "put": _asks, "delete": _asks}
    for name in given:
        with pytest.raises(ConfigurationError, match=rf"^{name} is an async function, not 5\.$"):
            KeyValueStore(**{**given, name: 5})
    with pytest.raises(ConfigurationError, match="made of keys by id, not of bytes"):
        Keyring(bytes(32))  # type: ignore[arg-type]


def test_a_script_is_a_list_of_turns() -> None:
    with pytest.raises(ConfigurationError, match=r"^turns is a list of turns"):
        ScriptedModel("Hello")


def test_a_command_needs_the_name_of_a_task_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"^--task-queue is a text that is not empty"):
        Where("sqlite:///perdure.db", task_queue="")
    monkeypatch.setenv("PERDURE_TASK_QUEUE", "")
    assert Where("sqlite:///perdure.db").task_queue == "perdure"
