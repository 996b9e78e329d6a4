"""Commands that carry sessions between stores."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.cli import exits
from perdure.cli.options import DEFAULT_STORE, JsonOption, MirrorOption, StoreOption, Where
from perdure.cli.output import note, print_json, print_text
from perdure.cli.text import count

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.checkpoint_bridge.mirrors.importing import Imported
    from perdure.checkpoint_bridge.stores.store import CheckpointStore


def import_sessions(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="lousho-sqlite:FILE, lousho-files:DIRECTORY, or the address of a store of ours.",
        ),
    ],
    sessions: Annotated[
        list[str] | None,
        typer.Argument(metavar="SESSION…", help="Default: all of them.", show_default=False),
    ] = None,
    *,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who continues them; default: what each checkpoint says.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Bring sessions of another store over, with their history and what they wait for.

    The other store keeps them. A session comes over whole or not at all, and one that is
    there already is left as it is.
    """
    found = asyncio.run(_import(source, sessions, Where(store), agent))
    failed = [each for each in found if each.error is not None]
    if sessions is not None and len(sessions) == 1 and failed:
        raise failed[0].error  # type: ignore[misc]
    if as_json:
        print_json([_to_json(each) for each in found])
    for each in found:
        if each.error is not None:
            message = f"{each.session_id}: {each.error.message} [{each.error.code}]"
            exits.complain(message, exits.hint_of(each.error))
        elif not as_json:
            print_text(each.session_id)
    came = sum(each.saves > 0 for each in found)
    there = len(found) - came - len(failed)
    note(f"{count(came, 'session')} imported, {there} there already, {len(failed)} refused.")
    return exits.FAILED if failed else exits.DONE


def mirror(
    *,
    rebuild: Annotated[
        list[str] | None,
        typer.Option(
            "--rebuild",
            metavar="SESSION",
            help="Write this session there again, from our log. Repeatable.",
            show_default=False,
        ),
    ] = None,
    mirrors: MirrorOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Say how many saves a mirror lacks, or write a session of it again.

    A worker with the same --mirror is what keeps it up to date.
    """
    if not mirrors:
        msg = "Name the mirror with --mirror ADDRESS."
        raise ConfigurationError(msg, field="--mirror")
    lags = asyncio.run(_mirror(Where(store), mirrors, rebuild or []))
    if as_json:
        print_json([{"mirror": name, "lag": lag} for name, lag in lags])
    else:
        for name, lag in lags:
            print_text(f"{name} " + (f"lacks {count(lag, 'save')}" if lag else "is up to date"))
    return exits.DONE


async def export_to(where: Where, session_id: str, address: str) -> int:
    """Write a session's saves to another store; returns how many were missing there."""
    from perdure.checkpoint_bridge.mirrors.mirror import Mirror
    from perdure.checkpoint_bridge.stores.addresses import open_address

    async with where.open_store() as ours, _opened(open_address(address, field="to")) as target:
        return await Mirror(ours, target).copy_session(session_id)


async def _import(
    address: str, session_ids: list[str] | None, where: Where, agent: str | None
) -> list[Imported]:
    from perdure.checkpoint_bridge.mirrors.importing import import_all
    from perdure.checkpoint_bridge.stores.addresses import name_of, open_address

    source = open_address(address, create=False, field="from")
    async with _opened(source):
        # Before ours is made: a wrong address should leave nothing behind.
        opening = getattr(source, "open", None)
        if opening is not None:
            await opening()
        async with where.open_store(create=True) as ours:
            if name_of(ours) == name_of(source):
                msg = f"{address} is the store itself."
                raise ConfigurationError(msg, field="from")
            return [each async for each in import_all(source, ours, session_ids, agent=agent)]


async def _mirror(where: Where, addresses: list[str], rebuild: list[str]) -> list[tuple[str, int]]:
    from perdure.checkpoint_bridge.mirrors.mirror import Mirror
    from perdure.checkpoint_bridge.stores.addresses import open_address

    lags = []
    async with where.open_store() as ours:
        for address in addresses:
            async with _opened(open_address(address)) as target:
                mirror = Mirror(ours, target)
                for session_id in rebuild:
                    saves = await mirror.rebuild(session_id)
                    note(f"{count(saves, 'save')} of {session_id} written to {mirror.name}")
                lags.append((mirror.name, await mirror.lag()))
    return lags


@contextlib.asynccontextmanager
async def _opened(store: CheckpointStore) -> AsyncIterator[CheckpointStore]:
    try:
        yield store
    finally:
        close = getattr(store, "close", None)
        if close is not None:
            await close()


def _to_json(each: Imported) -> dict[str, Any]:
    made: dict[str, Any] = {"sessionId": each.session_id, "saves": each.saves}
    if each.approval_id is not None:
        made["approvalId"] = each.approval_id
    if each.error is not None:
        made["error"] = {"code": each.error.code, "message": each.error.message}
    return made
