"""The answer of a sub-agent as the result of the call that it was run for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format.messages import text_of
from perdure.checkpoint_bridge.format.tool_results import child_result

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore


async def answer_message(
    store: SqlStore, child_session: str, call_id: str, tool: str
) -> dict[str, Any] | None:
    """The result of a call whose sub-agent has finished; ``None`` when it has not."""
    row = await store.session(child_session)
    if row is None:
        return None
    state = await store.state(row.log_id, row.head)
    if not state.finished or not state.messages:
        return None
    finish_reason = str((state.last_end or {}).get("finishReason") or "stop")
    last = state.messages[-1]
    is_answer = isinstance(last, dict) and last.get("role") == "assistant"
    text = text_of(last) if is_answer else ""
    return child_result(call_id, tool, row.agent, finish_reason, text)
