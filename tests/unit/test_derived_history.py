"""What is derived from a log: the messages, and which of them a request shows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from perdure import Agent, Chars, Tokens, derive_messages
from perdure.checkpoint_bridge import derive_event_message
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.transcript import (
    assert_valid,
    split_pending_turn,
)
from perdure.checkpoint_bridge.log import events as ev
from perdure.checkpoint_bridge.log.derived import messages_of
from perdure.checkpoint_bridge.log.events import Event, NewEvent, decode, dump
from perdure.checkpoint_bridge.log.fold import SessionState, spent
from perdure.checkpoint_bridge.log.request_messages import (
    HistoryTurn,
    history_record,
    recorded_messages,
)
from perdure.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.checkpoint_bridge.log.request_messages import HistoryBudget, HistoryPolicy

USAGE = {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}


def say(text: str) -> NewEvent:
    return NewEvent(ev.USER_MESSAGE, {"message": {"role": "user", "content": text}})


def system(text: str) -> NewEvent:
    return NewEvent(ev.SYSTEM_MESSAGE, {"message": {"role": "system", "content": text}})


def answer(text: str = "", *calls: str, tool: str = "t", **more: Any) -> NewEvent:
    message: dict[str, Any] = {"role": "assistant", "content": text, **more}
    if calls:
        message["toolCalls"] = [
            {"id": call, "type": "function", "function": {"name": tool, "arguments": "{}"}}
            for call in calls
        ]
    return NewEvent(ev.ASSISTANT_MESSAGE, {"message": message, "model": "m", "usage": USAGE})


def result(seq: int, index: int, call: str, content: str = "ok", tool: str = "t") -> NewEvent:
    message = {"role": "tool", "content": content, "toolCallId": call, "toolName": tool}
    return NewEvent(ev.TOOL_RESULT, {"seq": seq, "index": index, "message": message})


def start(turn: int, *, fresh: bool = True) -> NewEvent:
    data = {"turn": turn, "runId": "r", "agent": "a", "fresh": fresh}
    return NewEvent(ev.TURN_START, data)


def end(kind: str = "completed", finish_reason: str = "stop") -> NewEvent:
    reason = {"kind": kind}
    return NewEvent(ev.TURN_END, {"turn": 1, "reason": reason, "finishReason": finish_reason})


def turn(number: int, kind: str = "completed", finish_reason: str = "stop") -> list[NewEvent]:
    """A turn of ten characters of question and ten of answer."""
    question, said = f"question {number}", f"answer no{number}"
    return [start(number), say(question), answer(said), end(kind, finish_reason)]


def log_of(new: Sequence[NewEvent]) -> list[Event]:
    return [Event(seq, event.type, 0, event.data) for seq, event in enumerate(new)]


def fold(*new: NewEvent) -> SessionState:
    return SessionState().fold(log_of(new))


def texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


def request_messages(
    state: SessionState,
    policy: HistoryPolicy = "keep",
    budget: HistoryBudget | None = None,
    *,
    shown: Callable[[dict[str, Any]], dict[str, Any]] = lambda message: message,
) -> list[dict[str, Any]]:
    """The messages of the next request, built from what its record will say of it."""
    record = json.loads(dump(history_record(state, policy, budget, shown=shown)))
    return recorded_messages(state.messages, record, shown=shown)


def shown(
    state: SessionState, policy: HistoryPolicy = "keep", budget: HistoryBudget | None = None
) -> list[str]:
    return texts(request_messages(state, policy, budget))


# -- F32, F33 --------------------------------------------------------------------------------


def test_f32_derive_messages_is_pure_and_frozen() -> None:
    log = log_of([*turn(1), start(2), say("look"), answer("", "c"), result(6, 0, "c"), end()])
    exported = [(event.seq, event.type, dump(event.data)) for event in log]
    elsewhere = [Event(seq, type_, 5, decode(type_, data, None)) for seq, type_, data in exported]
    here = derive_messages(log)
    assert here == derive_messages(log) == derive_messages(elsewhere)
    assert [message.role for message in here] == ["user", "assistant", "user", "assistant", "tool"]

    raw: Any = here[3].raw
    for change in (
        lambda: raw.update(content="?"),
        lambda: raw.pop("content"),
        lambda: raw.__setitem__("content", "?"),
        lambda: raw["toolCalls"].append({}),
        raw["toolCalls"][0]["function"].clear,
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    copy = here[3].to_json()
    copy["content"] = "mine"
    here.clear()
    assert len(derive_messages(log)) == 5
    assert json.loads(json.dumps(raw)) == log[6].data["message"]


def test_f32_each_message_is_frozen_once() -> None:
    state = fold(*turn(1))
    first = messages_of(state)
    later = state.copy().fold(
        Event(seq, event.type, 0, event.data) for seq, event in enumerate(turn(2), start=4)
    )
    then = messages_of(later)
    assert [one is other for one, other in zip(first, then, strict=False)] == [True, True]
    assert messages_of(state) is not first
    assert messages_of(state) == first


def test_f33_surface_types() -> None:
    log = log_of(
        [
            start(1),
            system("S"),
            system(""),
            say("Go"),
            NewEvent(ev.ASSISTANT_ATTEMPT, {"error": {"code": "X"}}),
            answer(""),
            end("max-tokens", "length"),
        ]
    )
    # Cut before it said anything: no blank message, and its usage counts.
    assert [message.content for message in derive_messages(log)] == ["S", "Go"]
    assert spent(log)["totalTokens"] == 12
    shows = [
        None if message is None else message["content"]
        for message in map(derive_event_message, log)
    ]
    assert shows == [None, "S", None, "Go", None, None, None]

    # A user's message as it is; a result is the answer to its call; calls without text show.
    parts = say("")
    assert derive_event_message(log_of([parts])[0]) == {"role": "user", "content": ""}
    for each in (result(0, 0, "c", ""), answer("", "c"), answer("", reasoning=[{"text": "…"}])):
        assert derive_event_message(log_of([each])[0]) == each.data["message"]


def test_what_is_no_message_is_left_out() -> None:
    odd = NewEvent(ev.TRANSCRIPT_DELTA, {"keep": 0, "append": [None, {"role": "user"}, 3]})
    assert [message.raw for message in derive_messages(log_of([odd]))] == [{"role": "user"}]


# -- F36, F37, F38 ---------------------------------------------------------------------------


def test_f37_unfinished_turns_are_left_out_of_the_next_request() -> None:
    log = [*turn(1), *turn(2, "error"), *turn(3, "aborted"), *turn(4), start(5), say("q5")]
    state = fold(*log)
    kept = ["question 1", "answer no1", "question 4", "answer no4", "q5"]
    assert shown(state, "exclude_unfinished") == kept
    # The log, and what everybody else sees, is as it was.
    assert texts(state.messages) == shown(state) != kept
    for kind in ("blocked", "interrupted", "limit"):
        log[7] = end(kind)
        assert shown(fold(*log), "exclude_unfinished") == kept
    # Of an answer that the server stopped, only the question stays.
    log[7] = end("completed", "content_filter")
    stopped = [*kept[:2], "question 2", *kept[2:]]
    assert shown(fold(*log), "exclude_unfinished") == stopped
    # The newest turn is there, whatever became of it: a run that goes on goes on with it.
    failed = [*turn(1), *turn(2, "error"), start(3, fresh=False)]
    assert shown(fold(*failed), "exclude_unfinished")[2:] == ["question 2", "answer no2"]
    # And when it came to its end after all, it is a turn like any other.
    assert "answer no2" in shown(
        fold(*failed, answer("at last"), end(), start(4), say("q4")), "exclude_unfinished"
    )


def test_f37_results_that_came_late_belong_to_their_turn() -> None:
    log = [system("S"), start(1), say("one"), answer("", "a"), end("error")]
    log += [start(2, fresh=False), say("two"), result(3, 0, "a"), answer("Two."), end()]
    state = fold(*log, start(3), say("three"))
    assert texts(state.messages) == ["S", "one", "", "ok", "two", "Two.", "three"]
    assert shown(state, "exclude_unfinished") == ["S", "two", "Two.", "three"]
    assert [span.start for span in state.spans.all] == [1, 4, 6]


def test_f38_the_budget_drops_the_oldest_turns() -> None:
    log = [system("S" * 1000), *(event for number in range(1, 6) for event in turn(number))]
    size = len("question 1answer no1")
    sixth = [start(6), say("q6")]
    wanted = ["S" * 1000, "question 5", "answer no5", "q6"]
    for budget in (Chars(2 * size), Tokens(2 * 5 + 1, count=lambda _: 3)):
        assert shown(fold(*log, *sixth), budget=budget) == wanted
    # A token is four characters where nobody counts them: three and three a turn.
    assert shown(fold(*log, *sixth), budget=Tokens(12)) == wanted
    huge = [start(6), say("x" * 5000)]
    assert shown(fold(*log, *huge), budget=Chars(2 * size)) == ["S" * 1000, "x" * 5000]
    assert len(shown(fold(*log, *sixth), budget=Chars(10**6))) == 12


def test_f38_the_budget_counts_what_is_shown_and_after_the_policy() -> None:
    log = [*turn(1), *turn(2, "error"), start(3), say("q3"), answer("", "c")]
    state = fold(*log, result(10, 0, "c", "x" * 1000))
    budget = Chars(60)
    cut = request_messages(
        state, "exclude_unfinished", budget, shown=lambda m: {**m, "content": m["content"][:10]}
    )
    assert texts(cut) == ["question 1", "answer no1", "q3", "", "x" * 10]
    assert shown(state, "exclude_unfinished", budget) == ["q3", "", "x" * 1000]


def test_what_the_record_of_a_request_says() -> None:
    state = fold(system("S"), *turn(1), *turn(2, "error"), *turn(3))
    assert history_record(state, "keep", None) == {"policy": "keep", "budget": None, "places": None}
    assert history_record(state, "exclude_unfinished", Tokens(99)) == {
        "policy": "exclude_unfinished",
        "budget": {"tokens": 99},
        "places": [[0, 3], [5, 7]],
    }
    assert history_record(state, no_progress, Chars(1)) == {
        "policy": "custom",
        "budget": {"chars": 1},
        "places": [[0, 1], [5, 7]],
    }


def no_progress(turns: Sequence[HistoryTurn]) -> list[HistoryTurn]:
    return [each.without(lambda message: message.tool_name == "progress") for each in turns]


def test_f36_a_policy_of_ones_own_dismisses_observations() -> None:
    both = answer("", "a", "b", reasoning=[{"text": "hm"}])
    both.data["message"]["toolCalls"][0]["function"]["name"] = "progress"
    log = [start(1), say("Go"), both, result(2, 0, "a", "10 %", tool="progress"), result(2, 1, "b")]
    log += [answer("", "c", tool="progress", reasoning=[{"text": "so"}])]
    log += [result(5, 0, "c", "20 %", tool="progress")]
    log += [answer("Wait.", "d", tool="progress"), result(7, 0, "d", tool="progress")]
    state = fold(*log)
    made = request_messages(state, no_progress)
    assert_valid(made)
    assert texts(made) == ["Go", "", "ok", "Wait."]
    assert [call["id"] for call in made[1]["toolCalls"]] == ["b"]
    assert made[1]["reasoning"] == [{"text": "hm"}]
    assert "toolCalls" not in made[3]
    assert len(state.messages) == 8
    assert [event.data["message"] for event in log[3:5]] == [state.messages[2], state.messages[3]]


def test_f36_a_result_without_its_call_is_not_shown() -> None:
    state = fold(start(1), say("Go"), answer("", "a"), result(2, 0, "a"), answer("Done."))

    def no_calls(turns: Sequence[HistoryTurn]) -> list[HistoryTurn]:
        return [each.without(lambda message: bool(message.tool_calls)) for each in turns]

    assert shown(state, no_calls) == ["Go", "Done."]


def test_what_a_policy_of_ones_own_gets() -> None:
    seen: list[Sequence[HistoryTurn]] = []

    def policy(turns: Sequence[HistoryTurn]) -> Sequence[HistoryTurn]:
        seen.append(turns)
        return [each for each in turns if not each.is_unfinished]

    state = fold(system("S"), *turn(1), *turn(2, "error"), *turn(3, "max-tokens", "length"))
    assert len(shown(state, policy)) == 5
    (turns,) = seen
    # The newest one goes on, as far as a request is concerned.
    assert [each.reason for each in turns] == ["completed", "error", None]
    assert turns[2].finish_reason == "length"
    assert [message.text for message in turns[0].messages] == ["question 1", "answer no1"]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (lambda _: [], "left nothing"),
        (lambda turns: [*turns, turns[0]], "does not change, add or move"),
        (lambda turns: turns[::-1], "does not change, add or move"),
        (
            lambda turns: [
                replace(turns[0], messages=(turns[0].messages[0].replace(content="?"),))
            ],
            "does not change, add or move",
        ),
    ],
    ids=["nothing", "twice", "reversed", "changed"],
)
def test_what_a_policy_may_not_do(policy: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        request_messages(fold(*turn(1), *turn(2)), policy)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"history_policy": "drop"}, "history_policy is 'keep', 'exclude_unfinished' or"),
        ({"history_budget": 1000}, "history_budget is Tokens"),
        ({"on_turn_stopping": lambda _: None}, "on_turn_stopping is an async function"),
        ({"on_turn_stopping": 3}, "on_turn_stopping is an async function"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Agent("a", provider=ScriptedModel([]), **options)
    with pytest.raises(ConfigurationError, match="from 1"):
        Tokens(0)
    with pytest.raises(ConfigurationError, match="from 1"):
        Chars(-1)


def test_an_agent_takes_the_options() -> None:
    async def hook(_: Any) -> None: ...

    agent = Agent(
        "a",
        provider=ScriptedModel([]),
        history_policy=no_progress,
        history_budget=Tokens(5),
        on_turn_stopping=hook,
    )
    assert (agent.history_policy, agent.on_turn_stopping) == (no_progress, hook)
    faden = Agent("a", provider=ScriptedModel([]), profile="faden")
    assert (faden.history_policy, faden.history_budget) == ("exclude_unfinished", Tokens(100_000))
    mine = Agent("a", provider=ScriptedModel([]), profile="faden", history_policy="keep")
    assert (mine.history_policy, mine.history_budget) == ("keep", faden.history_budget)


# -- rewrites and turns ----------------------------------------------------------------------


def test_a_rewrite_begins_turns_where_users_speak() -> None:
    messages = [
        {"role": role, "content": f"{at}"}
        for at, role in enumerate(["system", "user", "user", "assistant", "user", "assistant"])
    ]
    delta = NewEvent(ev.TRANSCRIPT_DELTA, {"keep": 0, "append": messages})
    state = fold(delta, start(1), say("6"))
    assert [(span.start, span.reason) for span in state.spans.all] == [
        (1, "completed"),
        (4, "completed"),
        (6, None),
    ]
    assert shown(state, budget=Chars(3)) == ["0", "4", "5", "6"]
    # A rewrite in the middle of a turn: the last part of it goes on.
    delta = NewEvent(ev.TRANSCRIPT_DELTA, {"keep": 2, "append": messages[3:]})
    state = fold(start(1), say("a"), say("b"), delta)
    assert [(span.start, span.reason) for span in state.spans.all] == [(0, "completed"), (3, None)]


def test_a_cleared_session_and_a_fork() -> None:
    assert fold(*turn(1), NewEvent(ev.SESSION_CLEARED, {})).spans.all == []
    log = [*turn(1), start(2), say("two"), answer("", "a"), NewEvent(ev.END_SEED, {})]
    log += [start(3, fresh=False), say("three")]
    state = fold(*log, result(6, 0, "a"))
    # The fork cut the turn off on purpose: it is no failure.
    assert shown(state, "exclude_unfinished")[2:] == ["two", "", "ok", "three"]


# -- F39 -------------------------------------------------------------------------------------

WRITING = ["say", "call", "calls", "answer", "filtered", "result", "late"]
ENDING = ["fail", "abort", "crash", "resume", "redirect", "hook", "compact"]
MOVES = st.lists(st.sampled_from([*WRITING, *ENDING]), min_size=5, max_size=60)
POLICIES: list[HistoryPolicy] = ["keep", "exclude_unfinished", no_progress]


class Conversation:
    """Writes a log as the writers do, whatever happens in whichever order."""

    def __init__(self) -> None:
        self.state = SessionState()
        self.turn = 0
        self.call = 0

    def add(self, *new: NewEvent) -> None:
        first = self.state.through
        self.state = self.state.copy().fold(
            Event(seq, event.type, 0, event.data) for seq, event in enumerate(new, start=first)
        )

    @property
    def pending(self) -> list[int]:
        open_ids = {
            call["id"] for call in split_pending_turn(self.state.messages).pending_tool_calls
        }
        return [at for at, call in enumerate(self.state.calls) if call["id"] in open_ids]

    def give(self, index: int) -> None:
        call = self.state.calls[index]
        tool = call["function"]["name"]
        self.add(result(self.state.call_seq, index, call["id"], f"r{index}", tool=tool))

    def move(self, move: str, budget: HistoryBudget) -> None:
        running, pending = self.state.open_turn is not None, self.pending
        if move in ("say", "redirect") and not running:
            self.turn += 1
            self.add(start(self.turn, fresh=self.state.finished), say(f"u{self.turn}"))
        elif move == "say" and not pending:
            self.add(say("queued"))
        elif move == "resume" and not running and not self.state.finished:
            self.turn += 1
            self.add(start(self.turn, fresh=False))
        elif move == "hook" and not running and self.state.finished and self.turn:
            self.add(say("memory"))
        elif move == "compact" and not running and not pending:
            self.compact()
        elif running and move in ("result", "late") and pending:
            self.give(pending[0 if move == "result" else -1])
        elif running and move in ("fail", "abort", "crash"):
            if move == "abort":
                for index in pending:
                    self.give(index)
            self.add(end({"fail": "error", "abort": "aborted", "crash": "interrupted"}[move]))
        elif running and not pending and move in ("call", "calls", "answer", "filtered"):
            self.request(budget)
            self.answer(move)

    def answer(self, move: str) -> None:
        if move in ("call", "calls"):
            count = 1 if move == "call" else 3
            ids = [f"c{self.call + at}" for at in range(count)]
            self.call += count
            new = answer("", *ids)
            new.data["message"]["toolCalls"][0]["function"]["name"] = "progress"
            self.add(new)
        else:
            stopped = move == "filtered"
            self.add(
                answer("" if stopped else "fine"),
                end("completed", "content_filter" if stopped else "stop"),
            )

    def compact(self) -> None:
        spans = self.state.spans.all
        if len(spans) < 2:
            return
        cut = spans[-1]
        tail = self.state.messages[cut.start :]
        data = {"keep": 0, "append": [{"role": "user", "content": "summary"}, *tail]}
        self.add(NewEvent(ev.TRANSCRIPT_DELTA, {**data, "turns": [{**cut.to_json(), "at": 1}]}))

    def request(self, budget: HistoryBudget) -> None:
        assert_valid(self.state.messages)
        newest = self.state.messages[self.state.spans.all[-1].start :]
        for policy in POLICIES:
            for limit in (None, budget):
                made = request_messages(self.state, policy, limit)
                assert_valid(made)
                if not callable(policy):
                    # The newest turn is there, whole.
                    assert made[-len(newest) :] == newest


@given(MOVES, st.integers(1, 60))
def test_f39_every_request_is_a_valid_transcript(moves: list[str], limit: int) -> None:
    conversation = Conversation()
    for move in moves:
        conversation.move(move, Chars(limit))
    starts = [span.start for span in conversation.state.spans.all]
    assert starts == sorted(set(starts))
    # A turn begins with what a user said, however late the results of an earlier one came.
    assert {conversation.state.messages[at]["role"] for at in starts} <= {"user"}
