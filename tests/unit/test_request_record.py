"""What the log remembers of requests to a model."""

from __future__ import annotations

import pytest

from perdure.checkpoint_bridge.log.events import dump
from perdure.checkpoint_bridge.log.request_record import config_text


class Somebody:
    """Whoever brings something to a request."""


def test_what_an_agent_brings_is_written_out_again_where_it_has_changed() -> None:
    agent, other = Somebody(), Somebody()
    config = {"settings": {"stop": ["a"]}, "maxResultChars": 1}
    first = config_text(agent, config)
    assert first == dump(config)
    assert config_text(agent, {**config, "settings": {"stop": ["a"]}}) is first
    # Also what was changed in its place, and never what another agent brings.
    config["settings"]["stop"].append("b")  # type: ignore[index]
    assert config_text(agent, config) == dump(config) != first
    assert config_text(other, {"maxResultChars": True}) == '{"maxResultChars":true}'


def test_what_no_json_can_say_is_refused_each_time() -> None:
    agent = Somebody()
    for _ in range(2):
        with pytest.raises(ValueError, match="not JSON compliant"):
            config_text(agent, {"settings": {"temperature": float("nan")}})
