"""Measures what runs and the store cost, beside the floor in the same run.

``make bench`` runs all of it; ``make bench ARGS="--only steps,throughput"`` a part. Each measure
is printed as it comes; at the end come the table and, with ``--json FILE``, all samples.
``--write-docs`` puts the table, the chart and the machine into ``docs/performance.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.process import run_program
from tests.benchmarks import runs, storage
from tests.benchmarks.report import Row, chart, machine, machine_line, table
from tests.benchmarks.rig import Rig, rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.benchmarks.runs import Sizes

    Chart = dict[str, list[tuple[int, float]]]

MEASURES = {
    "steps": "time and CPU per step, W(20, 100), the server's state in memory and in a file",
    "throughput": "50 × W(5, 100) at once, the server's state in memory and in a file",
    "history": "bytes and events of history per step",
    "long": "W(400, 20000), memory, cold replay",
    "waiting": "1,000 runs wait for approval at once",
    "recovery": "from the death of a worker to the end of its run",
    "image": "the store's size after 200 steps with a 1 MB image",
    "fork": "a fork of 10 MB and one of 10 KB",
    "many": "reads of a store with 10,000 sessions",
}
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
CHART = PAGE.with_name("history-bytes.svg")
_BEGIN, _END = "<!-- measured -->\n", "<!-- /measured -->\n"


class Bench:
    """One run of the benchmark."""

    def __init__(self, folder: Path, sizes: Sizes, names: list[str]) -> None:
        self.folder = folder
        self.sizes = sizes
        self.names = names
        self.rows: list[Row] = []
        self.chart: Chart = {}

    async def run(self) -> None:
        """Measure what was asked for."""
        for where in ("in memory", "in a file"):
            async with self._rig(on_file=where == "in a file") as given:
                if "steps" in self.names:
                    await self._add(runs.steps(given, self.sizes, where))
                if "throughput" in self.names:
                    await self._add(runs.throughput(given, self.sizes, where))
                if where == "in memory":
                    await self._run_others(given)
        for name, measure in (("fork", storage.fork), ("many", storage.many)):
            if name in self.names:
                await self._add(measure(self.folder, self.sizes))

    async def _run_others(self, given: Rig) -> None:
        if "history" in self.names:
            await self._add(runs.history(given, self.sizes, self.chart))
        others: dict[str, Callable[[Rig, Sizes], Awaitable[list[Row]]]] = {
            "long": runs.long_run,
            "image": runs.image,
            "recovery": runs.recovery,
            "waiting": runs.waiting,
        }
        for name, measure in others.items():
            if name in self.names:
                await self._add(measure(given, self.sizes))

    @contextlib.asynccontextmanager
    async def _rig(self, *, on_file: bool) -> AsyncIterator[Rig]:
        folder = self.folder / ("file" if on_file else "memory")
        folder.mkdir()
        async with rig(folder, on_file=on_file) as given:
            yield given

    async def _add(self, measured: Awaitable[list[Row]]) -> None:
        rows = await measured
        self.rows += rows
        for row in rows:
            print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)


def write_docs(bench: Bench, facts: dict[str, Any]) -> None:
    """Put what was measured between the page's marks."""
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    made = f"\n{machine_line(facts)}\n\n{table(bench.rows)}\n\n"
    PAGE.write_text(f"{before}{_BEGIN}{made}{_END}{after}", "utf-8")
    if bench.chart:
        CHART.write_text(chart(bench.chart), "utf-8")


def tell(bench: Bench, facts: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print the table or the samples, and write the files that were asked for."""
    if arguments.json:
        found = {"machine": facts, "measures": [row.to_json() for row in bench.rows]}
        text = json.dumps({**found, "history": bench.chart}, indent=2)
        if arguments.json == "-":
            print(text)
        else:
            Path(arguments.json).write_text(f"{text}\n", "utf-8")
    if arguments.json != "-":
        print(f"{table(bench.rows)}\n\n{machine_line(facts)}")
    if arguments.write_docs:
        write_docs(bench, facts)


async def measure(arguments: argparse.Namespace) -> int:
    """Run the benchmark and tell what it found."""
    names = list(MEASURES) if arguments.only is None else arguments.only.split(",")
    facts = machine()
    since = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        sizes = runs.QUICK if arguments.quick else runs.Sizes()
        bench = Bench(Path(folder), sizes, names)
        await bench.run()
    tell(bench, facts, arguments)
    missed = [row.name for row in bench.rows if row.met is False]
    print(
        f"{time.monotonic() - since:.0f} s; {len(missed)} of {len(bench.rows)} missed",
        file=sys.stderr,
    )
    return 1 if missed and arguments.strict else 0


def main() -> int:
    """Read the command line and measure."""
    names = "\n".join(f"  {name:<12}{text}" for name, text in MEASURES.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        epilog=f"measures:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAMES", help="measures, with commas between")
    parser.add_argument("--quick", action="store_true", help="the smallest form of each")
    parser.add_argument("--json", metavar="FILE", help="all samples; - for standard output")
    parser.add_argument("--write-docs", action="store_true", help="bring docs/performance.md up")
    parser.add_argument("--strict", action="store_true", help="end with 1 when a goal is missed")
    arguments = parser.parse_args()
    unknown = set((arguments.only or "steps").split(",")) - set(MEASURES)
    if unknown:
        parser.error(f"no measure is called {', '.join(sorted(unknown))}")
    return asyncio.run(measure(arguments))


if __name__ == "__main__":
    run_program(main)
