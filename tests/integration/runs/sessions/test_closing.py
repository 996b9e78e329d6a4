"""What a closed client does: nothing, while its runs go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure import Agent
from perdure.checkpoint_bridge.errors import ClientClosedError
from perdure.client import connect

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


async def test_f109_a_closed_client_refuses_and_its_runs_go_on(bench: Bench) -> None:
    model = bench.model("Hi.")
    gate = model.gate(1)
    async with bench.serving(Agent("host", provider=model)):
        client = await connect(bench.store_url, temporal=bench.temporal, task_queue=bench.queue)
        await client.start("host", "Hi", session_id=bench.session)
        session = client.sessions.get(bench.session)
        await gate.reached()
        await client.close()
        await client.close()
        for call in (
            client.execute("host", "More", session_id=bench.session),
            client.checkpoint(bench.session),
            client.approvals.list(),
            client.sessions.list(),
            client.running(bench.session),
            session.info(),
        ):
            with pytest.raises(ClientClosedError):
                await call
        # Another client is another one, and a store that was closed opens again by itself.
        await bench.store.close()
        assert len(await bench.client.sessions.list()) == 1
        gate.open()
        running = await bench.client.running(bench.session)
        assert running is not None
        assert (await running.result()).text == "Hi."
