"""What our data converter fails for good, and what it leaves to be tried again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError

from perdure.checkpoint_bridge.errors import EncryptionKeyError
from perdure.converter import CONVERTER
from perdure.encryption import ENCODING, KEY_ID

READABLE = Payload(metadata={"encoding": b"json/plain"}, data=b"7")


@dataclass
class Point:
    x: int


def test_what_does_not_fit_its_type_is_tried_again() -> None:
    """Another version of the worker may expect what was sent."""
    with pytest.raises(TypeError):
        CONVERTER.payload_converter.from_payloads([READABLE], [Point])


def test_what_cannot_be_read_is_not() -> None:
    broken = Payload(metadata={"encoding": b"json/plain"}, data=b'{"x": \xff}')
    with pytest.raises(ApplicationError, match="cannot be read as 'json/plain'") as raised:
        CONVERTER.payload_converter.from_payloads([READABLE, broken], [int, Point])
    assert raised.value.non_retryable


def test_a_codec_that_is_missing_may_come() -> None:
    shrunk = Payload(metadata={"encoding": b"binary/zlib"}, data=b"x")
    with pytest.raises(KeyError, match="binary/zlib"):
        CONVERTER.payload_converter.from_payloads([READABLE, shrunk])


def test_a_key_that_is_missing_may_come() -> None:
    locked = Payload(metadata={"encoding": ENCODING, KEY_ID: b"k2"}, data=b"x")
    with pytest.raises(EncryptionKeyError, match="k2"):
        CONVERTER.payload_converter.from_payloads([READABLE, locked])
