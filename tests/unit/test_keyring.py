"""Encryption keys: how they are given, what is refused, and what rotation means."""

from __future__ import annotations

import base64

import pytest

from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    EncryptionKeyError,
    error_from_wire,
)
from perdure.checkpoint_bridge.keyring import KEYS_VARIABLE, Keyring

OLD, NEW = b"o" * 32, b"n" * 32
PURPOSE = b"a test"


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_the_first_key_seals_and_every_key_opens() -> None:
    before = Keyring({"k1": OLD})
    after = Keyring.parse(f"k2:{encoded(NEW)}, k1:{encoded(OLD)}")
    assert (before.active, after.active, after.ids) == ("k1", "k2", ("k2", "k1"))
    assert after.open("k1", before.seal(b"then", PURPOSE), PURPOSE) == b"then"
    assert after.open("k2", after.seal(b"now", PURPOSE), PURPOSE) == b"now"


def test_equal_values_are_sealed_differently() -> None:
    keys = Keyring({"k1": OLD})
    assert keys.seal(b"same", PURPOSE) != keys.seal(b"same", PURPOSE)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(EncryptionKeyError, match=r"key 'k1'; the keys here are: k2\.") as caught:
        Keyring({"k2": NEW}).open("k1", Keyring({"k1": OLD}).seal(b"x", PURPOSE), PURPOSE)
    assert caught.value.key_id == "k1"
    again = error_from_wire(caught.value.to_wire())
    assert isinstance(again, EncryptionKeyError)
    assert again.key_id == "k1"


@pytest.mark.parametrize("change", ["another key", "another purpose", "a changed byte", "cut"])
def test_what_does_not_decrypt_names_its_key(change: str) -> None:
    sealed = Keyring({"k1": OLD}).seal(b"value", PURPOSE)
    keys = Keyring({"k1": NEW if change == "another key" else OLD})
    purpose = b"another" if change == "another purpose" else PURPOSE
    if change == "a changed byte":
        sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    elif change == "cut":
        sealed = sealed[:5]
    with pytest.raises(EncryptionKeyError, match=r"key 'k1' does not decrypt"):
        keys.open("k1", sealed, purpose)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "key 1 is not of the form"),
        (f"k1:{encoded(OLD)},k2", "key 2 is not of the form"),
        ("k1:!!", "key 1 is not ID:BASE64"),
        ("k1:c2hvcnQ=", "'k1' is 5 bytes; it must be 32"),
        (f"a b:{encoded(OLD)}", "'a b' is not a key's id"),
        (f"k1:{encoded(OLD)},k1:{encoded(NEW)}", "Two encryption keys have the id 'k1'"),
    ],
)
def test_keys_of_another_form_are_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        Keyring.parse(text)
    assert "\n" not in caught.value.message
    assert encoded(OLD) not in caught.value.message


def test_url_safe_base64_is_the_same_key() -> None:
    key = b"\xfb\xff" * 16
    sealed = Keyring.parse(f"k1:{base64.urlsafe_b64encode(key).decode()}").seal(b"x", PURPOSE)
    assert Keyring({"k1": key}).open("k1", sealed, PURPOSE) == b"x"


def test_the_environment_gives_keys_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    assert Keyring.from_environment() is None
    monkeypatch.setenv(KEYS_VARIABLE, f"k1:{encoded(OLD)}")
    keys = Keyring.from_environment()
    assert keys is not None
    # What is printed of a keyring shows no key.
    assert repr(keys) == "Keyring(k1; active: k1)"


def test_the_active_key_is_among_the_keys() -> None:
    assert Keyring({"k1": OLD, "k2": NEW}, active="k2").active == "k2"
    with pytest.raises(ConfigurationError, match="'k3' is not among the keys"):
        Keyring({"k1": OLD}, active="k3")
    with pytest.raises(ConfigurationError, match="at least one key"):
        Keyring({})
