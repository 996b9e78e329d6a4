"""Encryption at rest: the types of the columns that hold content, and of those that hold digests.

This is the one place where content is encrypted on its way into a row and decrypted on its way
out. A database that is opened with keys carries a :class:`Cipher` on its dialect; without one both
types are plain text, and nothing is called for a value.

A digest names content, so whoever has a guess of the content could compare digests. In a store
that was made with keys, digests are therefore enciphered too, each to one other digest, with a key
that never changes and lies in the store sealed by each key of the ring. A store that was begun in
clear keeps plain digests.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from typing import TYPE_CHECKING, Any

from sqlalchemy import String, Text, column, func, insert, select, table
from sqlalchemy.types import TypeDecorator

from perdure.checkpoint_bridge.keyring import missing_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Dialect

    from perdure.checkpoint_bridge.keyring import Keyring

__all__ = [
    "Cipher",
    "DigestText",
    "SealedText",
    "is_sealed",
    "refuse_sealed",
    "refuse_sealed_text",
]

_ATTRIBUTE = "perdure_cipher"
_keys = table("perdure_keys", column("key_id", String), column("sealed", Text))
_logs = table("perdure_logs")
_MARK = "enc:1:"
"""Before a sealed text: ``enc:1:KEY:BASE64``. JSON never begins so."""
_PURPOSE = b"perdure/store/1"
_DIGEST_PURPOSE = b"perdure/store/digests/1"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Cipher:
    """What seals and opens the values of one database."""

    def __init__(self, keys: Keyring) -> None:
        self._keys = keys
        self._digest_key: bytes | None = None

    def attach(self, dialect: Dialect) -> None:
        """Let the columns of a database use this. Before its first statement."""
        setattr(dialect, _ATTRIBUTE, self)

    def seal(self, value: str) -> str:
        """Encrypt a text with the active key."""
        return self._seal(value.encode(), _PURPOSE)

    def open(self, value: str) -> str:
        """Decrypt what :meth:`seal` gave; a text that was stored in clear stays as it is.

        Raises:
            EncryptionKeyError: its key is not here, or is another one.
        """
        return self._open(value, _PURPOSE).decode() if value.startswith(_MARK) else value

    def _seal(self, plain: bytes, purpose: bytes) -> str:
        sealed = base64.b64encode(self._keys.seal(plain, purpose)).decode("ascii")
        return f"{_MARK}{self._keys.active}:{sealed}"

    def _open(self, value: str, purpose: bytes) -> bytes:
        key_id, _, sealed = value[len(_MARK) :].partition(":")
        return self._keys.open(key_id, base64.b64decode(sealed), purpose)

    def hide(self, digest: str) -> str:
        """The form in which a digest is stored."""
        return self._digest(digest, hide=True)

    def find(self, digest: str) -> str:
        """The digest that :meth:`hide` was given."""
        return self._digest(digest, hide=False)

    def _digest(self, digest: str, *, hide: bool) -> str:
        if self._digest_key is None or not _DIGEST.fullmatch(digest):
            return digest
        from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher, algorithms, modes

        # Two blocks of what looks random already, one to one: nothing that a mode would add.
        mode = modes.ECB()  # noqa: S305 - for the reason above
        block = BlockCipher(algorithms.AES(self._digest_key), mode)
        turn = block.encryptor() if hide else block.decryptor()
        return (turn.update(bytes.fromhex(digest)) + turn.finalize()).hex()

    def unlock(self, connection: Connection) -> None:
        """Check the store's keys, and take the key of its digests; the first time, make it.

        Raises:
            EncryptionKeyError: the store needs a key that is not here, or is another one.
        """
        sealed = _sealed_keys(connection)
        missing = sorted(set(sealed) - set(self._keys.ids))
        if missing:
            raise missing_key(missing[0], self._keys.ids)
        for value in sealed.values():
            self._take(self._open(value, _DIGEST_PURPOSE))
        if self._keys.active in sealed:
            return
        if not sealed:
            begun = connection.scalar(select(func.count()).select_from(_logs))
            self._digest_key = None if begun else secrets.token_bytes(32)
        kept = {"digests": None if self._digest_key is None else self._digest_key.hex()}
        value = self._seal(json.dumps(kept).encode(), _DIGEST_PURPOSE)
        connection.execute(insert(_keys).values(key_id=self._keys.active, sealed=value))

    def is_known(self, connection: Connection) -> bool:
        """Whether :meth:`unlock` would write nothing."""
        return self._keys.active in _sealed_keys(connection)

    def _take(self, plain: bytes) -> None:
        kept = json.loads(plain)["digests"]
        self._digest_key = None if kept is None else bytes.fromhex(kept)


def _sealed_keys(connection: Connection) -> dict[str, str]:
    rows = connection.execute(select(_keys.c.key_id, _keys.c.sealed).order_by(_keys.c.key_id))
    return {row.key_id: row.sealed for row in rows}


def refuse_sealed(connection: Connection) -> None:
    """Raise when a store that is opened without keys needs some.

    Raises:
        EncryptionKeyError: it does.
    """
    found = list(_sealed_keys(connection))
    if found:
        raise missing_key(found[0])


def refuse_sealed_text(value: str) -> None:
    """Raise when a text that was read without keys is sealed: another process has keys meanwhile.

    Raises:
        EncryptionKeyError: it is.
    """
    if value.startswith(_MARK):
        raise missing_key(value[len(_MARK) :].partition(":")[0])


def is_sealed(connection: Connection) -> bool:
    """Whether content is encrypted here, so that no query can look into it."""
    return _cipher(connection.dialect) is not None


def _cipher(dialect: Dialect) -> Cipher | None:
    found: Cipher | None = getattr(dialect, _ATTRIBUTE, None)
    return found


class _Converted(TypeDecorator[str]):
    """Text that a database's cipher, if it has one, changes on the way in and out."""

    impl: Any = Text
    cache_ok = True

    def _into_row(self, cipher: Cipher) -> Callable[[str], str]:
        raise NotImplementedError

    def _out_of_row(self, cipher: Cipher) -> Callable[[str], str]:
        raise NotImplementedError

    def bind_processor(self, dialect: Dialect) -> Any:
        cipher = _cipher(dialect)
        return super().bind_processor(dialect) if cipher is None else _some(self._into_row(cipher))

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        cipher = _cipher(dialect)
        if cipher is None:
            return super().result_processor(dialect, coltype)
        return _some(self._out_of_row(cipher))


class SealedText(_Converted):
    """A column of content."""

    cache_ok = True

    def _into_row(self, cipher: Cipher) -> Callable[[str], str]:
        return cipher.seal

    def _out_of_row(self, cipher: Cipher) -> Callable[[str], str]:
        return cipher.open


class DigestText(_Converted):
    """A column of SHA-256 digests, in hex."""

    impl = String
    cache_ok = True

    def _into_row(self, cipher: Cipher) -> Callable[[str], str]:
        return cipher.hide

    def _out_of_row(self, cipher: Cipher) -> Callable[[str], str]:
        return cipher.find


def _some(convert: Callable[[str], str]) -> Callable[[str | None], str | None]:
    return lambda value: None if value is None else convert(value)
