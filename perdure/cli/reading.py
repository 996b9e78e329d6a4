"""Commands that only read the store. They need no Temporal, and make no store."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.cli import exits
from perdure.cli.options import (
    DEFAULT_STORE,
    FullOption,
    JsonOption,
    LimitOption,
    SessionArgument,
    StoreOption,
    Where,
)
from perdure.cli.output import note, print_json, show
from perdure.cli.stored import read_store
from perdure.cli.text import count

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.checkpoint import Checkpoint, WaitingApproval
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore


class Status(enum.StrEnum):
    """Statuses to choose from."""

    IN_PROGRESS = "in-progress"
    AWAITING_APPROVAL = "awaiting-approval"
    FINISHED = "finished"
    CLEARED = "cleared"
    CREATED = "created"
    ENDING = "ending"
    ENDED = "ended"


def sessions(
    *,
    limit: LimitOption = None,
    status: Annotated[
        Status | None, typer.Option(help="Only sessions of this status.", show_default=False)
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only sessions of this agent.", show_default=False),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="CURSOR", help="Only those behind a page; it names it.", show_default=False
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """List the sessions of the store, newest activity first.

    With --limit, standard error names the cursor of the next page.
    """
    from perdure.sessions.directory import SessionPage, list_page

    chosen = status.value if status else None

    async def read(opened: SqlStore) -> SessionPage:
        return await list_page(opened, agent=agent, status=chosen, limit=limit, cursor=after)

    found = read_store(store, read)
    if found.next_cursor is not None:
        note(f"There are more: --after {found.next_cursor}")
    if as_json:
        print_json([each.to_json() for each in found])
    elif not found:
        note("No sessions.")
    else:
        from perdure.cli import render

        show(render.sessions(found))
    return exits.DONE


def show_session(
    session: SessionArgument,
    *,
    full: FullOption = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Show a session: its facts, its conversation, and what it waits for."""
    from perdure.results import CANCELLED, FAILED, INTERRUPTED, SessionInfo

    async def read(opened: SqlStore) -> tuple[SessionInfo, Checkpoint | None, list[Any]]:
        row = await opened.known_session(session)
        checkpoint = await opened.load(session)
        return SessionInfo.of(row), checkpoint, await opened.pending_approvals(session)

    info, checkpoint, pending = read_store(store, read)
    if as_json:
        made: dict[str, Any] = {"session": info.to_json()}
        if checkpoint is not None:
            made["checkpoint"] = checkpoint.to_json()
        made["approvals"] = [each.to_json() for each in pending]
        print_json(made)
        return exits.DONE
    from perdure.cli import render

    show(render.session(info, checkpoint, full=full))
    for each in pending:
        show("", render.approvals([each]))
        note(f"Approve it with: {Where(store).command('approve', each.id)}")
    if info.state in (FAILED, CANCELLED, INTERRUPTED):
        note(f"Go on with it: {Where(store).command('resume', session)}")
    return exits.DONE


def history(
    session: SessionArgument,
    *,
    limit: LimitOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """List the saves of a session, newest first. A fork can start from any of their steps."""

    async def read(opened: SqlStore) -> list[Any]:
        await opened.known_session(session)
        return await opened.history(session, limit)

    entries = read_store(store, read)
    if as_json:
        print_json([_history_line(entry) for entry in entries])
    else:
        from perdure.cli import render

        show(render.history(entries))
    return exits.DONE


def approvals(
    *,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="SESSION", help="Only those of one session.", show_default=False
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """List what waits for a decision, oldest first."""

    async def read(opened: SqlStore) -> list[WaitingApproval]:
        if session is not None:
            await opened.known_session(session)
        return await opened.pending_approvals(session)

    found = read_store(store, read)
    if as_json:
        print_json([each.to_json() for each in found])
    elif not found:
        note("Nothing waits for a decision.")
    else:
        from perdure.cli import render

        show(render.approvals(found))
        note(f"Decide with: {Where(store).command('approve')} APPROVAL, or reject")
    return exits.DONE


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A session's id.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another session's id.")],
    *,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Show two sessions side by side, and where they part."""
    from perdure.checkpoint_bridge.format.trajectory import compare_trajectories

    async def read(opened: SqlStore) -> tuple[Checkpoint, Checkpoint]:
        return await _checkpoint(opened, a), await _checkpoint(opened, b)

    found = compare_trajectories(*read_store(store, read))
    if as_json:
        print_json(found.to_json())
    else:
        from perdure.cli.render_compare import comparison

        show(comparison(found, a, b))
    return exits.DONE


def export(
    session: SessionArgument,
    *,
    whole_history: Annotated[
        bool, typer.Option("--history", help="All saves that are kept, newest first.")
    ] = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="All that is stored, undecoded, also of a damaged or newer log."
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Write it to lousho-sqlite:FILE, lousho-files:DIRECTORY or another store instead.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    _as_json: Annotated[bool, typer.Option("--json", help="As always.", hidden=True)] = False,
) -> int:
    """Print a session's checkpoint as JSON of the documented format, or write it to a store.

    With --to, all saves that are kept go there, and only those that are not there yet.
    """
    if raw:
        if to is not None or whole_history:
            msg = "--raw is for itself: it prints what is stored, not a checkpoint."
            raise ConfigurationError(msg, field="--raw")
        return _export_raw(store, session)
    if to is not None:
        from perdure.cli.moving import export_to

        written = asyncio.run(export_to(Where(store), session, to))
        note(f"{count(written, 'save')} of {session} written to {to}")
        return exits.DONE

    async def read(opened: SqlStore) -> Any:
        await opened.known_session(session)
        if whole_history:
            return [entry.to_json() for entry in await opened.history(session)]
        return (await _checkpoint(opened, session)).to_json()

    print_json(read_store(store, read))
    return exits.DONE


def _export_raw(store: str, session_id: str) -> int:
    from perdure.checkpoint_bridge.stores.store import session_not_found

    found = read_store(store, lambda opened: opened.raw(session_id))
    if found is None:
        raise session_not_found(session_id)
    print_json(found)
    return exits.DONE


async def _checkpoint(store: SqlStore, session_id: str) -> Checkpoint:
    from perdure.checkpoint_bridge.errors import CheckpointNotFoundError

    await store.known_session(session_id)
    checkpoint = await store.load(session_id)
    if checkpoint is None:
        msg = f"Session {session_id!r} has no checkpoint yet, or it was deleted."
        hint = "See what its history keeps with `perdure history`."
        raise CheckpointNotFoundError(msg, hint=hint)
    return checkpoint


def _history_line(entry: Any) -> dict[str, Any]:
    """An entry without its checkpoint, which `perdure export --history` prints."""
    checkpoint = entry.checkpoint
    made = {
        "step": entry.step,
        "savedAt": entry.saved_at,
        "status": entry.status,
        "finishReason": checkpoint.finish_reason,
        "approvalId": checkpoint.approval_id,
        "messages": len(checkpoint.messages),
        "toolCalls": len(checkpoint.tool_calls),
        "totalTokens": checkpoint.usage.total_tokens,
    }
    return {key: value for key, value in made.items() if value is not None}
