"""From ``"openai/gpt-4o-mini"`` to the provider that answers for it.

Names are checked when an agent is built, without importing an HTTP client; keys and addresses
are read when a call is made, so that an agent can be built, listed and inspected without them.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from perdure.activities.providers.base import ModelProvider

__all__ = ["aclose_providers", "known_prefixes", "parse_model", "provider_for"]

_PROVIDERS = {
    "anthropic": ("perdure.activities.providers.anthropic", "AnthropicProvider"),
    "openai": ("perdure.activities.providers.openai", "OpenAIProvider"),
}
_instances: dict[str, ModelProvider] = {}
_lock = threading.Lock()


def known_prefixes() -> list[str]:
    """The prefixes that :func:`parse_model` accepts, sorted."""
    return sorted(_PROVIDERS)


def parse_model(spec: str) -> tuple[str, str]:
    """Split ``<provider>/<model>`` at its first slash; the model's name may hold more of them.

    Raises:
        ConfigurationError: ``field`` is ``model``; the code tells a spec of the wrong form
            (``LOUSHO_PROVIDER_SPEC_INVALID``) from a provider that nobody knows
            (``LOUSHO_PROVIDER_UNKNOWN``).
    """
    known = ", ".join(known_prefixes())
    prefix, slash, model = spec.partition("/") if isinstance(spec, str) else ("", "", "")
    if not slash or not prefix or not model or spec != spec.strip() or model != model.strip():
        raise ConfigurationError(
            f"model {spec!r} is not of the form <provider>/<model>, such as openai/gpt-4o-mini",
            field="model",
            code="LOUSHO_PROVIDER_SPEC_INVALID",
            hint=f"Write the provider ({known}), a slash and the model's name.",
        )
    if prefix not in _PROVIDERS:
        raise ConfigurationError(
            f"model {spec!r} names the unknown provider {prefix!r}; known: {known}",
            field="model",
            code="LOUSHO_PROVIDER_UNKNOWN",
            hint="Use a known provider, or give the agent a provider object with provider=.",
        )
    return prefix, model


def provider_for(model_spec: str) -> ModelProvider:
    """The process's provider for a model spec; the same object for every spec of a prefix.

    It is safe to share between event loops: connections are pooled per loop inside it.

    Raises:
        ConfigurationError: see :func:`parse_model`.
    """
    prefix, _ = parse_model(model_spec)
    with _lock:
        provider = _instances.get(prefix)
        if provider is None:
            module, name = _PROVIDERS[prefix]
            made: ModelProvider = getattr(importlib.import_module(module), name)()
            _instances[prefix] = provider = made
        return provider


async def aclose_providers() -> None:
    """Close the connections that the shared providers hold on the running event loop."""
    with _lock:
        providers = list(_instances.values())
    for provider in providers:
        aclose = getattr(provider, "aclose", None)
        if aclose is not None:
            await aclose()
