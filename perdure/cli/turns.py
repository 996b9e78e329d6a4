"""Commands about single turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import exits
from perdure.cli.options import (
    DEFAULT_STORE,
    MAX_COUNT,
    JsonOption,
    SessionArgument,
    StoreOption,
    Where,
)
from perdure.cli.output import print_json, show

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.turn_log import Outcome


def outcome(
    session: SessionArgument,
    sequence: Annotated[
        int,
        typer.Argument(
            metavar="SEQUENCE", min=1, max=MAX_COUNT, help="Where the turn starts in the log."
        ),
    ],
    *,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Say what became of a turn: pending, ended or failed, from the log alone.

    That a session is idle says nothing about it. A turn whose run is gone shows as pending until
    the session is used again.
    """
    found = asyncio.run(_outcome(store, session, sequence))
    if as_json:
        print_json(found.to_json())
    else:
        from perdure.cli.render import outcome as rendered

        show(rendered(found))
    return exits.DONE


async def _outcome(store: str, session: str, sequence: int) -> Outcome:
    from perdure.checkpoint_bridge.stores.store import session_not_found
    from perdure.checkpoint_bridge.turn_log import outcome_of

    async with Where(store).open_store() as opened:
        row = await opened.session(session)
        if row is None:
            raise session_not_found(session)
        return await opened.database.read(outcome_of, row.log_id, sequence)
