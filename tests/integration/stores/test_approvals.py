"""Approval records, for the stores in the TypeScript SDK's forms."""

from __future__ import annotations

import asyncio

import pytest

from perdure.checkpoint_bridge import StoredApproval
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.checkpoint import ExecutionSnapshot, PendingApproval

pytestmark = pytest.mark.parametrize("place", ["lousho-sqlite", "lousho-files"], indirect=True)


def approval(approval_id: str, **more) -> StoredApproval:
    call = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    pending = {"id": approval_id, "toolCallId": "c1", "toolName": "book", "args": {"\ud800": 1}}
    snapshot = {"agent": "trip", "currentMessages": [], "pendingToolCall": call, "steps": 2}
    return StoredApproval(
        PendingApproval.from_json({**pending, **more}), ExecutionSnapshot.from_json(snapshot)
    )


async def test_what_waits_is_listed_oldest_first(store, text):
    assert await store.pending_approvals() == []
    saved = [approval(each, later=[each]) for each in ("b", "a", "c")]
    for each in saved:
        await store.save_approval(each)
    found = await store.pending_approvals()
    assert {each.pending.id for each in found} == {"a", "b", "c"}
    by_id = {each.pending.id: each for each in found}
    for each in saved:
        assert text(by_id[each.pending.id].pending) == text(each.pending)
        assert text(by_id[each.pending.id].snapshot) == text(each.snapshot)


async def test_one_of_many_gets_it(stores):
    opened = [await stores.open() for _ in range(4)]
    await opened[0].save_approval(approval("a"))
    await opened[0].save_approval(approval("b"))
    claims = await asyncio.gather(*(each.claim_approval("a") for each in opened * 5))
    assert [each.pending.id for each in claims if each is not None] == ["a"]
    assert [each.pending.id for each in await opened[1].pending_approvals()] == ["b"]


async def test_a_claim_can_be_put_back(store):
    await store.save_approval(approval("a"))
    claimed = await store.claim_approval("a")
    assert await store.claim_approval("a") is None
    await store.save_approval(claimed)
    assert [each.pending.id for each in await store.pending_approvals()] == ["a"]
    assert await store.claim_approval("a") is not None


async def test_what_is_not_there_cannot_be_claimed(store):
    assert await store.claim_approval("nope") is None


@pytest.mark.parametrize("approval_id", ["../a", "a/b", "", "a.b", "x" * 129, "a\n"])
async def test_an_id_that_names_no_file(store, approval_id):
    with pytest.raises(ConfigurationError) as caught:
        await store.save_approval(approval(approval_id))
    assert caught.value.field == "approvalId"
