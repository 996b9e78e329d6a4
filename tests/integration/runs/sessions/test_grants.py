"""Approvals for the session: asked once, remembered until the session is forked or begun anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, tool
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.testing import call
from perdure.workflows import options

if TYPE_CHECKING:
    from perdure.results import RunResult
    from tests.integration.runs.conftest import Bench

BOTH = [call("pay"), call("pay"), call("mail")]


def till(bench: Bench, *turns: Any) -> tuple[Agent, list[str]]:
    done: list[str] = []

    @tool(needs_approval=True, idempotent=True)
    async def pay() -> str:
        done.append("pay")
        return "paid"

    @tool(needs_approval=True, idempotent=True)
    async def mail() -> str:
        done.append("mail")
        return "sent"

    return Agent("till", provider=bench.model(*turns), tools=[pay, mail]), done


async def approve(bench: Bench, paused: RunResult, scope: str | None = None) -> RunResult:
    assert paused.approval_id is not None
    return await bench.client.approvals.resolve(
        paused.approval_id, approved=True, by="ann", scope=scope
    )


async def test_f6_a_tool_is_approved_for_the_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, done = till(bench, BOTH, "Done.", [call("pay")], "Again.", [call("pay")], "Forked.")
    async with bench.serving(agent):
        paused = await bench.client.execute("till", "Pay", session_id=bench.session)
        paused = await approve(bench, paused, "session")
        # The second call of the tool ran, the other tool asks for itself.
        assert (paused.finish_reason, done) == ("awaiting-approval", ["pay", "pay"])
        assert (await approve(bench, paused)).text == "Done."
    (granted,) = await bench.events("approval/granted")
    assert granted.data == {"tool": "pay", "scope": "session", "by": "ann"}
    assert (await bench.events("approval/decided"))[0].data["scope"] == "session"
    # Another worker, with nothing in its memory, and an execution that continues as new.
    monkeypatch.setattr(options, "EVENTS_PER_EXECUTION", 5)
    bench.replay_all = False
    async with bench.serving(agent):
        result = await bench.client.execute("till", "Once more", session_id=bench.session)
        assert (result.text, done) == ("Again.", ["pay", "pay", "mail", "pay"])
        fork = await bench.client.sessions.get(bench.session).fork()
        asked = await bench.client.execute("till", "In the fork", session_id=fork.session_id)
        assert asked.finish_reason == "awaiting-approval"


async def cited(bench: Bench) -> list[str]:
    """What ran by a grant; each event cites it, and the call's announcement comes next."""
    (granted,) = await bench.events("approval/granted")
    log = await bench.store.events(bench.session)
    found = []
    for at, event in enumerate(log):
        if event.type == "approval/auto":
            announced = log[at + 1]
            assert announced.type == "tool/call"
            assert event.data == {**announced.data, "grant": granted.sequence}
            found.append(event.data["name"])
    return found


async def test_f89_what_runs_by_a_grant_cites_it(bench: Bench) -> None:
    turns = BOTH, "Done.", [call("pay"), call("mail"), call("pay")], "Again."
    agent, done = till(bench, *turns)
    async with bench.serving(agent):
        paused = await bench.client.execute("till", "Pay", session_id=bench.session)
        assert await bench.events("approval/auto") == []
        paused = await approve(bench, paused, "session")
        assert await cited(bench) == ["pay"]
        assert (await approve(bench, paused)).text == "Done."
        # In a later turn there is no pause, and the other tool is asked about each time.
        paused = await bench.client.execute("till", "Once more", session_id=bench.session)
        assert (paused.finish_reason, done) == ("awaiting-approval", ["pay", "pay", "mail", "pay"])
        assert (await approve(bench, paused)).text == "Again."
    assert await cited(bench) == ["pay", "pay", "pay"]
    brain = bench.client.sessions.get(bench.session).events(view="brain")
    assert [event.type async for event in brain].count("approval_auto") == 3


async def test_a_grant_by_signal_outlives_the_run_that_asked(bench: Bench) -> None:
    agent, done = till(bench, [call("pay"), call("pay")], "Done.")
    async with bench.serving(agent):
        paused = await bench.client.execute("till", "Pay", session_id=bench.session)
        await bench.workflow().terminate()
    # It is decided while nobody serves, and the run that acts on it is another one.
    decision = {"approved": True, "scope": "session"}
    assert paused.approval_id is not None
    await bench.store.decide(paused.approval_id, decision)
    async with bench.serving(agent):
        result = await bench.client.resume(bench.session)
    assert result is not None
    assert (result.text, done) == ("Done.", ["pay", "pay"])
    assert await cited(bench) == ["pay"]  # not the one that a person decided about


async def test_what_is_not_for_the_session(bench: Bench) -> None:
    agent, done = till(bench, [call("pay")], "No.")
    async with bench.serving(agent):
        paused = await bench.client.execute("till", "Pay", session_id=bench.session)
        assert paused.approval_id is not None
        for arguments in (
            {"approved": False, "scope": "session"},
            {"approved": True, "scope": "for ever"},
        ):
            with pytest.raises(ConfigurationError, match=r"scope|session"):
                await bench.client.approvals.resolve(paused.approval_id, **arguments)  # type: ignore[arg-type]
        result = await bench.client.approvals.resolve(
            paused.approval_id, approved=False, scope="once"
        )
    assert (result.text, done) == ("No.", [])
