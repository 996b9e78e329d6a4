"""The benchmark's own programs work; what they measure is measured elsewhere (``make bench``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks import runs, storage
from tests.benchmarks.report import chart, machine, machine_line, table
from tests.benchmarks.rig import Rig

if TYPE_CHECKING:
    from pathlib import Path

    from temporalio.client import Client

    from perdure.dev_server import DevServer


async def test_floor_and_ours_are_measured_in_turns(
    temporal_server: DevServer, temporal_client: Client, tmp_path: Path
) -> None:
    rig = Rig(temporal_server, temporal_client, tmp_path)
    lines: dict[str, list[tuple[int, float]]] = {}
    rows = await runs.history(rig, runs.QUICK, lines)
    assert {row.name for row in rows} >= {"history per step, W(2, 1,000)"}
    assert all(row.floor and row.met is not None for row in rows)
    assert "| history per step, W(2, 1,000) |" in table(rows)
    assert "cores" in machine_line(machine())


async def test_stores_are_measured(tmp_path: Path) -> None:
    rows = [*await storage.fork(tmp_path, runs.QUICK), *await storage.many(tmp_path, runs.QUICK)]
    assert len(rows) == 4
    assert [row.to_json()["floor"] for row in rows] == [None] * 4


def test_a_chart_has_a_line_for_each_name() -> None:
    drawn = chart({"floor": [(10, 20.0), (80, 160.0)], "ours": [(10, 15.0), (80, 120.0)]})
    assert drawn.count("<polyline") == 2
    assert ">ours</text>" in drawn
