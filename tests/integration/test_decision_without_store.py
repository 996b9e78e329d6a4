"""A decision that comes while the store is away waits for it; found by ``make faults``."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from perdure import Agent, tool
from perdure.checkpoint_bridge.errors import StorageError
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.client import connect
from perdure.testing import ScriptedModel, call
from perdure.worker import serving

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.tables.sessions import SessionRow

REFUSALS = 2


class Unreliable(SqlStore):
    """A store that is away for some reads, as often as a test says."""

    refusals = 0

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            msg = "The store does not answer."
            raise StorageError(msg)

    async def session(self, session_id: str) -> SessionRow | None:
        self._refuse()
        return await super().session(session_id)

    async def state(self, log_id: int, through: int) -> SessionState:
        self._refuse()
        return await super().state(log_id, through)


@tool(needs_approval=True, idempotent=True)
def pay() -> str:
    """Pay."""
    return "paid"


async def test_a_decision_outlasts_a_store_that_is_away(
    temporal_address: str, store_url: str
) -> None:
    agent = Agent("payer", provider=ScriptedModel([[call("pay")], "Done."]), tools=[pay])
    queue = uuid.uuid4().hex
    store = Unreliable(store_url)
    async with connect(store_url, temporal=temporal_address, task_queue=queue) as client:
        async with serving(client.temporal, [agent], store, task_queue=queue):
            run = await client.start("payer", "Pay")
            paused = await run.result()
            store.refusals = REFUSALS
            decision = {"id": paused.approval_id, "approved": True}
            workflow = client.temporal.get_workflow_handle(run.session_id)
            await workflow.signal("resolve_approval", decision)
            async with asyncio.timeout(20):
                result = await run.result(after_approval=paused.approval_id)
        await store.close()
    assert store.refusals == 0
    assert result.text == "Done."
