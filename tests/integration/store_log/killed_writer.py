"""A program: writers that are killed in the middle of appends, one after the other.

``killed_writer.py URL TIMES`` prints for each writer, as JSON, how long its log was when the
last append that it told us of was done.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys

from perdure.checkpoint_bridge import SqlStore
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.events import NewEvent, NewSave
from perdure.checkpoint_bridge.tables.event_log import Batch


def batch_events(number: int, length: int) -> list[NewEvent]:
    """Events of one append: of several, one is too large for a row."""
    texts = [f"{number}.{index} " + "x" * (5000 if index == 1 else 10) for index in range(length)]
    messages = [{"role": "user", "content": text} for text in texts]
    return [NewEvent(ev.USER_MESSAGE, {"message": message}) for message in messages]


async def write(url: str, session_id: str, told: int) -> None:
    """Append for ever; after each append tell how long the log is."""
    async with SqlStore(url) as store:
        start = {"turn": 1, "runId": "r", "agent": "a", "fresh": True, "fingerprint": None}
        log_id, head = await store.open_session(
            session_id,
            agent="a",
            run_id="r",
            head=0,
            time_ms=1,
            events=[NewEvent(ev.TURN_START, start)],
        )
        number = 0
        while True:
            number += 1
            new = batch_events(number, 1 + number % 4)
            save = NewSave(len(new), ev.IN_PROGRESS, "")
            head = await store.append(Batch(session_id, log_id, "r", head, number, new, [save]))
            os.write(told, f"{head}\n".encode())


def main() -> None:
    url, times = sys.argv[1], int(sys.argv[2])
    chance = random.Random(7)
    for number in range(times):
        reading, writing = os.pipe()
        # A fork of this process has all that it imported: its life is spent on appends.
        child = os.fork()
        if child == 0:
            os.close(reading)
            asyncio.run(write(url, f"s{number}", writing))
        os.close(writing)
        with os.fdopen(reading) as lines:
            told = 0
            for _ in range(chance.randint(1, 25)):
                told = int(lines.readline())
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for line in lines:
                told = int(line)
        print(json.dumps({"session": f"s{number}", "told": told}), flush=True)


if __name__ == "__main__":
    main()
