"""Commands that read a session's log and what it has come to. They need no Temporal."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import exits
from perdure.cli.options import (
    DEFAULT_STORE,
    MAX_COUNT,
    FullOption,
    JsonOption,
    LimitOption,
    SessionArgument,
    StoreOption,
)
from perdure.cli.output import note, print_json, show
from perdure.cli.stored import read_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.checkpoint_bridge.log.events import Event
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.sessions.reading import Transcript
    from perdure.sessions.stored import StoredSession


class View(enum.StrEnum):
    """Names to show events under."""

    BRAIN = "brain"


def events(
    session: SessionArgument,
    *,
    after: Annotated[
        int, typer.Option("--after", min=0, max=MAX_COUNT, help="Leave out the first so many.")
    ] = 0,
    limit: LimitOption = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on with what is committed from now on, until Ctrl-C."
        ),
    ] = False,
    view: Annotated[
        View | None, typer.Option(help="Names of another system.", show_default=False)
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Show a session's event log, of which everything else is a view.

    Go on later with --after and the sequence of the last event. With --follow, --json prints one
    object a line.
    """
    name = None if view is None else view.value

    async def read(opened: SqlStore) -> list[Event]:
        reader = _session(opened, session)
        if follow:
            await _follow(reader.stream(after, view=name), limit, as_json=as_json)
            return []
        return [event async for event in _first(reader.events(after, view=name), limit)]

    found = read_store(store, read)
    if follow:
        return exits.DONE
    if as_json:
        print_json([event.to_json() for event in found])
    else:
        from perdure.cli import render

        show(render.events(found))
    return exits.DONE


def transcript(
    session: SessionArgument,
    *,
    through: Annotated[
        int | None,
        typer.Option(
            "--through",
            min=0,
            max=MAX_COUNT,
            metavar="SEQUENCE",
            help="As it was at this event.",
            show_default=False,
        ),
    ] = None,
    full: FullOption = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Show the messages that the model is given, and up to which event they are."""

    async def read(opened: SqlStore) -> Transcript:
        return await _session(opened, session).transcript(through)

    found = read_store(store, read)
    messages = [message.to_json() for message in found.messages]
    if as_json:
        print_json({"messages": messages, "throughSequence": found.through_sequence})
        return exits.DONE
    from perdure.cli import render

    show(*render.messages(messages, full=full))
    note(f"Through sequence {found.through_sequence}.")
    return exits.DONE


def _session(store: SqlStore, session_id: str) -> StoredSession:
    from perdure.sessions.stored import StoredSession

    return StoredSession(store, session_id)


async def _first(found: AsyncIterator[Event], limit: int | None) -> AsyncIterator[Event]:
    count = 0
    async for event in found:
        yield event
        count += 1
        if count == limit:
            return


async def _follow(found: AsyncIterator[Event], limit: int | None, *, as_json: bool) -> None:
    from perdure.cli import render

    async for event in _first(found, limit):
        if as_json:
            print_json(event.to_json())
        else:
            show(render.event(event))
