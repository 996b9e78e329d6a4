"""What tests of sub-agents share: a gated tool, and ways to see the sessions below a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure import ToolContext, tool
from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.checkpoint_bridge.log.lineage import call_of, depth_of, is_within
from perdure.testing import call

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.tables.sessions import SessionRow
    from tests.integration.runs.conftest import Bench


@tool(read_only=True)
def look_up(what: str) -> str:
    return f"about {what}"


@tool(needs_approval=True)
async def pay(amount: int, ctx: ToolContext) -> str:
    PAID.append((ctx.session_id, amount))
    return f"paid {amount}"


PAID: list[tuple[str, int]] = []


def ask(text: str, name: str = "helper") -> dict[str, Any]:
    return call(name, {"input": text})


async def children(bench: Bench, session_id: str | None = None) -> list[SessionRow]:
    """The sessions of the sub-agents below a session, in the order of their calls."""
    top = session_id or bench.session
    rows = [row for row in await bench.store.sessions() if row.session_id != top]
    rows = [row for row in rows if is_within(row.session_id, top)]
    return sorted(rows, key=lambda row: (depth_of(row.session_id), call_of(row.session_id)))


async def contents(bench: Bench, session_id: str | None = None) -> list[Any]:
    record = await bench.record(session_id)
    assert_valid(record["messages"])
    return [json.loads(m["content"]) for m in record["messages"] if m["role"] == "tool"]


async def waiting(bench: Bench, count: int) -> list[str]:
    """Wait until so many approvals are pending at the parent; returns their ids."""
    found: list[str] = []

    async def wait() -> bool:
        state = await bench.state()
        found[:] = [each["id"] for each in state.get("pending_approvals") or []]
        return len(found) == count

    await bench.until(wait)
    return found
