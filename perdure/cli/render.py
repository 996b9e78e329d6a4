"""Tables and texts for people. Gets plain values, gives what rich prints; reads nothing."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from perdure.cli.output import PLAIN_WIDTH, json_text
from perdure.cli.text import clean, count, local_time, one_line, short_time, tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from perdure.checkpoint_bridge.format.checkpoint import (
        Checkpoint,
        HistoryEntry,
        WaitingApproval,
    )
    from perdure.checkpoint_bridge.log.events import Event
    from perdure.checkpoint_bridge.turn_log import Outcome
    from perdure.results import SessionInfo

_STYLES = {
    "finished": "green",
    "awaiting-approval": "yellow",
    "in-progress": "cyan",
    "failed": "red",
    "ended": "green",
    "pending": "cyan",
}

SHORT = 400
"""Characters of a message or result that are shown unless all of it is asked for."""


class Fitting:
    """A table, or a line per field where the terminal is too narrow for it: no id is ever cut."""

    def __init__(self, made: Table) -> None:
        self.table = made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=PLAIN_WIDTH)
        if Measurement.get(console, wide, self.table).minimum <= options.max_width:
            yield self.table
            return
        names = [str(column.header) for column in self.table.columns]
        for row in zip(*(column.cells for column in self.table.columns), strict=True):
            for name, cell in zip(names, row, strict=True):
                line = Text(f"{name} ", style="bold")
                yield line.append_text(cell if isinstance(cell, Text) else Text(str(cell)))
            yield Text("")


def table(*headings: str, ids: Iterable[str] = (), rows: Iterable[Sequence[Any]]) -> Fitting:
    """A table whose id columns are never wrapped or cut, and whose others never vanish."""
    made = Table(
        box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False, header_style="bold"
    )
    for heading in headings:
        made.add_column(heading, no_wrap=heading in ids, overflow="fold", min_width=len(heading))
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(clean(str(cell))) for cell in row))
    return Fitting(made)


def moment(value: Any) -> str:
    """A moment, shorter on a terminal, where a table has little room."""
    return short_time(value) if sys.stdout.isatty() else local_time(value)


def status(word: str) -> Text:
    """A status in its colour."""
    return Text(clean(word), style=_STYLES.get(word, ""))


def sessions(found: Sequence[SessionInfo]) -> RenderableType:
    """The session list."""
    return table(
        "SESSION",
        "AGENT",
        "STATUS",
        "STEP",
        "UPDATED",
        "TITLE",
        ids=("SESSION",),
        rows=(
            (
                each.session_id,
                each.agent,
                status(each.state),
                each.step,
                moment(each.updated_at),
                one_line(each.title, 60),
            )
            for each in found
        ),
    )


def outcome(found: Outcome) -> RenderableType:
    """What became of a turn."""
    reason = found.reason or {}
    error = found.error or {}
    ended = reason.get("kind", "") if not error else f"{error.get('code')}: {error.get('message')}"
    return Group(
        table(
            "TURN",
            "STATE",
            "END",
            "TOOL ERRORS",
            "OPEN CALLS",
            rows=[
                (
                    found.sequence,
                    status(found.state),
                    one_line(str(ended), SHORT),
                    found.tool_errors,
                    len(found.open_tools),
                )
            ],
        ),
        Text(clean(found.answer or "")),
    )


def history(entries: Sequence[HistoryEntry]) -> RenderableType:
    """The saves of a session, newest first."""
    return table(
        "STEP",
        "STATUS",
        "SAVED",
        "MESSAGES",
        "TOKENS",
        "LAST",
        ids=("STATUS",),
        rows=(
            (
                entry.step,
                status(entry.status),
                moment(entry.saved_at),
                len(entry.checkpoint.messages),
                entry.checkpoint.usage.total_tokens,
                last_thing(entry.checkpoint),
            )
            for entry in entries
        ),
    )


def last_thing(checkpoint: Checkpoint) -> str:
    """What the newest message of a checkpoint is, on one line."""
    if not checkpoint.messages:
        return ""
    message = checkpoint.messages[-1].to_json()
    calls = message.get("toolCalls") or []
    if calls:
        return "asks for " + ", ".join(one_line(call_name(call), 40) for call in calls)
    content = one_line(content_text(message), 60)
    who = message.get("role")
    if who == "tool":
        return f"{one_line(str(message.get('toolName') or 'tool'), 40)} gave {content}"
    return f"{who}: {content}"


def approvals(found: Sequence[WaitingApproval]) -> RenderableType:
    """What waits for a decision, with its session."""
    asks = any(_question(each) for each in found)
    below = any(each.subagent_path for each in found)
    return table(
        "APPROVAL",
        "SESSION",
        "TOOL",
        "ARGUMENTS",
        "SINCE",
        *(("ASKED BY",) if below else ()),
        *(("QUESTION",) if asks else ()),
        ids=("APPROVAL", "SESSION"),
        rows=(
            (
                each.id,
                each.session_id,
                each.tool_name,
                one_line(json_text(each.args), 120),
                moment(each.created_at),
                *((one_line(" > ".join(map(str, each.subagent_path)), 120),) if below else ()),
                *((_question(each),) if asks else ()),
            )
            for each in found
        ),
    )


def _question(each: WaitingApproval) -> str:
    """What is asked when it is not whether the call may run."""
    words = (each.kind, each.question)
    return one_line(": ".join(str(word) for word in words if word), 200)


def events(found: Sequence[Event]) -> RenderableType:
    """The event log."""
    return table(
        "SEQ",
        "TIME",
        "TYPE",
        "DATA",
        ids=("TYPE",),
        rows=(
            (event.seq, moment(event.time_ms), event.type, one_line(json_text(event.data), 160))
            for event in found
        ),
    )


def event(found: Event) -> RenderableType:
    """One event of a log that is followed, on a line."""
    words = (found.seq, moment(found.time_ms), found.type, one_line(json_text(found.data), 160))
    return Text("  ".join(clean(str(word)) for word in words), overflow="ellipsis", no_wrap=True)


def messages(found: Iterable[dict[str, Any]], *, full: bool) -> list[RenderableType]:
    """A conversation."""
    return [_message(each, full=full) for each in found]


def session(info: SessionInfo, checkpoint: Checkpoint | None, *, full: bool) -> RenderableType:
    """A session's facts and its conversation."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(info, checkpoint):
        facts.add_row(Text(name), value if isinstance(value, Text) else Text(clean(str(value))))
    if checkpoint is None:
        return Group(facts)
    said = messages((each.to_json() for each in checkpoint.messages), full=full)
    return Group(facts, Text(""), *said)


def _facts(info: SessionInfo, checkpoint: Checkpoint | None) -> Iterable[tuple[str, Any]]:
    yield "session", info.session_id
    yield "agent", info.agent or "(none)"
    yield "status", status(info.status)
    if info.state != info.status:
        yield "last run", last_run(info)
    if info.parent_session is not None:
        yield "fork of", info.parent_session
    yield "step", info.step
    yield "created", local_time(info.created_at)
    yield "updated", local_time(info.updated_at)
    if checkpoint is None:
        return
    if checkpoint.status == "finished" and checkpoint.finish_reason:
        yield "finish reason", checkpoint.finish_reason
    yield "tokens", tokens(checkpoint.usage)
    if checkpoint.usage.cost_usd:
        yield "cost", f"${checkpoint.usage.cost_usd:.4f}"
    if checkpoint.has_business_state:
        yield "business state", one_line(json_text(checkpoint.business_state), SHORT)
    yield "messages", len(checkpoint.messages)


def last_run(info: SessionInfo) -> Text:
    """How a run ended that did not finish."""
    end = info.last_run or {}
    text = Text(info.state, style=_STYLES.get(info.state, ""))
    if end.get("message"):
        text.append(f": {one_line(str(end['message']))} [{one_line(str(end.get('code')))}]")
    return text


def _message(message: dict[str, Any], *, full: bool) -> RenderableType:
    role = str(message.get("role"))
    title = Text(clean(role), style="bold")
    if role == "tool":
        title.append(f" {one_line(str(message.get('toolName') or ''), 80)}", style="bold cyan")
        title.append(f" ({one_line(str(message.get('toolCallId') or ''), 80)})", style="dim")
        if message.get("isError"):
            title.append(" error", style="bold red")
    lines = []
    content = content_text(message)
    if content:
        lines.append(indented(content, full=full))
    for call in message.get("toolCalls") or []:
        line = Text("  → ").append(one_line(call_name(call), 80), style="cyan")
        line.append(f" {shortened(call_arguments(call), full=full)}")
        line.append(f" ({one_line(str(call.get('id') or ''), 80)})", style="dim")
        lines.append(line)
    return Group(title, *lines)


def indented(text: str, *, full: bool) -> Text:
    """A text two columns in, shortened unless all of it is wanted."""
    shown = clean(text if full else shortened(text))
    return Text("\n".join(f"  {line}" for line in shown.splitlines()))


def shortened(text: str, *, full: bool = False) -> str:
    """The beginning of a text, and how much is missing."""
    if full or len(text) <= SHORT:
        return clean(text)
    return f"{clean(text[:SHORT])}… ({count(len(text) - SHORT, 'character')} more)"


def content_text(message: dict[str, Any]) -> str:
    """A message's content for people: texts as they are, other parts by their kind."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else "part"
        parts.append(str(part.get("text")) if kind == "text" else f"[{kind}]")
    return " ".join(parts)


def call_name(call: dict[str, Any]) -> str:
    """The tool that a call names."""
    return str((call.get("function") or {}).get("name") or "")


def call_arguments(call: dict[str, Any]) -> str:
    """A call's arguments as the model wrote them, on one line."""
    raw = str((call.get("function") or {}).get("arguments") or "")
    try:
        return json_text(json.loads(raw))
    except (ValueError, RecursionError):
        return one_line(raw)
