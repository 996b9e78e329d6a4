"""``perdure codec-server`` as a process, asked over HTTP."""

from __future__ import annotations

import signal
from typing import Any

import httpx

KEY = "k1:" + "MTEx" * 10 + "MTE="
CLEAR = {"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "NQ=="}]}


async def test_it_encodes_and_decodes_until_it_is_stopped(program: Any, wait_for_line: Any) -> None:
    server = await program.start(
        *("codec-server", "--port", "0", "--token", "t0ken"), PERDURE_ENCRYPTION_KEYS=KEY
    )
    address = (await wait_for_line(server.stderr, "Codec server")).split()[2]
    headers = {"Authorization": "Bearer t0ken", "Origin": "http://localhost:8233"}
    async with httpx.AsyncClient(base_url=address, headers=headers) as client:
        encoded = (await client.post("/encode", json=CLEAR)).json()
        assert encoded != CLEAR
        assert (await client.post("/decode", json=encoded)).json() == CLEAR
        refused = await client.post("/decode", json=encoded, headers={"Authorization": ""})
        assert refused.status_code == 401
    server.send_signal(signal.SIGTERM)
    assert await server.wait() == 0


async def test_what_it_cannot_do_safely_is_one_line(program: Any) -> None:
    run = await program("codec-server")
    assert (run.code, run.out) == (2, "")
    assert "PERDURE_ENCRYPTION_KEYS is not set" in run.errors
    run = await program("codec-server", "--host", "0.0.0.0", PERDURE_ENCRYPTION_KEYS=KEY)
    assert run.code == 2
    assert "a codec server there needs a token" in run.errors
    assert "Traceback" not in run.errors
