"""Commands that change stored sessions."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.checkpoint_bridge.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    SessionConflictError,
    TemporalUnavailableError,
)
from perdure.cli import exits
from perdure.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    NamespaceOption,
    SessionArgument,
    StoreOption,
    TemporalOption,
    Where,
    YesOption,
    json_option,
)
from perdure.cli.output import note, print_json, print_text
from perdure.cli.text import count

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.format.checkpoint import Checkpoint
    from perdure.checkpoint_bridge.format.fork import ForkPatch


def fork(
    session: SessionArgument,
    *,
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from-step",
            metavar="N",
            help="A step of the newest run that `perdure history` lists.",
            show_default=False,
        ),
    ] = None,
    boundary: Annotated[
        int | None,
        typer.Option(
            metavar="SEQ",
            help="Begin with the log up to this event of any turn, which `perdure events` lists; "
            "without --from-step, the end of the newest turn.",
            show_default=False,
        ),
    ] = None,
    close_open_turn: Annotated[
        bool,
        typer.Option(
            "--close-open-turn", help="Allow an event inside a turn, which the fork then closes."
        ),
    ] = False,
    tool_result: Annotated[
        str | None,
        typer.Option(
            metavar="CALL_ID=JSON", help="What a call is to have returned.", show_default=False
        ),
    ] = None,
    append_input: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A user message at the end.", show_default=False),
    ] = None,
    business_state: Annotated[
        str | None, typer.Option(metavar="JSON", help="Another one.", show_default=False)
    ] = None,
    new_id: Annotated[
        str | None,
        typer.Option("--as", metavar="NEW_ID", help="Default: SESSION.fork-N.", show_default=False),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Start a new session from a step of another one, with something changed, or from its log.

    The other session stays as it is. Nothing runs yet: resume the fork for that.
    """
    from perdure.checkpoint_bridge.format.fork import UNSET, ForkPatch

    if new_id is not None:
        from perdure.checkpoint_bridge.format.ids import check_session_id

        check_session_id(new_id)
    if append_input is not None and not append_input.strip():
        msg = "--append-input is empty; give the user's message."
        raise ConfigurationError(msg, field="--append-input")
    changed = any(each is not None for each in (tool_result, append_input, business_state))
    if from_step is None:
        if changed:
            msg = "What is to be different needs --from-step, the step that it changes."
            raise ConfigurationError(msg, field="--from-step")
        return _fork_log(Where(store), session, boundary, new_id, close_open_turn, as_json=as_json)
    if boundary is not None or close_open_turn:
        msg = "A fork begins at a step or at a boundary of the log; give one of the two."
        raise ConfigurationError(msg, field="--boundary")
    patch = ForkPatch(
        tool_result=None if tool_result is None else _tool_result(tool_result),
        append_input=append_input,
        business_state=UNSET
        if business_state is None
        else json_option("--business-state", business_state),
    )
    where = Where(store)
    fork_id, checkpoint = asyncio.run(_fork(where, session, from_step, patch, new_id))
    if as_json:
        made = {"sessionId": fork_id, "step": from_step, "checkpoint": checkpoint.to_json()}
        print_json(made)
    else:
        print_text(fork_id)
        note(f"Run it: {where.command('resume', fork_id)}")
        note(f"Compare: {where.command('compare', session, fork_id, store_only=True)}")
    return exits.DONE


def delete(
    session: SessionArgument,
    *,
    keep_history: Annotated[
        bool, typer.Option("--keep-history", help="Delete the checkpoint only.")
    ] = False,
    sub_agents: Annotated[
        bool, typer.Option("--sub-agents", help="Also the sessions of its sub-agents.")
    ] = False,
    yes: YesOption = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Do not ask Temporal whether a run goes on: it is gone for good."
        ),
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Delete a session. Forks that share its beginning keep it."""
    where = Where(store, temporal, namespace)
    below = asyncio.run(_check(where, session, force=force))
    going = [*below, session] if sub_agents else [session]
    if not yes:
        _confirm(session, len(going) - 1, keep_history=keep_history)
    asyncio.run(_delete(where, going, keep_history=keep_history, force=force))
    if as_json:
        facts = {"deleted": True, "historyKept": keep_history, "subAgents": going[:-1]}
        print_json({"sessionId": session, **facts})
    kept = "; its history is kept" if keep_history else ""
    note(f"Session {session} was deleted{_with(len(going) - 1)}{kept}.")
    if below and not sub_agents:
        note(f"{count(len(below), 'session')} of its sub-agents stay: {', '.join(below)}")
    return exits.DONE


def _fork_log(
    where: Where,
    session_id: str,
    boundary: int | None,
    new_id: str | None,
    close_open_turn: bool,  # noqa: FBT001 - passed on
    *,
    as_json: bool,
) -> int:
    from perdure.checkpoint_bridge.branching import fork_behind

    async def run() -> tuple[str, int]:
        async with where.open_store() as store:
            fork_id = await fork_behind(
                store,
                session_id,
                boundary,
                close_open_turn=close_open_turn,
                new_session_id=new_id,
            )
            row = await store.session(fork_id)
            assert row is not None
            return fork_id, SessionHeader.of(row).inherited_event_count

    from perdure.checkpoint_bridge.log.headers import SessionHeader

    fork_id, inherited = asyncio.run(run())
    if as_json:
        print_json({"sessionId": fork_id, "inheritedEventCount": inherited})
    else:
        print_text(fork_id)
        note(f"Compare: {where.command('compare', session_id, fork_id, store_only=True)}")
    return exits.DONE


async def _fork(
    where: Where, session_id: str, from_step: int, patch: ForkPatch, new_id: str | None
) -> tuple[str, Checkpoint]:
    async with where.open_store() as store:
        try:
            return await store.fork(
                session_id, from_step=from_step, patch=patch, new_session_id=new_id
            )
        except CheckpointNotFoundError as error:
            if await store.session(session_id) is None:
                error.hint = f"There is no session {session_id!r}; see `perdure sessions`."
            raise


def _tool_result(text: str) -> tuple[str, object]:
    call_id, sign, result = text.partition("=")
    if not sign or not call_id:
        msg = f"--tool-result is CALL_ID=JSON, not {text!r}."
        raise ConfigurationError(
            msg, field="patch.toolResult", hint="Call ids are in `perdure show SESSION`."
        )
    return call_id, json_option("--tool-result", result)


async def _check(where: Where, session_id: str, *, force: bool) -> list[str]:
    """Refuse what cannot be deleted, before anybody is asked; gives its sub-agents' sessions."""
    async with where.open_store() as store:
        await store.known_session(session_id)
        below = await store.sub_agents(session_id)
    if force:
        return below
    from perdure.cli.running import connected

    try:
        async with connected(where) as client:
            running = await client.running(session_id)
    except TemporalUnavailableError as error:
        error.hint = (
            "It must say whether a run of the session goes on; give its address with --temporal, "
            "or --force when it is gone for good."
        )
        raise
    if running is not None:
        msg = f"A run of session {session_id!r} goes on or waits; it was not deleted."
        raise SessionConflictError(
            msg, hint=f"Stop it first: {where.command('cancel', session_id)}"
        )
    return below


async def _delete(where: Where, going: list[str], *, keep_history: bool, force: bool) -> None:
    if force:
        async with where.open_store() as store:
            for each in going:
                await store.delete(each, keep_history=keep_history)
        return
    from perdure.cli.running import connected

    async with connected(where) as client:
        await client.delete(going[-1], keep_history=keep_history, sub_agents=len(going) > 1)


def _with(below: int) -> str:
    return f", with {count(below, 'session')} of its sub-agents" if below else ""


def _confirm(session_id: str, below: int, *, keep_history: bool) -> None:
    what = "the checkpoint" if keep_history else "the checkpoint and all of the history"
    if not sys.stdin.isatty():
        msg = f"Deleting {what} of session {session_id!r} needs --yes where nobody can be asked."
        raise ConfigurationError(msg, field="--yes")
    if not typer.confirm(f"Delete {what} of session {session_id}{_with(below)}?", err=True):
        raise typer.Exit(exits.FAILED)
