"""Encryption of everything that enters Temporal: a payload codec around the user's own one.

Temporal, its UI and its database then hold ciphertext of inputs, results, failures, signals,
updates, query answers, summaries and details. Ids, names of types, task queues, search
attributes and times stay as they are (``docs/security.md`` has the list).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
    WithSerializationContext,
)
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin

from perdure.checkpoint_bridge.errors import ConfigurationError, EncryptionKeyError
from perdure.checkpoint_bridge.keyring import Encryption, Keyring, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.converter import SerializationContext

__all__ = [
    "Encryption",
    "EncryptionCodec",
    "Keyring",
    "encrypting",
    "is_private",
    "key_of",
    "resolve",
    "with_encryption",
]

ENCODING = b"binary/encrypted"
"""Marks an encrypted payload, as in Temporal's own samples."""

KEY_ID = "encryption-key-id"
"""The metadata key under which a payload names its key, also as in the samples."""

_PURPOSE = b"perdure/payload/1"
_PROBE = "probe"


class EncryptionCodec(PayloadCodec):
    """Encrypts whole payloads, metadata included, with the keyring's active key.

    What it has not encrypted passes through on the way back: values from before encryption was
    turned on, and signals that somebody sends in clear.
    """

    def __init__(self, keys: Keyring) -> None:
        self.keys = keys

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads with the active key."""
        metadata = {"encoding": ENCODING, KEY_ID: self.keys.active.encode()}
        return [
            Payload(
                metadata=metadata,
                data=self.keys.seal(payload.SerializeToString(deterministic=True), _PURPOSE),
            )
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads with the keys that they name.

        Raises:
            EncryptionKeyError: a payload's key is not here, or is another one.
        """
        return [self._decode(payload) for payload in payloads]

    def _decode(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING or KEY_ID not in payload.metadata:
            return payload
        plain = self.keys.open(key_of(payload), payload.data, _PURPOSE)
        return Payload.FromString(plain)


class _Chain(PayloadCodec, WithSerializationContext):
    """A user's own codec, and encryption around it."""

    def __init__(self, inner: PayloadCodec, outer: EncryptionCodec) -> None:
        self._inner = inner
        self.outer = outer

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self.outer.encode(await self._inner.encode(payloads))

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self._inner.decode(await self.outer.decode(payloads))

    def with_context(self, context: SerializationContext) -> _Chain:
        if not isinstance(self._inner, WithSerializationContext):
            return self
        return _Chain(self._inner.with_context(context), self.outer)


def with_encryption(converter: DataConverter, keys: Keyring) -> DataConverter:
    """A data converter with encryption around whatever codec it has; nothing else is replaced.

    Failures get their message and stack trace encoded: by temporalio's own converter where the
    default one was, by the user's own where there is one.

    Raises:
        ConfigurationError: the user's own failure converter leaves messages in clear.
    """
    codec = converter.payload_codec
    if is_encrypting(codec):
        return converter
    encryption = EncryptionCodec(keys)
    chained = encryption if codec is None else _Chain(codec, encryption)
    failures = converter.failure_converter_class
    if failures is DefaultFailureConverter:
        failures = DefaultFailureConverterWithEncodedAttributes
    made = dataclasses.replace(converter, payload_codec=chained, failure_converter_class=failures)
    _check_failures(made)
    return made


def is_encrypting(codec: PayloadCodec | None) -> bool:
    """Whether a codec is ours, alone or around another one."""
    return isinstance(codec, (EncryptionCodec, _Chain))


def is_private(converter: DataConverter) -> bool:
    """Whether Temporal is not meant to read what it is given: there is a codec, ours or not."""
    return converter.payload_codec is not None


def encrypting(client: Client, keys: Keyring | None) -> Client:
    """The same client with encryption around the codec that it has, its plugins' included.

    Raises:
        ConfigurationError: failures would stay in clear.
    """
    if keys is None or is_encrypting(client.data_converter.payload_codec):
        return client
    with_encryption(client.data_converter, keys)  # its error, before anything is made
    config = client.config()
    # As the last plugin: what the others make of the converter stays.
    config["plugins"] = [*config["plugins"], EncryptionPlugin(keys)]
    return Client(**config)


class EncryptionPlugin(SimplePlugin):
    """Puts encryption into a client (and so into its workers) or into a replayer."""

    def __init__(self, keys: Keyring) -> None:
        super().__init__(
            "perdure.EncryptionPlugin",
            data_converter=lambda given: with_encryption(given or DataConverter.default, keys),
        )


def key_of(payload: Payload) -> str:
    """The id of the key that a payload is encrypted with."""
    return payload.metadata[KEY_ID].decode("utf-8", "replace")


def _check_failures(converter: DataConverter) -> None:
    """Find out whether a failure's message is among what the codec gets.

    Raises:
        ConfigurationError: it is not.
    """
    failure = Failure()
    converter.failure_converter.to_failure(
        ApplicationError(_PROBE), converter.payload_converter, failure
    )
    if _PROBE in failure.message or _PROBE in failure.stack_trace:
        name = converter.failure_converter_class.__name__
        msg = f"The failure converter {name} leaves messages of errors unencrypted."
        hint = "Build it on DefaultFailureConverterWithEncodedAttributes, or leave it out."
        raise ConfigurationError(msg, field="encryption", hint=hint)


def key_error(error: BaseException | None) -> EncryptionKeyError | None:
    """The error about a key that another error came of, if there is one."""
    while error is not None:
        if isinstance(error, EncryptionKeyError):
            return error
        error = error.__cause__ or error.__context__
    return None
