"""The demo's worker, in a process of its own: ``python -m perdure.demo.worker``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import threading

from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.connection import connect_temporal, quiet_core
from perdure.demo.ledger import WORKER, Ledger
from perdure.demo.trip import trip_agent
from perdure.event_loop import run_server
from perdure.process import end_now, run_program
from perdure.worker import serving


async def serve(temporal: str, store_url: str, ledger: Ledger) -> None:
    """Serve the trip agent until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await connect_temporal(temporal, "default")
    async with (
        SqlStore(store_url) as store,
        serving(client, [trip_agent(ledger)], store),
    ):
        ledger.note(WORKER)
        await stop.wait()


def end_with_the_demo() -> None:
    """End when the demo does, however it ends: its end of our standard input closes then."""
    sys.stdin.read()
    end_now(0)


def main() -> int:
    """Serve with the addresses of the command line."""
    parser = argparse.ArgumentParser()
    for name in ("--temporal", "--store", "--ledger"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    quiet_core()
    threading.Thread(target=end_with_the_demo, daemon=True).start()
    run_server(serve(given.temporal, given.store, Ledger(given.ledger)))
    return 0


if __name__ == "__main__":
    run_program(main)
