"""What somebody said to a run, wherever it is: in what was sent, or in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.activities.wire import INPUT_REF
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.transcript import input_messages

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore


async def read_input(store: SqlStore, given: Any) -> list[dict[str, Any]]:
    """Input as messages; ``{"input_ref": digest}`` says that it is in the store.

    Raises:
        ConfigurationError: it is not input, or the store does not hold it.
    """
    if isinstance(given, dict) and set(given) == {INPUT_REF}:
        stored = await store.input(str(given[INPUT_REF]))
        if stored is None:
            msg = f"The store does not hold the input {given[INPUT_REF]}."
            raise ConfigurationError(msg, field="input")
        given = stored
    return input_messages(given)
