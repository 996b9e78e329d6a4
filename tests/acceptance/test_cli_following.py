"""``perdure events --follow`` as a program: it hears of another process, and Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge import SqlStore
from tests.integration.store_log.conftest import begin_run, user

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.conftest import Program


async def test_events_are_followed_until_ctrl_c(program: Program, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'followed.db'}"
    async with SqlStore(url) as store:
        run = await begin_run(store)
        process = await program.start(
            *("events", "trip", "--follow", "--json", "--after", "1", "--store", url)
        )
        assert process.stdout is not None
        async with asyncio.timeout(120):
            first = json.loads(await process.stdout.readline())
            await run.append(user("More"))
            second = json.loads(await process.stdout.readline())
    assert [(each["sequence"], each["type"]) for each in (first, second)] == [
        (2, "user/message"),
        (3, "user/message"),
    ]
    assert second["origin"] == {"kind": "loop", "sequence": 1}
    process.send_signal(signal.SIGINT)
    out, errors = await process.communicate()
    assert (process.returncode, out, errors) == (130, b"", b"")
