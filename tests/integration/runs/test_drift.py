"""Agents that change while their runs are open: what is noticed, and what is refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge.errors import (
    AgentDriftError,
    ProviderError,
    ResumeToolMissingError,
)
from perdure.checkpoint_bridge.format.checkpoint import Checkpoint
from perdure.testing import attempts, call

if TYPE_CHECKING:
    from perdure.agent import OnAgentDrift
    from tests.integration.runs.conftest import Bench, Model


@tool(read_only=True, needs_approval=True)
def pay(amount: int = 1) -> str:
    return f"paid {amount}"


@tool(read_only=True)
def look() -> str:
    return "seen"


@tool(read_only=True, name="look")
def look_closer(at: str = "") -> str:
    return "seen closely"


def before(model: Model) -> Agent:
    return Agent("agent", model="m-1", provider=model, tools=[pay, look], instructions="Pay.")


def after(model: Model, option: OnAgentDrift) -> Agent:
    return Agent(
        "agent",
        model="m-2",
        provider=model,
        tools=[pay, look_closer, tool(read_only=True, name="extra")(lambda: 1)],
        instructions="Pay at once.",
        on_agent_drift=option,
    )


DRIFT = {
    "model": {"from": "m-1", "to": "m-2"},
    "toolsAdded": ["extra"],
    "toolsRemoved": [],
    "toolsChanged": ["look"],
    "instructions": True,
}
SAYS = "model m-1 -> m-2; tools added: extra; tools changed (input schema): look; instructions"


async def failed(bench: Bench) -> Model:
    """A run that has failed after its first step."""
    model = bench.model([call("look")], attempts(ProviderError("no credit"), "Done."), "More.")
    async with bench.serving(before(model)):
        with pytest.raises(ProviderError):
            await bench.client.execute("agent", "Go", session_id=bench.session)
    return model


async def paused(bench: Bench) -> tuple[Model, str]:
    model = bench.model([call("look"), call("pay")], "Done.")
    async with bench.serving(before(model)):
        result = await bench.client.execute("agent", "Go", session_id=bench.session)
    assert result.approval_id is not None
    return model, result.approval_id


async def test_resume_warns(bench: Bench, session: str, caplog: pytest.LogCaptureFixture) -> None:
    model = await failed(bench)
    with caplog.at_level(logging.WARNING, "perdure.runs"):
        async with bench.serving(after(model, "warn")):
            result = await bench.client.resume(session)
    assert result is not None
    assert result.text == "Done."
    assert SAYS in caplog.text
    (event,) = await bench.events("agent/drift")
    assert event.data == DRIFT
    # It goes on as the new agent; that one's own resume is no drift.
    fingerprint = (await bench.record())["agentFingerprint"]
    assert fingerprint == after(model, "warn").fingerprint().to_json()


async def test_resume_ignores(bench: Bench, session: str) -> None:
    model = await failed(bench)
    async with bench.serving(after(model, "ignore")):
        result = await bench.client.resume(session)
    assert result is not None
    assert await bench.events("agent/drift") == []


@pytest.mark.parametrize("given", [[], "Go", "Something new"])
async def test_resume_refuses(bench: Bench, session: str, given: Any) -> None:
    model = await failed(bench)
    kept = await bench.events()
    async with bench.serving(after(model, "error")):
        with pytest.raises(AgentDriftError, match=SAYS[:9]) as raised:
            await bench.client.execute("agent", given, session_id=session)
        assert raised.value.code == "LOUSHO_AGENT_DRIFT"
        assert SAYS in raised.value.message
    assert await bench.events() == kept
    assert len(model.requests) == 2
    async with bench.serving(before(model)):
        result = await bench.client.resume(session)
    assert result is not None
    assert result.text == "Done."


@pytest.mark.parametrize("option", ["warn", "ignore", "error"])
async def test_a_finished_session_takes_any_agent(
    bench: Bench, session: str, option: OnAgentDrift
) -> None:
    """Nothing is resumed: the conversation goes on with whoever serves it now."""
    model = bench.model("Hi.", "Hello.")
    async with bench.serving(before(model)):
        await bench.client.execute("agent", "Hi", session_id=session)
    async with bench.serving(after(model, option)):
        result = await bench.client.execute("agent", "And now?", session_id=session)
    assert result.text == "Hello."
    assert await bench.events("agent/drift") == []
    # It has its system prompt already.
    assert [message.text for message in result.messages if message.role == "system"] == ["Pay."]


async def test_only_code_changed(bench: Bench, session: str) -> None:
    model = await failed(bench)
    other = tool(read_only=True, name="look", description="Looks anew.")(lambda: "seen anew")
    agent = Agent(
        "agent",
        model="m-1",
        provider=model,
        tools=[other, pay],
        instructions="Pay.",
        on_agent_drift="error",
        max_steps=7,
    )
    async with bench.serving(agent):
        result = await bench.client.resume(session)
    assert result is not None
    assert result.text == "Done."
    assert await bench.events("agent/drift") == []


async def test_a_record_without_a_fingerprint_resumes_without_a_word(
    bench: Bench, session: str
) -> None:
    """Records of other writers, and old ones, need not have one."""
    calls = [{**call("look"), "id": "c1"}]
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "toolCalls": calls},
    ]
    old = {
        "agentId": "agent",
        "sessionId": session,
        "stepIndex": 1,
        "messages": messages,
        "toolCalls": calls,
        "usage": {"promptTokens": 5, "completionTokens": 2, "totalTokens": 7},
        "x-theirs": {"kept": True},
    }
    await bench.store.save(session, Checkpoint.from_json(old))
    model = bench.model("Unasked.", "Done.")
    async with bench.serving(after(model, "error")):
        result = await bench.client.resume(session)
    assert result is not None
    assert (result.text, result.steps) == ("Done.", 2)
    record = await bench.record()
    assert record["x-theirs"] == {"kept": True}
    assert record["usage"]["byModel"]["unknown"]["inputTokens"] == 5
    assert [m["content"] for m in await bench.results()] == ['"seen closely"']
    assert await bench.events("agent/drift") == []


async def test_an_approval_after_a_deploy_warns(bench: Bench) -> None:
    model, approval_id = await paused(bench)
    async with bench.serving(after(model, "warn")):
        result = await bench.client.approvals.resolve(approval_id, approved=True)
    assert result.text == "Done."
    (event,) = await bench.events("agent/drift")
    assert event.data == DRIFT
    assert [m["content"] for m in await bench.results()] == ['"seen"', '"paid 1"']


async def test_an_approval_after_a_deploy_ignores(bench: Bench) -> None:
    model, approval_id = await paused(bench)
    async with bench.serving(after(model, "ignore")):
        await bench.client.approvals.resolve(approval_id, approved=True)
    assert await bench.events("agent/drift") == []


async def test_an_approval_after_a_deploy_is_put_back(bench: Bench, session: str) -> None:
    model, approval_id = await paused(bench)
    kept = await bench.events()
    async with bench.serving(after(model, "error")):
        for _ in range(2):
            with pytest.raises(AgentDriftError) as raised:
                await bench.client.approvals.resolve(approval_id, approved=True)
            assert SAYS in raised.value.message
        # The same by a plain signal: the run says why it did nothing.
        await bench.workflow().signal("resolve_approval", {"id": approval_id, "approved": True})

        async def said() -> bool:
            return "is not the one that asked" in (await bench.state())["problem"]

        await bench.until(said)
    assert await bench.events() == kept
    assert [each.id for each in await bench.client.approvals.list(session)] == [approval_id]
    async with bench.serving(before(model)):
        result = await bench.client.approvals.resolve(approval_id, approved=True, by="ann")
    assert result.text == "Done."


def without(model: Model, *gone: str, option: OnAgentDrift = "ignore") -> Agent:
    tools = [each for each in (pay, look) if each.name not in gone]
    return Agent("agent", provider=model, tools=tools, on_agent_drift=option)


@pytest.mark.parametrize("option", ["warn", "error", "ignore"])
async def test_r22_a_missing_tool_cannot_be_approved(
    bench: Bench, session: str, option: OnAgentDrift
) -> None:
    model, approval_id = await paused(bench)
    kept = await bench.events()
    async with bench.serving(without(model, "pay", option=option)):
        with pytest.raises(ResumeToolMissingError) as raised:
            await bench.client.approvals.resolve(approval_id, approved=True)
        assert raised.value.code == "LOUSHO_RESUME_TOOL_MISSING"
        assert raised.value.tools == ["pay"]
        assert await bench.events() == kept
        # Rejecting it needs no tool.
        result = await bench.client.approvals.resolve(approval_id, approved=False)
    assert result.text == "Done."
    assert [m.get("isError") for m in await bench.results()] == [None, True]


@pytest.mark.parametrize("option", ["warn", "error", "ignore"])
async def test_a_pending_call_whose_tool_is_gone(
    bench: Bench, session: str, option: OnAgentDrift
) -> None:
    gate = bench.gate()

    @tool(read_only=True, name="look")
    async def slow() -> str:
        await gate.hold()
        return "seen"

    # Side by side: what such calls gave while nobody was there is in the ledger alone.
    model = bench.model([call("look"), call("look")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[slow, pay])):
        await bench.client.start("agent", "Go", session_id=session)
        await gate.reached()
        await bench.workflow().terminate()
        gate.open()
    kept = await bench.record()
    async with bench.serving(without(model, "look", option=option)):
        with pytest.raises(ResumeToolMissingError) as raised:
            await bench.client.resume(session)
        assert raised.value.tools == ["look"]
        with pytest.raises(ResumeToolMissingError):
            await bench.client.execute("agent", "Then not", session_id=session)
    assert await bench.record() == kept
    async with bench.serving(without(model)):
        result = await bench.client.resume(session)
    assert result is not None
    assert result.text == "Done."


async def test_r22_a_tool_that_goes_away_while_the_run_goes_on(bench: Bench, session: str) -> None:
    """A recorded result needs no tool: the run goes on by what its history says."""
    model = bench.model([call("look"), call("pay"), call("look")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[pay, look])):
        paused_run = await bench.client.execute("agent", "Go", session_id=session)
        assert paused_run.approval_id is not None
    async with bench.serving(without(model, "look")):
        result = await bench.client.approvals.resolve(paused_run.approval_id, approved=True)
    assert result.text == "Done."
    contents = [m["content"] for m in await bench.results()]
    assert contents[:2] == ['"seen"', '"paid 1"']
    assert '"kind":"not-found"' in contents[2]
