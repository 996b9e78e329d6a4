"""The event loop that workers run on."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run_server(main: Coroutine[Any, Any, T]) -> T:
    """Run what serves until it is told to stop, with as little overhead as there is.

    On uvloop, which takes a tenth off a worker's CPU (there is none for Windows). And what is
    loaded by now lives as long as the process, so the garbage collector need not look at it again.
    """
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Any:
    if sys.platform == "win32":
        return None  # asyncio's own
    import uvloop

    return uvloop.new_event_loop
