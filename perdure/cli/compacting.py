"""The command that shortens a conversation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import exits
from perdure.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    SessionArgument,
    StoreOption,
    Where,
)
from perdure.cli.output import note, print_json, print_text
from perdure.cli.text import count

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.compacting import Compaction


def compact(
    session: SessionArgument,
    *,
    keep_last: Annotated[
        int,
        typer.Option("--keep-last", metavar="N", min=1, help="How many turns stay as they are."),
    ],
    summary: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What stands for the others. Default: the beginnings of what was said.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Replace all but the newest turns of a conversation by a summary.

    The messages stay in the log and in earlier checkpoints.
    """
    done = asyncio.run(_compact(Where(store), session, keep_last, summary))
    if as_json:
        print_json(None if done is None else done.to_json())
    elif done is not None:
        print_text(done.summary)
    if done is None:
        kept = count(keep_last, "turn")
        note(f"There is nothing to compact: session {session} has no more than {kept}.")
    else:
        replaced = f"{count(done.turns, 'turn')} ({count(done.replaced, 'message')})"
        note(f"This summary replaces {replaced}.")
    return exits.DONE


async def _compact(
    where: Where, session_id: str, keep_last: int, summary: str | None
) -> Compaction | None:
    from perdure.checkpoint_bridge.compacting import compact as compact_session

    async with where.open_store() as store:
        return await compact_session(store, session_id, keep_last=keep_last, summary=summary)
