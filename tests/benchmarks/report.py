"""What was measured, as JSON, as a table and as a chart."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Row:
    """One measure: ours, beside the floor where there is one."""

    name: str
    unit: str
    ours: list[float]
    floor: list[float] = field(default_factory=list)
    at_most: float | None = None
    """The goal: of the ratio to the floor where there is one and ``absolute`` is not set."""
    at_least: float | None = None
    absolute: bool = False

    @property
    def ratio(self) -> float | None:
        """Ours to the floor, both as medians."""
        return median(self.ours) / median(self.floor) if self.floor else None

    @property
    def judged(self) -> float:
        """The number that the goal is about."""
        return median(self.ours) if self.ratio is None or self.absolute else self.ratio

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; ``None`` without one."""
        if self.at_most is not None:
            return self.judged <= self.at_most
        return None if self.at_least is None else self.judged >= self.at_least

    @property
    def goal(self) -> str:
        """The goal in words."""
        sign, limit = ("≤", self.at_most) if self.at_most is not None else ("≥", self.at_least)
        if limit is None:
            return ""
        of = f" {self.unit}" if self.ratio is None or self.absolute else " × floor"
        return f"{sign} {number(limit)}{of}"

    def to_json(self) -> dict[str, Any]:
        """All samples, and what they come to."""
        return {
            "measure": self.name,
            "ratio": self.ratio,
            "unit": self.unit,
            "ours": median(self.ours),
            "floor": median(self.floor) if self.floor else None,
            "samples": {"ours": self.ours, "floor": self.floor},
            "goal": self.goal,
            "met": self.met,
        }


def number(value: float) -> str:
    """Three digits are all that a measurement of this kind knows."""
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(samples: Sequence[float]) -> str:
    """The median, and the lowest and the highest of all samples."""
    if not samples:
        return "–"
    middle = number(median(samples))
    low, high = number(min(samples)), number(max(samples))
    return middle if low == high else f"{middle} ({low} to {high})"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table, ratios first."""
    lines = [
        "| measure | ratio | ours | floor | unit | goal | met |",
        "| --- | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for row in rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
        met = {True: "yes", False: "**no**", None: ""}[row.met]
        cells = [row.name, ratio, spread(row.ours), spread(row.floor), row.unit, row.goal, met]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Where it was measured; ``load`` is the average of the minute before, per core."""
    cores = psutil.cpu_count() or 1
    return {
        "cores": cores,
        "memory_gb": round(psutil.virtual_memory().total / 1024**3),
        "load": round(os.getloadavg()[0] / cores, 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "temporalio": version("temporalio"),
        "sqlalchemy": version("sqlalchemy"),
    }


def machine_line(facts: dict[str, Any]) -> str:
    """The machine in a sentence."""
    line = (
        f"{facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}, "
        f"Python {facts['python']}, temporalio {facts['temporalio']}, "
        f"SQLAlchemy {facts['sqlalchemy']}."
    )
    if facts["load"] > 0.5:
        line += (
            f" Other programs were running: the load was {facts['load']} per core at the start,"
            " so trust ratios before times."
        )
    return line


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 320, 70, 40, 20
_COLOURS = ("#1f6feb", "#bf5700", "#2da44e", "#8250df")


def chart(series: dict[str, list[tuple[int, float]]]) -> str:
    """An SVG of history size (KiB) against steps, one line for each name."""
    right = max(x for points in series.values() for x, _ in points)
    top = max(y for points in series.values() for _, y in points)

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (_WIDTH - _LEFT - 190) * x / right
        return across, _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * y / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"',
        'font-family="sans-serif" font-size="12" role="img"',
        'aria-label="Bytes of history against steps">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x0, y = place(0, top * share)
        x1, _ = place(right, 0)
        parts.append(f'<path d="M{x0:.0f} {y:.0f}H{x1:.0f}" stroke="#ddd"/>')
        label = number(top * share) if share else "0"
        parts.append(f'<text x="{x0 - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
    for x in sorted({x for points in series.values() for x, _ in points}):
        across, down = place(x, 0)
        parts.append(f'<text x="{across:.0f}" y="{down + 16:.0f}" text-anchor="middle">{x}</text>')
    across, down = place(right / 2, 0)
    parts.append(f'<text x="{across:.0f}" y="{down + 34:.0f}" text-anchor="middle">steps</text>')
    parts.append(f'<text x="4" y="{_TOP - 6}">KiB of history</text>')
    heights: list[float] = []
    for index, (name, points) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end_x, end_y = place(*points[-1])
        while any(abs(end_y - other) < 15 for other in heights):
            end_y -= 15  # labels of lines that lie on each other stand below each other
        heights.append(end_y)
        parts.append(f'<text x="{end_x + 8:.0f}" y="{end_y + 4:.0f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
