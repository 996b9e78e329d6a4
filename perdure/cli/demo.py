"""``perdure demo``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from perdure.cli import exits
from perdure.cli.options import JsonOption  # noqa: TC001 - typer reads it at run time
from perdure.process import EXIT_TERMINATED


def demo(
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the Temporal UI open until Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """See the whole story on this machine, with a scripted model and no key.

    A worker is killed in the middle of a tool, a booking is approved, the run is forked with
    other weather, and the two are compared.
    """
    from perdure.connection import quiet_core
    from perdure.demo.story import tell

    quiet_core()
    try:
        return exits.DONE if asyncio.run(tell(as_json=as_json, keep=keep)) else exits.FAILED
    except asyncio.CancelledError:
        exits.complain("Stopped; what the demo had started was ended.")
        return EXIT_TERMINATED
