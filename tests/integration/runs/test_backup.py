"""A store that was backed up while runs went on, and put back after it was lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from perdure import Agent, tool
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench


def back_up(source: Path, target: Path) -> None:
    """What ``sqlite3 SOURCE ".backup TARGET"`` does, beside the processes that write."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def put_back(backup: Path, path: Path) -> None:
    """The disk is lost, and what was backed up is put in its place."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    path.write_bytes(backup.read_bytes())


async def test_f23_a_backup_lists_reads_and_continues(
    bench: Bench, session: str, tmp_path: Path
) -> None:
    @tool(needs_approval=True, idempotent=True)
    def pay() -> str:
        return "paid"

    path = Path(bench.store_url.removeprefix("sqlite:///"))
    model = bench.model("Hello.", [call("pay")], "Paid.")
    agent = Agent("agent", provider=model, tools=[pay])
    async with bench.serving(agent):
        await bench.client.execute("agent", "Hi", session_id=session)
        back_up(path, tmp_path / "backup.db")
        later = await bench.client.execute("agent", "Pay", session_id=session)
        assert later.finish_reason == "awaiting-approval"
    before = await bench.record()

    await bench.store.close()
    put_back(tmp_path / "backup.db", path)

    (info,) = await bench.client.sessions.list()
    assert (info.session_id, info.status) == (session, "finished")
    restored = await bench.record()
    assert restored["messages"] == before["messages"][: len(restored["messages"])]
    # The run that the backup does not know cannot go on; its session does.
    await bench.workflow().terminate()
    async with bench.serving(agent):
        paused = await bench.client.execute("agent", "Pay after all", session_id=session)
        assert paused.approval_id not in (None, later.approval_id)
        result = await bench.client.approvals.resolve(paused.approval_id or "", approved=True)
    said = [message.text for message in result.messages if message.role == "user"]
    assert said == ["Hi", "Pay after all"]
    assert result.text == "Paid."
    bench.replay_all = False
