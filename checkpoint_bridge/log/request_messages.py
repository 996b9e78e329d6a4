"""Which messages of a conversation a request shows to the model.

A projection: the log and the checkpoints keep everything. First the policy leaves turns out, then
the budget leaves out the oldest of what remains. Only whole turns go, so that what is left is a
conversation that every provider takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format._record import member
from perdure.checkpoint_bridge.format.messages import Message, text_of
from perdure.checkpoint_bridge.format.stable_json import to_json_text
from perdure.checkpoint_bridge.format.transcript import calls_of, id_key
from perdure.checkpoint_bridge.log.derived import frozen_messages
from perdure.checkpoint_bridge.log.spans import FINISHED_KINDS

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.fold import SessionState
    from perdure.checkpoint_bridge.log.spans import Span

KEEP: Literal["keep"] = "keep"
EXCLUDE_UNFINISHED: Literal["exclude_unfinished"] = "exclude_unfinished"

STOPPED_ANSWER = "content_filter"
"""The finish reason of a turn whose answer the provider stopped."""


@dataclass(frozen=True, slots=True)
class HistoryTurn:
    """One turn, as a history policy of one's own gets it."""

    messages: tuple[Message, ...]
    """Read-only; the first ones are what the user said."""
    reason: str | None
    """How it ended: ``completed``, ``max-tokens``, ``error``, ``aborted``, ``interrupted``, …;
    ``None`` for the one that goes on now."""
    finish_reason: str = ""

    @property
    def is_unfinished(self) -> bool:
        """Whether it failed, was refused or was stopped."""
        return self.reason is not None and self.reason not in FINISHED_KINDS

    def without(self, unwanted: Callable[[Message], bool]) -> HistoryTurn:
        """The turn without some messages. With a tool's result, its call goes too."""
        return replace(self, messages=tuple(m for m in self.messages if not unwanted(m)))


HistoryHook: TypeAlias = Callable[[Sequence[HistoryTurn]], Iterable[HistoryTurn]]
"""Gets the turns, oldest first, and gives those that the model is to see, whole or in part.

It may leave out, and not change; and it must give the same for the same turns, at any time.
"""

HistoryPolicy: TypeAlias = Literal["keep", "exclude_unfinished"] | HistoryHook


class HistoryBudget(Protocol):
    """How much of a conversation a request may hold."""

    @property
    def limit(self) -> int:
        """What all messages but the system prompt may add up to."""

    def size(self, message: dict[str, Any]) -> int:
        """What one message counts."""


def characters(message: dict[str, Any]) -> int:
    """How long a message is for a model: its text, its calls and its reasoning."""
    count = len(text_of(message))
    for call in calls_of(message):
        function = member(call, "function")
        count += sum(len(str(member(function, key) or "")) for key in ("name", "arguments"))
    if message.get("reasoning"):
        count += len(to_json_text(message["reasoning"]))
    return count


def _as_it_is(message: dict[str, Any]) -> dict[str, Any]:
    return message


def history_record(
    state: SessionState,
    policy: HistoryPolicy = KEEP,
    budget: HistoryBudget | None = None,
    *,
    shown: Callable[[dict[str, Any]], dict[str, Any]] = _as_it_is,
) -> dict[str, Any]:
    """What the next request shows, as the log keeps it: :func:`recorded_messages` goes by it.

    ``{policy, budget, places}`` with the policy's name (``custom`` for one of one's own), what
    the budget is (``{"tokens": n}``), and the ranges of messages that are shown; ``null`` for
    all of them. The ranges tell it, so that neither a function nor a tokenizer is needed later.

    The newest turn is always shown, and the system prompt, which no budget counts.

    Args:
        state: the fold of the log up to the request.
        policy: what to leave out of each turn.
        budget: how much the rest may hold; what is before the first turn (a summary) counts.
        shown: how one message is shown (huge results are cut); the budget counts it as shown.

    Raises:
        ConfigurationError: a policy of one's own did what it may not.
    """
    everything = policy == KEEP and budget is None
    places = [] if everything else _select(state, policy, budget, shown)
    return {
        "policy": "custom" if callable(policy) else policy,
        "budget": None if budget is None else {type(budget).__name__.lower(): budget.limit},
        "places": None if everything else [list(each) for each in _ranges(places)],
    }


def recorded_messages(
    messages: Sequence[dict[str, Any]],
    record: dict[str, Any],
    *,
    shown: Callable[[dict[str, Any]], dict[str, Any]] = _as_it_is,
) -> list[dict[str, Any]]:
    """The messages of a request, of the transcript at its place and its :func:`history_record`."""
    if record["places"] is None:
        return [shown(message) for message in messages]
    places = (at for start, end in record["places"] for at in range(start, end))
    return _visible(messages, places, shown)


def _select(
    state: SessionState,
    policy: HistoryPolicy,
    budget: HistoryBudget | None,
    shown: Callable[[dict[str, Any]], dict[str, Any]],
) -> list[int]:
    """The places in the transcript that a request shows, in order."""
    spans = state.spans.all
    if not spans:
        return list(range(len(state.messages)))
    head = list(range(spans[0].start))
    turns = list(_turns(state))
    if callable(policy):
        turns = _chosen(policy, state, turns)
    elif policy == EXCLUDE_UNFINISHED:
        turns = [*_finished_part(state, turns[:-1]), turns[-1]]
    if budget is not None:
        spent = sum(_size(state.messages[at], budget, shown) for at in head)
        turns = _affordable(state, turns, budget, spent, shown)
    return head + [at for _, places in turns for at in places]


def _visible(
    messages: Sequence[dict[str, Any]],
    places: Iterable[int],
    shown: Callable[[dict[str, Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """The messages at ``places``, as a transcript that every provider takes.

    A result whose call is not shown goes, and a call whose result is not shown goes too.
    """
    chosen = [shown(messages[at]) for at in places]
    made: list[dict[str, Any]] = []
    at = 0
    while at < len(chosen):
        message = chosen[at]
        at += 1
        role = member(message, "role")
        calls = calls_of(message) if role == "assistant" else None
        if role == "tool":
            continue
        if not calls:
            made.append(message)
            continue
        results: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        while at < len(chosen) and member(chosen[at], "role") == "tool":
            results[id_key(chosen[at].get("toolCallId"))].append(chosen[at])
            at += 1
        answered = [
            (call, waiting.pop(0))
            for call in calls
            if (waiting := results[id_key(member(call, "id"))])
        ]
        if len(answered) < len(calls):
            message = _with_calls(message, [call for call, _ in answered])
        if message.get("content") or answered:
            made += [message, *(result for _, result in answered)]
    return made


def _ranges(places: Sequence[int]) -> list[tuple[int, int]]:
    """Places as ranges ``(start, end)``: how a request's record says what it showed."""
    if not places:
        return []
    breaks = [at for at, (one, next_) in enumerate(pairwise(places), 1) if next_ != one + 1]
    return [
        (places[start], places[end - 1] + 1) for start, end in pairwise([0, *breaks, len(places)])
    ]


_Turn: TypeAlias = tuple["Span", Sequence[int]]


def _turns(state: SessionState) -> Iterable[_Turn]:
    ends = [span.start for span in state.spans.all[1:]]
    for span, end in zip(state.spans.all, [*ends, len(state.messages)], strict=True):
        yield span, range(span.start, end)


def _finished_part(state: SessionState, turns: Iterable[_Turn]) -> Iterable[_Turn]:
    for span, places in turns:
        if span.reason is not None and span.reason not in FINISHED_KINDS:
            continue
        if span.finish_reason == STOPPED_ANSWER:
            # Only the question stays.
            asked = [at for at in places if member(state.messages[at], "role") == "user"]
            yield span, asked
        else:
            yield span, places


def _chosen(hook: HistoryHook, state: SessionState, turns: list[_Turn]) -> list[_Turn]:
    messages = frozen_messages(state)
    place_of = {id(message): at for at, message in enumerate(messages)}
    newest = len(turns) - 1
    given = [
        HistoryTurn(
            tuple(m for m in (messages[at] for at in places) if m is not None),
            None if number == newest else span.reason,
            span.finish_reason,
        )
        for number, (span, places) in enumerate(turns)
    ]
    chosen = [[place_of.get(id(m), -1) for m in turn.messages] for turn in hook(given)]
    places = [at for turn in chosen for at in turn]
    if any(at < 0 for at in places) or places != sorted(set(places)):
        msg = "A history_policy leaves messages out; it does not change, add or move them."
        raise ConfigurationError(msg, field="historyPolicy")
    if not places:
        msg = "The history_policy left nothing for the model to answer."
        raise ConfigurationError(msg, field="historyPolicy")
    return [(turns[-1][0], turn) for turn in chosen if turn]


def _affordable(
    state: SessionState,
    turns: list[_Turn],
    budget: HistoryBudget,
    spent: int,
    shown: Callable[[dict[str, Any]], dict[str, Any]],
) -> list[_Turn]:
    """The newest turn, and as many before it as fit."""
    first = len(turns)
    while first > 0:
        spent += sum(_size(state.messages[at], budget, shown) for at in turns[first - 1][1])
        if spent > budget.limit and first < len(turns):
            break
        first -= 1
    return turns[first:]


def _size(
    message: dict[str, Any],
    budget: HistoryBudget,
    shown: Callable[[dict[str, Any]], dict[str, Any]],
) -> int:
    return 0 if member(message, "role") == "system" else budget.size(shown(message))


def _with_calls(message: dict[str, Any], calls: list[Any]) -> dict[str, Any]:
    """An answer with fewer calls; without any, its reasoning leads nowhere and goes too."""
    kept = {key: value for key, value in message.items() if key != "toolCalls"}
    if calls:
        kept["toolCalls"] = calls
    else:
        kept.pop("reasoning", None)
    return kept
