"""The codec server's contract: what the Temporal UI's page sends, and who else gets nothing."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads
from temporalio.converter import DataConverter

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.codec_server import LIMIT, codec_app
from perdure.encryption import EncryptionCodec, Keyring

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEYS = Keyring({"k1": b"1" * 32})
UI = "http://localhost:8233"
TOKEN = "of-the-ui"
HEADERS = {
    "Origin": UI,
    "Content-Type": "application/json",
    "X-Namespace": "default",
    "Authorization": f"Bearer {TOKEN}",
}


@pytest.fixture
async def server() -> AsyncIterator[httpx.AsyncClient]:
    app = codec_app(EncryptionCodec(KEYS), token=TOKEN, origins=[UI], namespaces=["default"])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://codec") as client:
        yield client


async def sealed(value: Any, keys: Keyring = KEYS) -> dict[str, Any]:
    """A payload as the page has it from the UI's server."""
    payloads = await EncryptionCodec(keys).encode(
        DataConverter.default.payload_converter.to_payloads([value])
    )
    found: dict[str, Any] = json_format.MessageToDict(payloads[0])
    return found


def plain(value: bytes) -> dict[str, Any]:
    encoding = base64.b64encode(b"json/plain").decode()
    return {"metadata": {"encoding": encoding}, "data": base64.b64encode(value).decode()}


async def test_the_page_reads_what_is_encrypted_and_what_is_not(server: httpx.AsyncClient) -> None:
    body = {"payloads": [await sealed({"amount": 5}), plain(b'"in clear"')]}
    answer = await server.post("/decode?preserveStorageRefs=true", json=body, headers=HEADERS)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == UI
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.json() == {"payloads": [plain(b'{"amount":5}'), plain(b'"in clear"')]}


async def test_what_the_page_sends_is_encrypted(server: httpx.AsyncClient) -> None:
    body = {"payloads": [plain(b'{"id": "a", "approved": true}')]}
    answer = await server.post("/encode", json=body, headers=HEADERS)
    encoded = json_format.ParseDict(answer.json(), Payloads())
    assert b"approved" not in encoded.SerializeToString()
    back = await EncryptionCodec(KEYS).decode(encoded.payloads)
    assert back[0].data == b'{"id": "a", "approved": true}'


async def test_the_browser_asks_first(server: httpx.AsyncClient) -> None:
    names = ["authorization", "authorization-extras", "content-type", "x-namespace"]
    asked = {
        "Origin": UI,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(names),
    }
    answer = await server.options("/decode", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == UI
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert all(name in allowed for name in names)
    other = await server.options("/decode", headers={**asked, "Origin": "http://elsewhere"})
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer another"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Origin": "http://elsewhere"}, 403),
        ({"X-Namespace": "another"}, 403),
    ],
)
async def test_others_get_nothing(
    server: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    body = {"payloads": [await sealed("secret")]}
    answer = await server.post("/decode", json=body, headers={**HEADERS, **headers})
    assert answer.status_code == status
    assert set(answer.json()) == {"message"}


@pytest.mark.parametrize(
    "body", [b"", b"no json", b'{"payloads": 5}', b'{"payloads": [{"data": 5}]}', b"\xff"]
)
async def test_a_body_of_another_form_is_refused(server: httpx.AsyncClient, body: bytes) -> None:
    answer = await server.post("/decode", content=body, headers=HEADERS)
    assert (answer.status_code, list(answer.json())) == (400, ["message"])


async def test_a_huge_body_is_refused(server: httpx.AsyncClient) -> None:
    answer = await server.post("/decode", content=b" " * (LIMIT + 1), headers=HEADERS)
    assert answer.status_code == 413


async def test_a_key_that_is_missing_is_named(server: httpx.AsyncClient) -> None:
    body = {"payloads": [await sealed("x", Keyring({"k9": b"9" * 32}))]}
    answer = await server.post("/decode", json=body, headers=HEADERS)
    assert answer.status_code == 422
    assert "'k9'" in answer.json()["message"]


async def test_other_requests_are_not_for_it(server: httpx.AsyncClient) -> None:
    assert (await server.get("/decode", headers=HEADERS)).status_code == 405
    assert (await server.post("/else", headers=HEADERS)).status_code == 404
    assert (await server.get("/health")).text == "ok"


async def test_an_origin_with_a_slash_is_the_same_origin() -> None:
    app = codec_app(EncryptionCodec(KEYS), token=TOKEN, origins=["https://Temporal.example.com/"])
    transport = httpx.ASGITransport(app=app)
    headers = {**HEADERS, "Origin": "https://temporal.example.com"}
    async with httpx.AsyncClient(transport=transport, base_url="http://codec") as client:
        answer = await client.post("/decode", json={"payloads": []}, headers=headers)
    assert answer.headers["access-control-allow-origin"] == headers["Origin"]


@pytest.mark.parametrize("origin", ["temporal.example.com", "https://example.com/ui", "*"])
def test_what_no_page_has_as_its_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="no origin"):
        codec_app(EncryptionCodec(KEYS), origins=[origin])
