"""How a command that goes on until it is told to stop is told so."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from perdure.process import EXIT_INTERRUPTED, end_now


class StopSignals:
    """While entered, SIGINT and SIGTERM ask to stop; another SIGINT afterwards ends the process."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Windows has no handlers in loops; there Ctrl-C cancels the program.
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, self.asked.set)

    async def __aexit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGINT, end_now, EXIT_INTERRUPTED)
            loop.remove_signal_handler(signal.SIGTERM)
