"""The search attributes of runs in a Temporal namespace: which there are, and registering them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.service import RPCError

from perdure.connection import rpc_failure
from perdure.workflows.attributes import SEARCH_ATTRIBUTES

if TYPE_CHECKING:
    from temporalio.client import Client

_TYPES = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in SEARCH_ATTRIBUTES}
_TRIES = 50
_PAUSE = 0.1

_log = logging.getLogger("perdure.worker")


@dataclass(frozen=True, slots=True)
class Registered:
    """What a namespace has of the attributes of runs."""

    usable: list[str]
    missing: list[str]
    other_type: list[str]
    """Registered by somebody for something else: never written to."""


async def look_up(client: Client) -> Registered:
    """Ask which of the attributes the client's namespace has.

    Raises:
        TemporalUnavailableError: Temporal does not answer, or does not tell.
    """
    try:
        found = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        raise rpc_failure(error, client) from error
    types = dict(found.custom_attributes)
    usable = [name for name, kind in _TYPES.items() if types.get(name) == kind]
    missing = [name for name in _TYPES if name not in types]
    other = [name for name in _TYPES if name in types and name not in usable]
    return Registered(usable, missing, other)


async def register(client: Client) -> Registered:
    """Register what is missing, and wait until it is there; what is there stays as it is.

    Raises:
        TemporalUnavailableError: Temporal does not answer, or does not allow it.
    """
    found = await look_up(client)
    if not found.missing:
        return found
    wanted = {name: _TYPES[name] for name in found.missing}
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
        )
    except RPCError as error:
        raise rpc_failure(error, client) from error
    for _ in range(_TRIES):
        found = await look_up(client)
        if not found.missing:
            break
        await asyncio.sleep(_PAUSE)
    return found


async def usable(client: Client) -> list[str]:
    """The attributes that runs may set, asked once when a worker starts; says what is not there.

    Runs need none of them, so whatever goes wrong here only means that there are fewer.
    """
    try:
        found = await look_up(client)
    except Exception as error:  # noqa: BLE001 - see above
        _log.info("Runs set no search attributes: %s", error)
        return []
    if found.other_type:
        _log.warning(
            "Namespace %s has search attributes of other types than runs need, so runs leave "
            "them alone: %s",
            client.namespace,
            ", ".join(found.other_type),
        )
    if found.missing:
        _log.info(
            "Namespace %s lacks the search attributes %s; `perdure setup` registers them",
            client.namespace,
            ", ".join(found.missing),
        )
    return found.usable
