"""Temporal's data converter as our own clients and workers have it: it says what it cannot read.

Where temporalio's would say that a payload could not be decoded, and would have a workflow try
that again for ever, this one names what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
)

from perdure.activities.failures import to_failure
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.stable_json import MAX_NESTING
from perdure.checkpoint_bridge.keyring import missing_key
from perdure.encryption import ENCODING, key_of

if TYPE_CHECKING:
    from temporalio.api.common.v1 import Payload


class _RefusesEncrypted(EncodingPayloadConverter):
    """Names the key that is missing, where the default converter knows only the encoding."""

    @property
    def encoding(self) -> str:
        return ENCODING.decode()

    def to_payload(self, value: Any) -> Payload | None:  # noqa: ARG002 - it makes none
        return None

    def from_payload(
        self,
        payload: Payload,
        type_hint: type | None = None,  # noqa: ARG002 - the base class's argument
    ) -> Any:
        raise missing_key(key_of(payload))


class _Json(JSONPlainPayloadConverter):
    """Fails what it can never read, instead of leaving it to be tried again."""

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        try:
            return super().from_payload(payload, type_hint)
        except RuntimeError as error:
            why = "is not JSON"
            if isinstance(error, RecursionError):
                why = f"is nested deeper than {MAX_NESTING} levels"
            msg = f"What was sent {why}."
            raise to_failure(ConfigurationError(msg, field="input")) from error


class _PayloadConverter(CompositePayloadConverter):
    def __init__(self) -> None:
        ours = {each.encoding: each for each in (_Json(), _RefusesEncrypted())}
        default = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*{**{each.encoding: each for each in default}, **ours}.values())


PLAIN = DataConverter(payload_converter_class=_PayloadConverter)
"""temporalio's default, for clients of ours; it costs nothing until it refuses."""
