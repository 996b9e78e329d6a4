"""``perdure setup``: what a Temporal namespace and a store need once."""

from __future__ import annotations

import asyncio

from perdure.cli import exits
from perdure.cli.options import DEFAULT_STORE, NamespaceOption, StoreOption, TemporalOption, Where
from perdure.cli.output import note


def setup(
    *,
    store: StoreOption = DEFAULT_STORE,
    temporal: TemporalOption = None,
    namespace: NamespaceOption = None,
) -> int:
    """Prepare the store's tables and register the search attributes of runs in Temporal.

    Doing it again changes nothing.
    """
    asyncio.run(_set_up(Where(store, temporal, namespace)))
    return exits.DONE


async def _set_up(where: Where) -> None:
    from perdure.connection import check_namespace, connect_temporal, quiet_core
    from perdure.search_attributes import register

    quiet_core()
    sessions = where.open_store(create=True)
    try:
        await sessions.open()
        note(f"Store       {sessions.database}: ready")
    finally:
        await sessions.close()
    client = await connect_temporal(where.temporal, where.namespace)
    await check_namespace(client)
    found = await register(client)
    note(f"Temporal    namespace {client.namespace}: search attributes {', '.join(found.usable)}")
    for problem, names in (
        ("of another type, so runs leave them alone", found.other_type),
        ("not there yet", found.missing),
    ):
        if names:
            note(f"            {', '.join(names)}: {problem}")
