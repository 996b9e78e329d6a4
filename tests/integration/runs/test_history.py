"""What the model is shown of a conversation, in whole runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure import Agent, Chars, TurnContext, UserMessage, tool
from perdure.activities.turn_stopping import TurnStopping
from perdure.checkpoint_bridge.errors import (
    ConfigurationError,
    ProviderError,
    SessionConflictError,
    SessionNotFoundError,
)
from perdure.testing import ModelRequest, ModelResponse, call
from tests.integration.runs.conftest import Gate, Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.checkpoint_bridge.format.messages import Message
    from perdure.history_options import HistoryTurn
    from tests.integration.runs.conftest import Bench


class Answers(Model):
    """Answers ``A <question>``, or what it is told for a question; some only when let through."""

    def __init__(self, answers: dict[str, Any], gates: dict[str, Gate]) -> None:
        super().__init__([self._turn] * 40)
        self._answers, self._held = answers, gates

    def _turn(self, request: ModelRequest) -> Any:
        question = _question(request)
        return self._answers.get(question, f"A {question}")

    async def generate(self, request: ModelRequest) -> ModelResponse:
        if _question(request) in self._held:
            await self._held[_question(request)].hold()
        return await super().generate(request)


def _question(request: ModelRequest) -> str:
    return next(str(m["content"]) for m in request.messages[::-1] if m["role"] == "user")


def by_question(
    bench: Bench, answers: dict[str, Any] | None = None, gates: dict[str, Gate] | None = None
) -> Answers:
    model = Answers(answers or {}, gates or {})
    bench.models.append(model)
    return model


def asked(request: ModelRequest) -> list[str]:
    return [message["content"] for message in request.messages]


async def test_f37_a_failed_and_a_stopped_turn_are_not_sent(bench: Bench, session: str) -> None:
    gate = bench.gate()
    model = by_question(bench, {"2": ProviderError("No.", status=400)}, {"3": gate})
    agent = Agent("a", provider=model, instructions="S", history_policy="exclude_unfinished")
    async with bench.serving(agent):
        await bench.client.execute("a", "1", session_id=session)
        with pytest.raises(ProviderError):
            await bench.client.execute("a", "2", session_id=session)
        handle = await bench.client.start("a", "3", session_id=session)
        await gate.reached()
        await handle.cancel()
        await handle.result()
        gate.open()
        await bench.client.execute("a", "4", session_id=session)
        await bench.client.execute("a", "5", session_id=session)
    assert asked(model.requests[-1]) == ["S", "1", "A 1", "4", "A 4", "5"]
    # The record has all of it.
    record = await bench.record()
    assert [m["content"] for m in record["messages"]] == [
        "S",
        "1",
        "A 1",
        "2",
        "3",
        "4",
        "A 4",
        "5",
        "A 5",
    ]


async def test_f37_of_a_stopped_answer_only_the_question_is_sent(
    bench: Bench, session: str
) -> None:
    stopped = ModelResponse(text="I must", finish_reason="content_filter")
    model = by_question(bench, {"2": stopped})
    agent = Agent("a", provider=model, history_policy="exclude_unfinished")
    async with bench.serving(agent):
        for question in ("1", "2", "3"):
            await bench.client.execute("a", question, session_id=session)
    assert asked(model.requests[-1]) == ["1", "A 1", "2", "3"]


async def test_f38_the_oldest_turns_do_not_fit(bench: Bench, session: str) -> None:
    model = by_question(bench)
    agent = Agent("a", provider=model, instructions="S" * 99, history_budget=Chars(8))
    async with bench.serving(agent):
        for question in "123456":
            await bench.client.execute("a", question, session_id=session)
        await bench.client.execute("a", "7" * 100, session_id=session)
    # Four characters a turn: with the sixth question there is room for one more.
    assert asked(model.requests[5]) == ["S" * 99, "5", "A 5", "6"]
    assert asked(model.requests[6]) == ["S" * 99, "7" * 100]
    assert len((await bench.record())["messages"]) == 15
    # What was sent is in the log, and can be built again.
    answers = await bench.events("assistant/message")
    assert answers[5].data["history"]["budget"] == {"chars": 8}
    stored = bench.client.sessions.get(session)
    rebuilt = [await stored.request_at(event.sequence) for event in answers]
    assert [each.messages for each in rebuilt] == [each.messages for each in model.requests]


@tool(read_only=True)
def progress() -> str:
    return "10 %"


@tool(read_only=True)
def look() -> str:
    return "seen"


def without_progress(turns: Sequence[HistoryTurn]) -> list[HistoryTurn]:
    return [turn.without(lambda message: message.tool_name == "progress") for turn in turns]


async def test_f36_the_agent_decides_which_observations_are_sent(
    bench: Bench, session: str
) -> None:
    model = bench.model([call("progress"), call("look")], "Done.", "Again.")
    agent = Agent("a", provider=model, tools=[progress, look], history_policy=without_progress)
    async with bench.serving(agent):
        await bench.client.execute("a", "Go", session_id=session)
        await bench.client.execute("a", "And?", session_id=session)
    assert asked(model.requests[1]) == ["Go", "", '"seen"']
    assert [m["role"] for m in model.requests[2].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert "progress" not in str(model.requests[1].messages + model.requests[2].messages)
    results = await bench.events("tool/result")
    assert [event.data["message"]["content"] for event in results] == ['"10 %"', '"seen"']


async def test_a_policy_that_does_what_it_may_not_fails_the_run(bench: Bench, session: str) -> None:
    agent = Agent("a", provider=bench.model("Hi."), history_policy=lambda _: [])
    async with bench.serving(agent):
        with pytest.raises(ConfigurationError, match="left nothing for the model"):
            await bench.client.execute("a", "Go", session_id=session)


GIVEN_AGAIN: list[Any] = ["stop", "stop", []]


async def test_f40_input_is_merged_with_what_is_stored(bench: Bench, session: str) -> None:
    model = by_question(bench, {"stop": ProviderError("No.", status=400)})
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "A hi"}]
    async with bench.serving(Agent("a", provider=model, instructions="sys")):
        await bench.client.execute("a", "hi", session_id=session)
        again = [*said, {"role": "user", "content": "next"}]
        await bench.client.execute("a", again, session_id=session)
        assert asked(model.requests[-1]) == ["sys", "hi", "A hi", "next"]
        # On a finished session the same sentence is a new turn.
        await bench.client.execute("a", "next", session_id=session)
        assert asked(model.requests[-1]) == ["sys", "hi", "A hi", "next", "A next", "next"]
        other = [{"role": "system", "content": "evil"}, {"role": "user", "content": "bye"}]
        await bench.client.execute("a", other, session_id=session)
        systems = [m for m in model.requests[-1].messages if m["role"] == "system"]
        assert systems == [{"role": "system", "content": "sys"}]
        # On an unfinished one it is a retry and adds nothing, as no input at all.
        for given in GIVEN_AGAIN:
            with pytest.raises(ProviderError):
                await bench.client.execute("a", given, session_id=session)
    assert asked(model.requests[-1])[-2:] == ["A bye", "stop"]
    assert asked(model.requests[-1]).count("stop") == 1


# -- compaction ------------------------------------------------------------------------------


async def test_f34_compaction_again_and_nothing_to_compact(bench: Bench, session: str) -> None:
    stored = bench.client.sessions.get(session)
    model = by_question(bench, {"2": ProviderError("No.", status=400)})
    agent = Agent("a", provider=model, instructions="S", history_policy="exclude_unfinished")
    async with bench.serving(agent):
        await bench.client.execute("a", "1", session_id=session)
        with pytest.raises(ProviderError):
            await bench.client.execute("a", "2", session_id=session)
        for question in "34":
            await bench.client.execute("a", question, session_id=session)
        assert await stored.compact(keep_last=4) is None
        assert await stored.compact(keep_last=3, summary="First.") is not None
        head = len(await bench.events())
        assert await stored.compact(keep_last=3) is None
        assert len(await bench.events()) == head
        await bench.client.execute("a", "5", session_id=session)
        # What is known of the turns that stay is still known.
        assert asked(model.requests[-1]) == ["S", "First.", "3", "A 3", "4", "A 4", "5"]
        assert await stored.compact(keep_last=1) is not None
    messages = [message.text for message in await stored.messages()]
    assert messages[0] == "S"
    assert messages[1].splitlines() == [
        "[Summary of the earlier conversation]",
        "user: First.",
        "user: 2",
        "user: 3",
        "assistant: A 3",
        "user: 4",
        "assistant: A 4",
    ]
    assert messages[2:] == ["5", "A 5"]
    status = (await bench.client.sessions.list())[0].status
    assert status == "finished"


async def test_f34_a_run_that_goes_on_is_not_compacted(bench: Bench, session: str) -> None:
    gate = bench.gate()
    stored = bench.client.sessions.get(session)
    model = by_question(bench, gates={"2": gate})
    with pytest.raises(SessionNotFoundError):
        await stored.compact(keep_last=1)
    async with bench.serving(Agent("a", provider=model)):
        await bench.client.execute("a", "1", session_id=session)
        handle = await bench.client.start("a", "2", session_id=session)
        await gate.reached()
        with pytest.raises(SessionConflictError, match="goes on or was cut off"):
            await stored.compact(keep_last=1)
        gate.open()
        await handle.result()
    with pytest.raises(ConfigurationError, match="keep_last is a whole number of turns"):
        await stored.compact(keep_last=0)


async def test_f34_a_run_that_starts_meanwhile_is_seen(bench: Bench, session: str) -> None:
    stored = bench.client.sessions.get(session)
    model = by_question(bench)
    async with bench.serving(Agent("a", provider=model)):
        for question in "12":
            await bench.client.execute("a", question, session_id=session)

        async def summarize(messages: list[Message]) -> str:
            if len(messages) == 2:
                await bench.client.execute("a", "3", session_id=session)
            return f"{len(messages)} messages"

        done = await stored.compact(keep_last=1, summarize=summarize)
    assert done is not None
    assert [m.text for m in await stored.messages()] == ["4 messages", "3", "A 3"]


# -- other sessions' messages ----------------------------------------------------------------


async def test_f41_a_hook_remembers_another_session(bench: Bench, session: str) -> None:
    seen: list[TurnContext] = []

    async def remember(ctx: TurnContext) -> list[UserMessage | str] | None:
        seen.append(ctx)
        if ctx.turn > 1:
            return None
        theirs = await ctx.messages_of("session-a")
        return [UserMessage(f"[Memory] {theirs[-1].text}", source="memory"), "[Note] y"]

    model = by_question(bench)
    agents = (Agent("a", provider=model), Agent("b", provider=model, on_turn_stopping=remember))
    async with bench.serving(*agents):
        await bench.client.execute("a", "x", session_id="session-a")
        log_of_a = await bench.events(session_id="session-a")
        first = await bench.client.execute("b", "1", session_id=session)
        # The turn has ended before: its checkpoint is what it was.
        assert [m.text for m in first.messages] == ["1", "A 1"]
        again = await bench.client.execute("b", [], session_id=session)
        assert (again.text, len(model.requests)) == ("A 1", 2)
        await bench.client.execute("b", "2", session_id=session)
    assert asked(model.requests[-1]) == ["1", "A 1", "[Memory] A x", "[Note] y", "2"]
    said = await bench.events("user/message")
    assert [event.data.get("source") for event in said] == [None, "memory", "remember", None]
    assert await bench.events(session_id="session-a") == log_of_a
    assert [(ctx.turn, ctx.finish_reason, len(ctx.messages)) for ctx in seen] == [
        (1, "stop", 2),
        (2, "stop", 6),
    ]
    # People are told that no user said it.
    entries = await bench.client.sessions.get(session).entries()
    said_by = [entry.data.get("source") for entry in entries if entry.type == "user"]
    assert said_by == [None, "memory", "remember", None]
    theirs = await bench.client.sessions.messages("session-a")
    assert [message.text for message in theirs] == ["x", "A x"]
    with pytest.raises(SessionNotFoundError):
        await bench.client.sessions.messages("nobody")


@pytest.mark.parametrize("error", [RuntimeError("no memory"), SystemExit("no memory")])
async def test_f41_a_hook_that_fails_ends_no_run(
    bench: Bench, session: str, error: BaseException
) -> None:
    async def broken(_: TurnContext) -> list[UserMessage | str]:
        raise error

    model = by_question(bench)
    async with bench.serving(Agent("b", provider=model, on_turn_stopping=broken)):
        for question in "12":
            result = await bench.client.execute("b", question, session_id=session)
            assert result.finish_reason == "stop"
    assert asked(model.requests[-1]) == ["1", "A 1", "2"]


async def test_f41_a_cancel_during_the_hook_comes_too_late(bench: Bench, session: str) -> None:
    gate = bench.gate()

    async def slow(_: TurnContext) -> list[UserMessage | str]:
        await gate.hold()
        return ["[Memory] x"]

    model = by_question(bench)
    async with bench.serving(Agent("b", provider=model, on_turn_stopping=slow)):
        handle = await bench.client.start("b", "1", session_id=session)
        await gate.reached()
        await handle.cancel()
        result = await handle.result()
        assert (result.finish_reason, result.text) == ("stop", "A 1")
        gate.open()
        await bench.client.execute("b", "2", session_id=session)
    assert asked(model.requests[-1]) == ["1", "A 1", "2"]


async def test_f41_what_a_hook_gave_is_there_once(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies after the hook, and again after the append, before Temporal knew."""
    calls: list[int] = []

    async def remember(ctx: TurnContext) -> list[UserMessage | str]:
        calls.append(ctx.turn)
        return ["[Memory] x"]

    inject = TurnStopping._inject
    tries: list[int] = []

    lost = ApplicationError("The worker died.")

    async def dying(self: TurnStopping, *args: Any) -> int:
        tries.append(1)
        if len(tries) == 1:
            raise lost
        head = await inject(self, *args)
        if len(tries) == 2:
            raise lost
        return head

    monkeypatch.setattr(TurnStopping, "_inject", dying)
    model = by_question(bench)
    async with bench.serving(Agent("b", provider=model, on_turn_stopping=remember)):
        await bench.client.execute("b", "1", session_id=session)
        await bench.client.execute("b", "2", session_id=session)
    assert calls == [1, 2]
    assert asked(model.requests[-1]) == ["1", "A 1", "[Memory] x", "2"]
