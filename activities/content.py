"""Values on their way into the log: what tools return, and what is too large to be inline."""

from __future__ import annotations

import base64
import math
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perdure.activities.wire import PREVIEW_LENGTH, Content
from perdure.checkpoint_bridge.format.messages import text_of
from perdure.checkpoint_bridge.format.stable_json import MAX_NESTING
from perdure.checkpoint_bridge.log.events import INLINE_LIMIT, dump


class NotJsonError(ValueError):
    """A tool returned what the log cannot hold."""


def to_json_value(value: Any) -> Any:
    """Plain JSON of what a tool returned.

    Pydantic decides about models, dates, decimals, UUIDs, enums, dataclasses and the like;
    bytes become ``{"$bytes": base64}`` (format page, *Message*); ``None`` stays ``null``.

    Raises:
        NotJsonError: NaN, infinities, endless nesting and types that pydantic does not know.
    """
    try:
        plain = to_jsonable_python(_with_bytes(value, 0), inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        msg = f"the tool returned {type(value).__name__}, which JSON cannot hold: {reason}"
        raise NotJsonError(msg) from error
    _check_numbers(plain)
    return plain


def _with_bytes(value: Any, depth: int) -> Any:
    if depth > MAX_NESTING:
        msg = "nested too deeply"
        raise ValueError(msg)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, BaseModel):
        return _with_bytes(value.model_dump(mode="python", by_alias=True), depth + 1)
    if isinstance(value, dict):
        return {key: _with_bytes(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_bytes(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        # A set has no order; the same set must give the same text at every attempt.
        items = [_with_bytes(item, depth + 1) for item in value]
        return sorted(items, key=lambda item: dump(to_jsonable_python(item)))
    return value


def _check_numbers(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        msg = f"the tool returned {value!r}, which JSON cannot hold"
        raise NotJsonError(msg)
    if isinstance(value, dict):
        for item in value.values():
            _check_numbers(item)
    elif isinstance(value, list):
        for item in value:
            _check_numbers(item)


def content_of(message: dict[str, Any], ref: str | None, size: int) -> Content:
    """A message as an activity's result: itself when it is small, else where it is."""
    if ref is None and size <= INLINE_LIMIT:
        return Content(message=message)
    return Content(ref=ref, size=size, preview=preview(text_of(message)))


def preview(text: str) -> str:
    """The start of a text, for people."""
    return text if len(text) <= PREVIEW_LENGTH else text[: PREVIEW_LENGTH - 1] + "…"
