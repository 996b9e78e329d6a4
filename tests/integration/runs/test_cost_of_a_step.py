"""What a step costs, counted: a change that makes runs dearer is seen here, on any machine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from temporalio.api.enums.v1 import EventType

from perdure import Agent, tool
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.testing import call
from perdure.worker import serving

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench

_FEW, _MANY = 3, 8


@tool(read_only=True)
async def look(place: str) -> str:
    return "seen " * 20


@tool(read_only=True, local=True)
async def glance(place: str) -> str:
    return "seen " * 20


class Counted(SqlStore):
    """A worker's store that counts what goes to its database."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.counts: Counter[str] = Counter()

    async def count(self) -> None:
        backend: Any = await self.database.open(write=True)
        for name in ("read", "write"):
            for engine in (
                getattr(backend, f"_{name}_engine"),
                backend._quick_engines[name == "write"],
            ):
                event.listen(engine, "begin", self._counter(f"{name} transactions"))
                event.listen(engine, "before_cursor_execute", self._counter("statements"))

    def _counter(self, name: str) -> Any:
        def count(*_: Any) -> None:
            self.counts[name] += 1

        return count


async def cost(bench: Bench, steps: int, *calls: str) -> Counter[str]:
    """Run ``steps`` steps of some calls each; what Temporal and the store had to do for it."""
    session = f"{bench.session}-{steps}"
    turn = [call(name, {"place": str(number)}) for number, name in enumerate(calls)]
    agent = Agent("agent", provider=bench.model(*[turn] * steps, "Done."), tools=[look, glance])
    async with Counted(bench.store_url) as store:
        await store.count()
        async with serving(bench.temporal, [agent], store, task_queue=bench.queue):
            await bench.client.execute("agent", "Go", session_id=session)
    found = Counter(store.counts)
    (history,) = await bench.histories(session)
    kinds = Counter(each.event_type for each in history.events)
    found["events"] = len(history.events)
    found["activities"] = kinds[EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
    found["local activities"] = kinds[EventType.EVENT_TYPE_MARKER_RECORDED]
    found["bytes"] = sum(each.ByteSize() for each in history.events)
    return found


async def cost_of_a_step(bench: Bench, *calls: str) -> dict[str, float]:
    few, many = await cost(bench, _FEW, *calls), await cost(bench, _MANY, *calls)
    return {name: (many[name] - few[name]) / (_MANY - _FEW) for name in many}


async def test_a_step_with_one_call(bench: Bench) -> None:
    found = await cost_of_a_step(bench, "look")
    assert found.pop("bytes") < 2_400
    assert found == {
        "events": 12,
        "activities": 2,
        "local activities": 0,
        "read transactions": 1,
        "write transactions": 3,
        "statements": 12,
    }


async def test_a_step_with_a_local_call(bench: Bench) -> None:
    found = await cost_of_a_step(bench, "glance")
    assert found.pop("bytes") < 3_000
    assert found == {
        "events": 6,
        "activities": 1,
        "local activities": 0,
        "read transactions": 1,
        "write transactions": 3,
        "statements": 12,
    }


async def test_a_step_with_two_calls(bench: Bench) -> None:
    """Side by side: their results are written in call order, at most one by one."""
    steps = 4
    found = await cost(bench, steps, "look", "look")
    assert found["activities"] == 3 * steps + 1
    # One more opens the run.
    assert steps < found["local activities"] <= 2 * steps + 1


async def test_a_run_that_answers_at_once(bench: Bench) -> None:
    """It is opened and it is answered; whatever the agent brings goes with the answer."""
    found = await cost(bench, 0)
    assert found["write transactions"] == 2
    assert found["read transactions"] == 2
    assert found["activities"] + found["local activities"] == 2
