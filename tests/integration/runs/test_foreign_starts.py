"""Runs that other programs start, in any language, and ids that other workflows use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure import Agent, tool
from perdure.checkpoint_bridge.errors import SessionConflictError
from perdure.checkpoint_bridge.format.transcript import tool_message
from perdure.client import connect
from perdure.connection import connect_temporal
from perdure.testing import call
from perdure.worker import serving

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


@tool(read_only=True)
def look() -> str:
    return "seen"


@tool(read_only=True, needs_approval=True)
def gated() -> str:
    return "done"


async def test_agent_and_input_are_enough(bench: Bench, session: str) -> None:
    model = bench.model([call("look")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        handle = await bench.start_plain({"agent": "agent", "input": "Go"})
        outcome = await handle.result()
    assert outcome == {
        "session_id": session,
        "run_id": handle.first_execution_run_id,
        "status": "finished",
        "finish_reason": "stop",
        "steps": 2,
        "text": "Done.",
        "input_tokens": 200,
        "output_tokens": 20,
    }
    record = await bench.record()
    assert (record["sessionId"], record["status"]) == (session, "finished")


async def test_every_key_of_the_request(bench: Bench, session: str) -> None:
    request = {
        "agent": "agent",
        "session_id": session,
        "input": [{"role": "user", "content": "Go"}],
        "business_state": {"order": 7},
        "metadata": {"tenant": "t"},
        "max_steps": 1,
    }
    model = bench.model([call("look")], "Unheard.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        outcome = await (await bench.start_plain(request)).result()
    assert (outcome["finish_reason"], outcome["steps"]) == ("max-steps", 1)
    assert (await bench.record())["businessState"] == {"order": 7}
    (start,) = await bench.events("turn/start")
    assert start.data["metadata"] == {"tenant": "t"}


async def test_a_whole_conversation_as_input(bench: Bench, session: str) -> None:
    made = {**call("look"), "id": "c1"}
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "", "toolCalls": [made]},
        {
            "role": "tool",
            "content": '"old"',
            "name": "look",
            "toolName": "look",
            "toolCallId": "c1",
        },
        {"role": "assistant", "content": "Old."},
        {"role": "user", "content": "Again"},
    ]
    model = bench.model("Unasked.", "Unasked.", "New.")
    async with bench.serving(Agent("agent", provider=model, tools=[look])):
        outcome = await (await bench.start_plain({"agent": "agent", "input": talk})).result()
    assert (outcome["text"], outcome["steps"]) == ("New.", 1)
    assert model.requests[0].messages == talk


@pytest.mark.parametrize("more", [[], [{"role": "user", "content": "Well?"}]])
async def test_a_conversation_that_ends_in_calls(
    bench: Bench, session: str, more: list[dict[str, Any]]
) -> None:
    """As in a stored session: those calls are made first, and nothing stands before them."""
    made = [{**call("look"), "id": "c1"}, {**call("look"), "id": "c2"}]
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "", "toolCalls": made},
        tool_message(made[1], '"old"'),
        *more,
    ]
    model = bench.model("Unasked.", "Seen.")
    agent = Agent("agent", provider=model, tools=[look], instructions="Look well.")
    async with bench.serving(agent):
        result = await bench.client.execute("agent", talk, session_id=session)
    assert result.text == "Seen."
    assert [message["content"] for message in await bench.results()] == ['"seen"', '"old"']
    assert model.requests[0].messages[5:] == more
    assert (await bench.client.sessions.list())[0].title == "Look"


async def test_a_reference_to_nothing_does_not_end_a_run(bench: Bench, session: str) -> None:
    model = bench.model("One.", "Two.")
    gate = model.gate(1)
    async with bench.serving(Agent("agent", provider=model)):
        handle = await bench.client.start("agent", "a", session_id=session)
        await gate.reached()
        await bench.workflow().execute_update("send_input", {"input_ref": "0" * 64})
        await bench.client.start("agent", "b", session_id=session)
        gate.open()
        result = await handle.result()
    assert result.text == "Two."
    assert [m.text for m in result.messages] == ["a", "One.", "b", "Two."]


BAD: dict[str, tuple[Any, str, str]] = {
    "a text": ("Plan my trip", "one JSON object", "ConfigurationError"),
    "a number": (7, "one JSON object", "ConfigurationError"),
    "null": (None, "one JSON object", "ConfigurationError"),
    "a list": ([{"agent": "agent"}], "one JSON object", "ConfigurationError"),
    "an empty object": ({}, "agent is a text", "ConfigurationError"),
    "no agent": ({"input": "Go"}, "agent is a text", "ConfigurationError"),
    "an empty agent": ({"agent": "", "input": "Go"}, "agent is a text", "ConfigurationError"),
    "an agent that is a number": ({"agent": 7, "input": "Go"}, "agent is", "ConfigurationError"),
    "an unknown agent": ({"agent": "b", "input": "Go"}, "no agent 'b'", "ConfigurationError"),
    "an unknown key": (
        {"agent": "agent", "imput": "Go"},
        "has no key 'imput'",
        "ConfigurationError",
    ),
    "no input": ({"agent": "agent"}, "input is empty", "ConfigurationError"),
    "an empty input": ({"agent": "agent", "input": ""}, "empty text", "ConfigurationError"),
    "input that is a number": ({"agent": "agent", "input": 7}, "not int", "ConfigurationError"),
    "input of texts": ({"agent": "agent", "input": ["Go"]}, "Message 0", "ConfigurationError"),
    "a message without content": (
        {"agent": "agent", "input": [{"role": "user"}]},
        "needs content",
        "ConfigurationError",
    ),
    "a reference to nothing": (
        {"agent": "agent", "input_ref": "0" * 64},
        "does not hold the input",
        "ConfigurationError",
    ),
    "a reference that is none": (
        {"agent": "agent", "input_ref": 7},
        "input_ref",
        "ConfigurationError",
    ),
    "no steps": ({"agent": "agent", "input": "Go", "max_steps": 0}, "not 0", "ConfigurationError"),
    "steps in words": (
        {"agent": "agent", "input": "Go", "max_steps": "3"},
        "whole number",
        "ConfigurationError",
    ),
    "true steps": (
        {"agent": "agent", "input": "Go", "max_steps": True},
        "whole number",
        "ConfigurationError",
    ),
    "metadata that is a text": (
        {"agent": "agent", "input": "Go", "metadata": "m"},
        "metadata is a JSON object",
        "ConfigurationError",
    ),
    "another session": (
        {"agent": "agent", "input": "Go", "session_id": "other"},
        "differs from the workflow id",
        "SessionConflictError",
    ),
    "a session id that is a number": (
        {"agent": "agent", "input": "Go", "session_id": 7},
        "7 is not a session id",
        "SessionIdInvalidError",
    ),
    "a prefix of another id": (
        {"agent": "agent", "input": "Go", "workflow_id_prefix": "prod-"},
        "does not start with",
        "ConfigurationError",
    ),
}


async def test_bad_requests_fail_with_one_clear_message(bench: Bench, session: str) -> None:
    """A failed workflow says what was wrong; a failing workflow task would be tried for ever."""
    model = bench.model("Unheard.")
    async with bench.serving(Agent("agent", provider=model)):
        for number, (request, says, error_type) in enumerate(BAD.values()):
            handle = await bench.start_plain(request, f"{session}-{number}")
            await refused(bench, handle, says, error_type)
    assert model.requests == []


async def refused(bench: Bench, handle: Any, says: str, error_type: str) -> None:
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError)
    assert says in cause.message
    assert "\n" not in cause.message
    assert cause.type == error_type
    assert f"[{cause.details[0]['code']}]" in cause.message
    history = await handle.fetch_history()
    kinds = {event.event_type for event in history.events}
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in kinds
    assert await bench.client.sessions.list() == []


async def test_no_argument_at_all(bench: Bench, session: str) -> None:
    async with bench.serving(Agent("agent", provider=bench.model())):
        handle = await bench.temporal.start_workflow(
            "AgentWorkflow", id=session, task_queue=bench.queue
        )
        await refused(bench, handle, "one JSON object", "ConfigurationError")


async def test_more_than_one_argument(bench: Bench, session: str) -> None:
    others: list[list[Any]] = [["Plan my trip"], [7], [{"agent": "agent"}], [[1]], [None, None]]
    async with bench.serving(Agent("agent", provider=bench.model())):
        for number, more in enumerate(others):
            handle = await bench.temporal.start_workflow(
                "AgentWorkflow",
                args=[{"agent": "agent", "input": "Go"}, *more],
                id=f"{session}-{number}",
                task_queue=bench.queue,
            )
            await refused(bench, handle, "one argument", "ConfigurationError")


async def test_workflow_ids_that_are_no_session_ids(bench: Bench, session: str) -> None:
    async with bench.serving(Agent("agent", provider=bench.model())):
        for odd in ("with space", "a/b", "ä", "x" * 200):
            handle = await bench.start_plain({"agent": "agent", "input": "Go"}, f"{odd}{session}")
            await refused(bench, handle, "is not a session id", "SessionIdInvalidError")


async def test_bad_input_to_a_run_that_goes_on(bench: Bench, session: str) -> None:
    """It is refused before it is queued, whoever sends it; the run goes on."""
    model = bench.model("Done.")
    gate = model.gate(1)
    bad: list[Any] = ["", [], 7, None, {"role": "user"}, ["Go"], [{"role": "boss", "content": ""}]]
    async with bench.serving(Agent("agent", provider=model)):
        handle = await bench.start_plain({"agent": "agent", "input": "Go"})
        await gate.reached()
        for value in bad:
            with pytest.raises(WorkflowUpdateFailedError) as raised:
                await bench.workflow().execute_update("send_input", value)
            assert isinstance(raised.value.cause, ApplicationError)
            assert raised.value.cause.type == "ConfigurationError"
        assert (await bench.state())["queued"] == 0
        gate.open()
        assert (await handle.result())["text"] == "Done."


async def test_a_bug_of_ours_fails_the_run(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not leave one that tries for ever and says nothing."""
    agent = Agent("agent", provider=bench.model("Done."))
    monkeypatch.setattr(agent, "fingerprint", lambda: str(1 // 0))
    async with bench.serving(agent):
        handle = await bench.start_plain({"agent": "agent", "input": "Go"})
        with pytest.raises(WorkflowFailureError) as raised:
            await handle.result()
    assert isinstance(raised.value.cause, ApplicationError)
    assert "ZeroDivisionError" in raised.value.cause.message
    assert raised.value.cause.type == "RunFailedError"
    assert await bench.client.sessions.list() == []
    bench.replay_all = False


# -- ids that are somebody else's -------------------------------------------------------------


async def test_an_id_of_another_workflow(bench: Bench, session: str) -> None:
    stranger = await bench.temporal.start_workflow(
        "NightlyReport", id=session, task_queue=f"{bench.queue}-reports"
    )
    model = bench.model("Unheard.")
    async with bench.serving(Agent("agent", provider=model)):
        inputs: list[Any] = ["Go", []]
        for given in inputs:
            with pytest.raises(SessionConflictError) as raised:
                await bench.client.execute("agent", given, session_id=session)
            assert "'NightlyReport'" in raised.value.message
            assert session in raised.value.message
    history = await stranger.fetch_history()
    assert [event.event_type for event in history.events] == [
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    ]
    await stranger.terminate()
    assert await bench.client.sessions.list() == []


async def test_a_prefix_avoids_it(bench: Bench, session: str) -> None:
    stranger = await bench.temporal.start_workflow(
        "NightlyReport", id=session, task_queue=f"{bench.queue}-reports"
    )

    @tool(read_only=True, needs_approval=True)
    def gated() -> str:
        return "done"

    model = bench.model([call("gated")], "Done.", "More.", "Last.")
    async with (
        bench.serving(Agent("agent", provider=model, tools=[gated])),
        connect(
            bench.store_url,
            temporal=bench.temporal,
            task_queue=bench.queue,
            workflow_id_prefix="perdure-",
        ) as client,
    ):
        paused = await client.execute("agent", "Go", session_id=session)
        assert paused.session_id == session
        assert paused.approval_id is not None
        # The prefix crosses to a run that is reopened, and to one that late input starts.
        await bench.workflow(f"perdure-{session}").terminate()
        result = await client.approvals.resolve(paused.approval_id, approved=True)
        assert result.text == "Done."
        gate = model.gate(3)
        await client.start("agent", "On", session_id=session)
        await gate.reached()
        last = await client.start("agent", "And on", session_id=session)
        gate.open()
        assert (await last.result()).text == "Last."
        record = await bench.record()
        await bench.replay(f"perdure-{session}")
    assert record["sessionId"] == session
    await stranger.terminate()
    bench.replay_all = False


def json_of(data: bytes) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=data)


UNREADABLE: dict[str, tuple[str, Payload]] = {
    "deep": ("too deeply; at most 200 levels", json_of(b"[" * 100_000 + b"]" * 100_000)),
    "broken": ("as 'json/plain': Unterminated", json_of(b'{"agent": "agent", "input": "Go')),
    "empty": ("as 'json/plain': Expecting value", json_of(b"")),
    "not UTF-8": ("can't decode byte 0xff", json_of(b'{"agent":"\xff"}')),
    "5,000 digits": ("as 'json/plain': Exceeds the limit", json_of(b"7" * 5000)),
    "no encoding": ("as ''.", Payload(data=b"{}")),
    "no type of message": (
        "as 'json/protobuf'.",
        Payload(metadata={"encoding": b"json/protobuf"}, data=b"{}"),
    ),
    "a broken message": (
        "as 'binary/protobuf'.",
        Payload(
            metadata={
                "encoding": b"binary/protobuf",
                "messageType": b"temporal.api.common.v1.Payload",
            },
            data=b"\xff",
        ),
    ),
    "a null with data": (
        "as 'binary/null'.",
        Payload(metadata={"encoding": b"binary/null"}, data=b"0"),
    ),
}


async def test_what_cannot_be_read_fails_at_once(bench: Bench, session: str) -> None:
    """As a program would send it whose JSON nobody checked; it would be tried again for ever."""
    temporal = await connect_temporal(bench.temporal.service_client.config.target_host)
    model = bench.model([call("gated")], "Done.")
    agent = Agent("agent", provider=model, tools=[gated])
    bench.replay_all = False  # by a replayer with the same converter
    async with serving(temporal, [agent], bench.store, task_queue=bench.queue):
        for number, (why, payload) in enumerate(UNREADABLE.values()):
            handle = await bench.start_plain(RawValue(payload), f"{session}-{number}")
            await refused(bench, handle, why, "ConfigurationError")
        # A signal or an update that cannot be read harms no run.
        paused = await bench.client.execute("agent", "Go", session_id=session)
        assert paused.approval_id is not None
        for _, payload in UNREADABLE.values():
            sent = RawValue(payload)
            await bench.workflow().signal("resolve_approval", sent)
            with pytest.raises(WorkflowUpdateFailedError):
                await bench.workflow().execute_update("resolve_approval_now", sent)
        result = await bench.client.approvals.resolve(paused.approval_id, approved=True)
        assert result.text == "Done."
