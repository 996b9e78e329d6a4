"""The command that takes out of a store what is old."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.cli import exits
from perdure.cli.options import DEFAULT_STORE, MAX_COUNT, JsonOption, StoreOption, Where, YesOption
from perdure.cli.output import note, print_json, print_text, progress
from perdure.cli.text import count

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.pruning import Pruned

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(\d{1,6})([smhdw])")


def prune(
    *,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Sessions without activity for so long: 12h, 30d, 8w.",
            show_default=False,
        ),
    ] = None,
    keep_latest: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=MAX_COUNT,
            help="Sessions that are not among the newest N of their agent.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only sessions of this agent.", show_default=False),
    ] = None,
    history_older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="History entries saved so long ago; the newest one stays.",
            show_default=False,
        ),
    ] = None,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Make a SQLite file smaller afterwards.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")
    ] = False,
    yes: YesOption = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> int:
    """Delete old sessions and old history entries; runs may go on meanwhile.

    A session goes when all conditions that are given hold for it. One that runs, waits for a
    decision or was cut off in the middle of a turn never goes. Forks keep what they share.
    History entries beyond the limit, and content that nothing names, go always.
    """
    conditions: dict[str, Any] = {
        "older_than": _age("--older-than", older_than),
        "keep_latest": keep_latest,
        "agent": agent,
        "history_older_than": _age("--history-older-than", history_older_than),
    }
    where = Where(store)
    if not (dry_run or yes):
        _confirm(asyncio.run(_prune(where, conditions, dry_run=True, vacuum=False)))
    with progress("Looking" if dry_run else "Pruning"):
        found = asyncio.run(_prune(where, conditions, dry_run=dry_run, vacuum=vacuum))
    if as_json:
        facts = {"saves": found.saves, "contents": found.contents, "dryRun": dry_run}
        print_json({"sessions": list(found.sessions), **facts})
    else:
        for session_id in found.sessions:
            print_text(session_id)
    note(f"{_told(found)} {'would go' if dry_run else 'went'}.")
    return exits.DONE


async def _prune(
    where: Where, conditions: dict[str, Any], *, dry_run: bool, vacuum: bool
) -> Pruned:
    async with where.open_store() as store:
        found = await store.prune(**conditions, dry_run=dry_run)
        if vacuum and not dry_run:
            await store.vacuum()
        return found


def _age(name: str, text: str | None) -> timedelta | None:
    if text is None:
        return None
    found = _AGE.fullmatch(text.strip())
    if found is None:
        msg = f"{name} is a number with s, m, h, d or w behind it, such as 30d, not {text!r}."
        raise ConfigurationError(msg, field=name)
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _told(found: Pruned) -> str:
    return (
        f"{count(len(found.sessions), 'session')}, {count(found.saves, 'save')} "
        f"and {count(found.contents, 'unused value')}"
    )


def _confirm(found: Pruned) -> None:
    if found == type(found)():
        return
    if not sys.stdin.isatty():
        msg = f"{_told(found)} would go; that needs --yes where nobody can be asked."
        raise ConfigurationError(msg, field="--yes")
    if not typer.confirm(f"Delete {_told(found)}?", err=True):
        raise typer.Exit(exits.FAILED)
