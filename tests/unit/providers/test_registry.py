from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from perdure.activities.providers.base import ModelProvider, ModelResponse
from perdure.activities.providers.registry import known_prefixes, parse_model, provider_for
from perdure.checkpoint_bridge.errors import ConfigurationError


def test_a_spec_is_split_at_its_first_slash() -> None:
    assert parse_model("openai/gpt-4o-mini") == ("openai", "gpt-4o-mini")
    assert parse_model("openai/meta/llama-3") == ("openai", "meta/llama-3")
    assert known_prefixes() == ["anthropic", "openai"]


@pytest.mark.parametrize("spec", ["", "gpt-4o", "/x", "openai/", "openai/ x", " openai/x", None, 7])
def test_a_spec_of_the_wrong_form_says_what_would_be_right(spec: Any) -> None:
    with pytest.raises(ConfigurationError, match="<provider>/<model>") as caught:
        parse_model(spec)
    assert caught.value.field == "model"
    assert caught.value.code == "LOUSHO_PROVIDER_SPEC_INVALID"


def test_an_unknown_provider_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="known: anthropic, openai") as caught:
        provider_for("opanai/gpt-4o")
    assert caught.value.field == "model"
    assert caught.value.code == "LOUSHO_PROVIDER_UNKNOWN"


def test_one_provider_per_prefix_and_process() -> None:
    first = provider_for("openai/a")
    assert isinstance(first, ModelProvider)
    assert provider_for("openai/b") is first
    assert provider_for("anthropic/a") is not first


def test_checking_a_spec_needs_no_http_client() -> None:
    code = (
        "import sys, perdure.activities.providers.registry as r; r.parse_model('openai/x');"
        "sys.exit('httpx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_message_of_a_response_has_no_empty_keys() -> None:
    assert ModelResponse().message() == {"role": "assistant", "content": ""}
    calls = [{"id": "a"}]
    reasoning = [{"text": "t"}]
    assert ModelResponse("x", calls, reasoning=reasoning).message() == {
        "role": "assistant",
        "content": "x",
        "toolCalls": calls,
        "reasoning": reasoning,
    }
