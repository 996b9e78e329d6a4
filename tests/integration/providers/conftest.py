"""A model service on loopback that records what it is sent and answers what a test says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


_VARIABLES = [f"{p}_{n}" for p in ("OPENAI", "ANTHROPIC") for n in ("API_KEY", "BASE_URL")]
_VARIABLES += ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]


@dataclass
class Sent:
    """One request as it came over the wire."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The body, which has to be strict JSON in strict UTF-8."""
        return json.loads(self.raw.decode("utf-8"), parse_constant=_refuse)


@dataclass
class Reply:
    """What to answer, and how it breaks.

    ``cut`` announces more bytes than it sends, ``stall`` never sends the rest, ``no_answer``
    closes the connection at once.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    breaks: str = ""

    def payload(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Service:
    """The running service: put replies into ``replies``, read what came from ``sent``."""

    url: str = ""
    port: int = 0
    replies: list[Reply] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def will(self, *bodies: Any) -> None:
        """Answer the next requests with these bodies, or whole replies."""
        self.replies += [b if isinstance(b, Reply) else Reply(body=b) for b in bodies]

    def will_fail(self, status: int, body: Any = None, **headers: str) -> None:
        """Answer the next request with a status; ``retry_after`` is the header Retry-After."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.replies.append(Reply(status, body, named))

    def will_break(self, how: str, body: Any = None) -> None:
        """Break the next answer: ``cut``, ``stall`` (both after ``body``) or ``no_answer``."""
        self.replies.append(Reply(body=body, breaks=how))

    @property
    def only(self) -> Sent:
        """The one request that was made."""
        assert len(self.sent) == 1
        return self.sent[0]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        self.sent.append(Sent(method, path, headers, raw))
        self.arrived.set()
        reply = self.replies.pop(0) if self.replies else Reply(500, {"error": "nothing to say"})
        if reply.breaks == "no_answer":
            return False
        payload = reply.payload()
        announced = len(payload) + (100 if reply.breaks else 0)
        lines = [f"HTTP/1.1 {reply.status} Whatever", f"content-length: {announced}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + payload)
        await writer.drain()
        if reply.breaks == "stall":
            await reader.read()  # until the client gives up
        return not reply.breaks


def _refuse(name: str) -> None:
    raise ValueError(name)


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A service on a port of its own; no key, address or proxy of the machine gets in."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    service = Service()
    server = await asyncio.start_server(service.handle, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    service.url = f"http://127.0.0.1:{service.port}"
    async with server:
        yield service
