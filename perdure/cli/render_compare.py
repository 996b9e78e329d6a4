"""Two trajectories side by side, for people."""

from __future__ import annotations

import sys
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from perdure.cli.text import clean, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perdure.checkpoint_bridge.format.messages import JsonObject
    from perdure.checkpoint_bridge.format.trajectory import TrajectoryComparison

PIPE_COLUMN = 70
"""Width of each side where there is no terminal whose width could be used."""

_LIMIT = 300
_MARK = "≠"


def comparison(found: TrajectoryComparison, a_id: str, b_id: str) -> RenderableType:
    """Both runs' steps in two columns, the first difference marked, then the drift."""
    # The ids stand outside of the columns, which wrap.
    head = [
        Text("A  ", style="bold").append(clean(a_id)),
        Text("B  ", style="bold").append(clean(b_id)),
        Text(""),
    ]
    return Group(*head, _steps(found), Text(""), verdict(found), *_drift(found))


def verdict(found: TrajectoryComparison) -> Text:
    """Where they part, in a sentence."""
    if found.diverged_at is None:
        return Text("The two runs are the same.", style="green")
    return Text(f"The runs part at step {found.diverged_at} ({_MARK}).", style="yellow")


def _steps(found: TrajectoryComparison) -> Table:
    terminal = sys.stdout.isatty()
    width = None if terminal else PIPE_COLUMN
    made = Table(
        box=box.SIMPLE_HEAD if terminal else None,
        pad_edge=False,
        header_style="bold",
        show_lines=False,
    )
    made.add_column("STEP", no_wrap=True)
    made.add_column("A", overflow="fold", width=width, ratio=1 if terminal else None)
    made.add_column("B", overflow="fold", width=width, ratio=1 if terminal else None)
    for number, (a, b) in enumerate(zip_longest(found.a, found.b), start=1):
        first = number == found.diverged_at
        later = found.diverged_at is not None and number > found.diverged_at
        step = Text(f"{number} {_MARK}" if first else str(number))
        if first:
            step.stylize("bold yellow")
        marks = _differences(a, b) if first or later else set()
        made.add_row(step, _step(a, marks), _step(b, marks))
    return made


def _differences(a: JsonObject | None, b: JsonObject | None) -> set[int]:
    """Places of what differs between two steps: -1 is the text, the others are calls."""
    if a is None or b is None:
        return set()
    different = {-1} if a["text"] != b["text"] else set()
    for index, (x, y) in enumerate(zip_longest(a["tools"], b["tools"])):
        if _meaning(x) != _meaning(y):
            different.add(index)
    return different


def _meaning(tool: JsonObject | None) -> Any:
    return tool and (tool["name"], tool["args"], tool.get("result"))


def _step(step: JsonObject | None, marks: set[int]) -> Text:
    if step is None:
        return Text("(no such step)", style="dim")
    lines = []
    if step["text"]:
        lines.append(_marked(one_line(step["text"], _LIMIT), marked=-1 in marks))
    for index, tool in enumerate(step["tools"]):
        result = tool.get("result")
        given = "(no result)" if result is None else one_line(result, _LIMIT)
        call = f"{one_line(tool['name'], 80)} {one_line(tool['args'], _LIMIT)}"
        lines.append(_marked(f"{call}\n  = {given}", marked=index in marks))
    return Text("\n").join(lines) if lines else Text("(nothing)", style="dim")


def _marked(text: str, *, marked: bool) -> Text:
    return Text(text, style="yellow" if marked else "")


def _drift(found: TrajectoryComparison) -> list[RenderableType]:
    if not found.drift:
        return []
    made = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
    for heading in ("DRIFT", "A", "B"):
        made.add_column(heading, overflow="fold")
    for entry in found.drift:
        cells = (entry["field"], entry["committed"], entry["current"])
        made.add_row(*(Text(one_line(cell, _LIMIT)) for cell in cells))
    return [Text(""), made]
