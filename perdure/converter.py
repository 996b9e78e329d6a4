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
)

from perdure.activities.failures import to_failure
from perdure.checkpoint_bridge.errors import ConfigurationError, PerdureError
from perdure.checkpoint_bridge.format.stable_json import MAX_NESTING
from perdure.checkpoint_bridge.keyring import missing_key
from perdure.encryption import ENCODING, key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.api.common.v1 import Payload

_SHOWN = 50


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


class _PayloadConverter(CompositePayloadConverter):
    """Fails what it can never read, instead of leaving it to be tried again."""

    def __init__(self) -> None:
        default = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*default, _RefusesEncrypted())

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """Decode values.

        Raises:
            ApplicationError: one cannot be read by anybody who tries again.
            EncryptionKeyError: one is encrypted with a key that is not here.
        """
        try:
            return super().from_payloads(payloads, type_hints)
        except PerdureError:
            raise
        except Exception:
            # What can be read and only is not of the type that we expect is a mistake of ours,
            # which another version of the worker may not make. So each is read without its type.
            for payload in payloads:
                if self._may_have_a_codec(payload):
                    continue
                try:
                    super().from_payloads([payload])
                except Exception as error:
                    raise to_failure(_unreadable(payload, error)) from error
            raise

    def _may_have_a_codec(self, payload: Payload) -> bool:
        """Whether somebody's codec made it, which another worker may have."""
        encoding = payload.metadata.get("encoding")
        return bool(encoding) and encoding not in self.converters


def _unreadable(payload: Payload, error: BaseException) -> ConfigurationError:
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, RecursionError):
        why = f"is nested too deeply; at most {MAX_NESTING} levels"
    else:
        encoding = payload.metadata.get("encoding", b"").decode("utf-8", "replace")
        why = f"cannot be read as {encoding[:_SHOWN]!r}"
        if isinstance(error, ValueError):
            why += f": {error}"
    return ConfigurationError(f"What was sent {why}.", field="input")


CONVERTER = DataConverter(payload_converter_class=_PayloadConverter)
"""The converter of our own clients and workers. It encrypts nothing."""
