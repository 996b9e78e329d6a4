"""Encryption keys by id: one seals what is new, any of them opens what is there.

AES-256-GCM with a random nonce of 96 bits for each value, so one key is good for some four
billion values (NIST SP 800-38D); rotate it before.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from perdure.checkpoint_bridge.errors import ConfigurationError, EncryptionKeyError

if TYPE_CHECKING:
    from typing import Self

KEYS_VARIABLE = "PERDURE_ENCRYPTION_KEYS"
"""Environment variable of the keys: ``ID:BASE64,ID:BASE64…``; the first one is active."""

KEY_LENGTH = 32
"""Bytes of a key."""

_NONCE_LENGTH = 12
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_FORM = "ID:BASE64 of 32 bytes, several with commas between them"
_EXTRA_HINT = "Install it with: pip install 'perdure[encryption]'"


class Keyring:
    """Keys by id. The active one encrypts; what any other one encrypted can still be read.

    Args:
        keys: 32 bytes by id. An id is 1 to 64 of ``A-Z a-z 0-9 _ . -``, and no secret: it is kept
            beside what its key encrypts.
        active: the id of the key that encrypts; default: the first one.

    Raises:
        ConfigurationError: there is no key, a key has another length, an id cannot be one, or the
            package ``cryptography`` is not installed.
    """

    def __init__(self, keys: Mapping[str, bytes], *, active: str | None = None) -> None:
        if not isinstance(keys, Mapping):
            raise _wrong(
                f"An encryption keyring is made of keys by id, not of {type(keys).__name__}."
            )
        if not keys:
            raise _wrong("An encryption keyring needs at least one key.")
        self._ciphers = {key_id: _cipher(key_id, key) for key_id, key in keys.items()}
        self._keys = dict(keys)
        self.active = next(iter(keys)) if active is None else active
        """The id of the key that encrypts."""
        if self.active not in keys:
            raise _wrong(f"The active key {self.active!r} is not among the keys.")

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.ids)}; active: {self.active})"  # never the keys

    @classmethod
    def parse(cls, text: str) -> Self:
        """Keys of ``ID:BASE64,ID:BASE64…``; the first one is active.

        Raises:
            ConfigurationError: the text has another form. The message shows no key.
        """
        keys: dict[str, bytes] = {}
        for number, part in enumerate(text.split(","), start=1):
            key_id, colon, encoded = part.strip().partition(":")
            if not colon:
                raise _wrong(f"Encryption key {number} is not of the form {_FORM}.")
            if key_id in keys:
                raise _wrong(f"Two encryption keys have the id {key_id!r}.")
            try:
                plain = encoded.translate(_STANDARD_ALPHABET)
                keys[key_id] = base64.b64decode(plain, validate=True)
            except (binascii.Error, ValueError) as error:
                raise _wrong(f"Encryption key {number} is not {_FORM}.") from error
        return cls(keys)

    @classmethod
    def from_environment(cls) -> Self | None:
        """The keys of ``PERDURE_ENCRYPTION_KEYS``; ``None`` when it is not set, or empty.

        Raises:
            ConfigurationError: the variable has another form.
        """
        text = os.environ.get(KEYS_VARIABLE, "")
        return cls.parse(text) if text.strip() else None

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        return tuple(self._ciphers)

    def key(self, key_id: str) -> bytes:
        """A key itself, for whoever derives others from it.

        Raises:
            EncryptionKeyError: there is no such key.
        """
        self._known(key_id)
        return self._keys[key_id]

    def seal(self, plain: bytes, purpose: bytes) -> bytes:
        """Encrypt with the active key: nonce, ciphertext and tag in one."""
        nonce = secrets.token_bytes(_NONCE_LENGTH)
        sealed: bytes = self._ciphers[self.active].encrypt(nonce, plain, purpose)
        return nonce + sealed

    def open(self, key_id: str, sealed: bytes, purpose: bytes) -> bytes:
        """Decrypt what :meth:`seal` gave for the same purpose.

        Raises:
            EncryptionKeyError: the key is not here, is another one of this id, or the bytes are
                not what it sealed.
        """
        from cryptography.exceptions import InvalidTag

        cipher = self._known(key_id)
        try:
            plain: bytes = cipher.decrypt(sealed[:_NONCE_LENGTH], sealed[_NONCE_LENGTH:], purpose)
        except (InvalidTag, ValueError) as error:
            msg = (
                f"What was encrypted with the key {key_id!r} does not decrypt: the key of that id "
                "is another one here, or the bytes were changed."
            )
            raise EncryptionKeyError(msg, key_id=key_id) from error
        return plain

    def _known(self, key_id: str) -> Any:
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise missing_key(key_id, self.ids)
        return cipher


Encryption = Keyring | Literal[False] | None
"""How ``encryption=`` is given: keys; ``None`` for those of the environment; ``False`` for none."""


def resolve(encryption: Encryption) -> Keyring | None:
    """The keys that an ``encryption=`` argument means.

    Raises:
        ConfigurationError: it is something else, or the environment's keys have another form.
    """
    given: Any = encryption
    if isinstance(given, Keyring):
        return given
    if given is None:
        return Keyring.from_environment()
    if given is not False:
        msg = f"encryption is a Keyring, False or None, not {type(given).__name__}."
        raise ConfigurationError(msg, field="encryption")
    return None


def missing_key(key_id: str, known: tuple[str, ...] = ()) -> EncryptionKeyError:
    """The error of whoever reads what a key encrypted that is not here."""
    here = f"the keys here are: {', '.join(known)}" if known else "there are no keys here"
    msg = f"This was encrypted with the key {key_id!r}; {here}."
    return EncryptionKeyError(msg, key_id=key_id)


def _cipher(key_id: str, key: bytes) -> Any:
    if not isinstance(key_id, str) or not _ID.fullmatch(key_id):
        raise _wrong(f"{key_id!r} is not a key's id: 1 to 64 of the characters A-Z a-z 0-9 _ . -.")
    if not isinstance(key, bytes) or len(key) != KEY_LENGTH:
        size = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise _wrong(f"The encryption key {key_id!r} is {size}; it must be {KEY_LENGTH} bytes.")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        msg = "Encryption needs the package cryptography, which is not installed."
        raise ConfigurationError(msg, field="encryption", hint=_EXTRA_HINT) from error
    return AESGCM(key)


def _wrong(message: str) -> ConfigurationError:
    hint = f"A new key: openssl rand -base64 32; {KEYS_VARIABLE}=k1:THE_KEY"
    return ConfigurationError(message, field="encryption", hint=hint)
