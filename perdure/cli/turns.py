"""Commands about single turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import exits
from perdure.cli.options import (
    DEFAULT_STORE,
    MAX_COUNT,
    JsonOption,
    SessionArgument,
    StoreOption,
)
from perdure.cli.output import print_json, show
from perdure.cli.stored import read_store

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
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
    from perdure.checkpoint_bridge.turn_log import outcome_of

    async def read(opened: SqlStore) -> Outcome:
        row = await opened.known_session(session)
        return await opened.database.read(outcome_of, row.log_id, sequence)

    found = read_store(store, read)
    if as_json:
        print_json(found.to_json())
    else:
        from perdure.cli.render import outcome as rendered

        show(rendered(found))
    return exits.DONE
