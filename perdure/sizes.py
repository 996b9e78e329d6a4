"""How much a caller may put into a request to Temporal, which ends at 2 MB with an odd error."""

from __future__ import annotations

import json
from typing import Any

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.stable_json import MAX_NESTING, is_deeper

VALUE_LIMIT = 512 * 1024
"""Bytes of each value that travels in a request: ``business_state``, ``metadata``, a note."""


def json_text(name: str, value: Any) -> str:
    """The JSON of a caller's value.

    Raises:
        ConfigurationError: it is no JSON, or nested too deep; ``field`` names it.
    """
    if is_deeper(value):
        msg = f"{name} is nested deeper than {MAX_NESTING} levels."
        raise ConfigurationError(msg, field=name)
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        msg = f"{name} is not JSON: {error}"
        raise ConfigurationError(msg, field=name) from error


def bounded(name: str, value: Any) -> Any:
    """Give back a value that is small enough to travel in a request.

    Raises:
        ConfigurationError: it is not, or no JSON; ``field`` names it.
    """
    size = len(json_text(name, value))
    if size > VALUE_LIMIT:
        msg = f"{name} is {size:,} bytes of JSON; at most {VALUE_LIMIT:,} can be sent."
        raise ConfigurationError(msg, field=name)
    return value
