"""Starts and kills the workers of ``app.py``, and judges what they left behind."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import ApprovalDecidedError, StorageError
from perdure.checkpoint_bridge.format.transcript import assert_valid
from perdure.checkpoint_bridge.log.lineage import call_of, depth_of, is_within
from tests.histories.checks import begun_behind_a_cancel

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.checkpoint_bridge.log.events import Event
    from perdure.client import Client

APP = Path(__file__).with_name("app.py")
HEARTBEAT = 5.0
"""Seconds after which a silent worker counts as dead (``workflows/options.py``)."""

LONG = 150.0
"""Seconds after which something counts as never coming, on however busy a machine."""
_LOOK = 0.02

Line = dict[str, Any]


class Rig:
    """Worker processes on one task queue and one store, and the ledger of what they did."""

    def __init__(self, folder: Path, address: str, *, task_queue: str, store: str = "") -> None:
        self.folder = folder
        self.address = address
        self.task_queue = task_queue
        self.store_url = store or f"sqlite:///{folder / 'perdure.db'}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.options: list[str] = []
        """Further arguments of the workers that start from now on."""
        self._lines: list[Line] = []
        self._read = 0
        for name in ("holds", "backend"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    # -- workers -----------------------------------------------------------------------------

    def start_worker(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(APP), "--folder", str(self.folder)]
        command += ["--store", self.store_url, "--temporal", self.address]
        command += ["--task-queue", self.task_queue, *self.options]
        with (self.folder / "workers.log").open("ab") as log:
            worker = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> float:
        """SIGKILL; returns the moment."""
        worker.kill()
        worker.wait()
        return time.monotonic()

    async def stop(self, worker: subprocess.Popen[bytes], seconds: float = LONG) -> int:
        """SIGTERM, as a deploy does it; returns the exit code."""
        worker.send_signal(signal.SIGTERM)
        await self.until(lambda: worker.poll() is not None, "the worker to end", seconds)
        return worker.returncode

    def close(self) -> None:
        """Kill what still runs."""
        for worker in self.workers:
            worker.kill()
            worker.wait()

    # -- where workers wait ------------------------------------------------------------------

    def _hold(self, session: str, point: str) -> Path:
        return self.folder / "holds" / f"{session}:{point}".replace("/", "_")

    def hold(self, session: str, point: str) -> None:
        """Make workers wait when they come to a point of a session."""
        self._hold(session, point).touch()

    def release(self, session: str, point: str) -> None:
        self._hold(session, point).unlink(missing_ok=True)

    async def held(self, session: str, point: str, worker: int = 0) -> Line:
        """Wait until a worker waits there (``worker``: which process id, if it matters)."""

        def found() -> Line | None:
            for line in self.lines("held", session):
                if line["point"] == point and worker in (0, line["pid"]):
                    return line
            return None

        return await self.until(found, f"{session} to come to {point}")  # type: ignore[no-any-return]

    # -- the ledger --------------------------------------------------------------------------

    def lines(self, kind: str = "", session: str = "") -> list[Line]:
        """What was noted so far, in order."""
        with (
            contextlib.suppress(FileNotFoundError),
            (self.folder / "ledger.jsonl").open("rb") as file,
        ):
            file.seek(self._read)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                self._read += len(raw)
                self._lines.append(json.loads(raw))
        return [
            line
            for line in self._lines
            if kind in ("", line["kind"]) and session in ("", line["session"])
        ]

    async def until(self, found: Callable[[], Any], what: str, seconds: float = LONG) -> Any:
        """Wait for something that cannot be waited for otherwise."""
        deadline = time.monotonic() + seconds
        while True:
            value = found()
            if value:
                return value
            if time.monotonic() > deadline:
                msg = f"waited {seconds:g} s in vain for {what}\n{self.log_tail()}"
                raise TimeoutError(msg)
            await asyncio.sleep(_LOOK)

    def has_effect(self, key: str) -> bool:
        """Whether the backend did what was asked for under a key; it does nothing twice."""
        return (self.folder / "backend" / hashlib.sha256(key.encode()).hexdigest()).exists()

    def log_tail(self, size: int = 4000) -> str:
        """The end of what the workers printed."""
        log = self.folder / "workers.log"
        return log.read_text("utf-8", "replace")[-size:] if log.exists() else ""


async def approval_of(client: Client, session: str, seconds: float = LONG) -> str:
    """The id of the approval that waits, as soon as it can be seen from outside."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(StorageError):
            waiting = await client.approvals.list(session)
            if waiting:
                return str(waiting[0].id)
        if time.monotonic() > deadline:
            msg = f"{session} asked for no approval within {seconds:g} s"
            raise TimeoutError(msg)
        await asyncio.sleep(_LOOK)


async def approve(client: Client, session: str) -> str:
    """Approve what waits, and have it confirmed; returns the approval's id."""
    approval_id = await approval_of(client, session)
    try:
        await client.approvals.decide(approval_id, approved=True, by="ann")
    except ApprovalDecidedError as error:
        if error.decision.get("by") != "ann":
            raise  # else it is our own: its answer was lost with the worker
    return approval_id


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint without what differs between two sessions that went the same way."""
    return {key: value for key, value in record.items() if key not in ("sessionId", "approvalId")}


async def saves(client: Client, session: str) -> list[tuple[Any, ...]]:
    """The history's entries without times and ids."""
    return [
        (entry.step, entry.status, comparable(entry.checkpoint.to_json()))
        for entry in await client.history(session)
    ]


class Judge:
    """Compares runs that were disturbed with one of the same agent that was not."""

    def __init__(self, client: Client, rig: Rig, model: str) -> None:
        self._client = client
        self._rig = rig
        self._model = model
        """The session that nothing disturbed."""

    async def faults(self, session: str) -> list[str]:
        """What is wrong with a run; ``[]`` when it ended as if nothing had happened."""
        found = []
        runs = await self._with_sub_agents(session)
        models = await self._with_sub_agents(self._model)
        if len(runs) != len(models):
            found.append(f"{session}: its runs are {runs}, those of the other {models}")
        for run, model in zip(runs, models, strict=False):
            of_it = await self._record_faults(run, model)
            of_it += await self._log_faults(run, model)
            of_it += self._ledger_faults(run, model)
            found += [f"{run}: {fault}" for fault in of_it]
        return found

    async def cancel_faults(self, session: str) -> list[str]:
        """What is wrong with a run that was cancelled, perhaps often, and then went on."""
        found = []
        for run in await self._with_sub_agents(session):
            of_it = _repeated(self._rig.lines(session=run))
            events = await self._client.store.events(run)
            if [event.seq for event in events] != list(range(len(events))):
                of_it.append(f"its log has gaps: {[event.seq for event in events]}")
            of_it += self._result_faults(run, events)
            ends = []
            for execution in [e.data["runId"] for e in events if e.type == "turn/start"]:
                handle = self._client.temporal.get_workflow_handle(run, run_id=execution)
                of_it += begun_behind_a_cancel(await handle.fetch_history())
                ends.append(getattr((await handle.describe()).status, "name", ""))
            if "TERMINATED" in ends:
                of_it.append("its run was not heard out when the one above ended")
            record = await self._client.checkpoint(run)
            if record is not None:
                try:
                    assert_valid(record.to_json()["messages"])
                except ValueError as error:
                    of_it.append(f"no provider would take its transcript: {error}")
            found += [f"{run}: {fault}" for fault in of_it]
        return found

    def _result_faults(self, session: str, events: list[Event]) -> list[str]:
        """Whether each result says the truth of what the world has seen of its call."""
        began = {}
        for line in self._rig.lines("tool-start", session):
            began[line["key"].rsplit(":", 1)[1]] = line["key"]
        found = []
        for event in events:
            if event.type != "tool/result":
                continue
            place = f"{event.data['seq']}.{event.data['index']}"
            result = json.loads(event.data["message"]["content"])
            kind = result.get("kind") if isinstance(result, dict) else None
            if kind in ("not-run", "not-started") and place in began:
                found.append(f"{place} ran, and its result is {kind}")
            done = isinstance(result, dict) and "number" in result
            if done and not self._rig.has_effect(began.get(place, "")):
                found.append(f"{place} has a result, and nothing came of it")
        return found

    async def _with_sub_agents(self, session: str) -> list[str]:
        """A session and those of its sub-agents, in the order of their calls."""
        ids = [row.session_id for row in await self._client.store.sessions()]
        below = [each for each in ids if each != session and is_within(each, session)]
        return [session, *sorted(below, key=lambda each: (depth_of(each), call_of(each)))]

    async def _record_faults(self, session: str, model: str) -> list[str]:
        expected = await self._client.checkpoint(model)
        got = await self._client.checkpoint(session)
        assert expected is not None
        if got is None:
            return ["it has no checkpoint"]
        found = []
        if comparable(got.to_json()) != comparable(expected.to_json()):
            found.append(f"its checkpoint differs: {json.dumps(got.to_json())}")
        try:
            assert_valid(got.to_json()["messages"])
        except ValueError as error:
            found.append(f"no provider would take its transcript: {error}")
        if await saves(self._client, session) != await saves(self._client, model):
            found.append("its history differs")
        return found

    async def _log_faults(self, session: str, model: str) -> list[str]:
        events = await self._client.store.events(session)
        undisturbed = await self._client.store.events(model)
        found = []
        if [event.seq for event in events] != list(range(len(events))):
            found.append(f"its log has gaps: {[event.seq for event in events]}")
        for kind in ("user/message", "assistant/message", "tool/result", "turn/end"):
            count = sum(event.type == kind for event in events)
            expected = sum(event.type == kind for event in undisturbed)
            if count != expected:
                found.append(f"its log has {count} {kind}, not {expected}")
        return found

    def _ledger_faults(self, session: str, model: str) -> list[str]:
        found = []
        lines = self._rig.lines(session=session)
        keys: dict[tuple[str, int], set[str]] = {}
        for line in lines:
            if line["kind"] == "tool-start":
                keys.setdefault((line["tool"], line["args"]), set()).add(line["key"])
        found += [
            f"{call} had the keys {sorted(each)}" for call, each in keys.items() if len(each) > 1
        ]
        if len({key for each in keys.values() for key in each}) != len(keys):
            found.append(f"two calls share a key: {keys}")
        expected = {(line["tool"], line["args"]) for line in self._rig.lines("tool-start", model)}
        if set(keys) != expected:
            found.append(f"it ran the calls {sorted(keys)}, not {sorted(expected)}")
        # The worker may have died before it could note what it had done: ask the backend.
        undone = [key for each in keys.values() for key in each if not self._rig.has_effect(key)]
        found += [f"nothing came of {key}" for key in undone]
        found += _repeated(lines)
        return found


def _repeated(lines: list[Line]) -> list[str]:
    """What was done once more although its outcome was in the store."""
    found = []
    turns: set[int] = set()
    calls: set[tuple[int, int]] = set()
    attempts: dict[str, int] = {}
    for line in lines:
        if line["kind"] == "stored" and line["index"] < 0:
            turns.add(line["seq"])
        elif line["kind"] == "stored":
            calls.add((line["seq"], line["index"]))
        elif line["kind"] == "model" and line["step"] <= len(turns):
            found.append(f"step {line['step']} was asked again after its answer was stored")
        elif line["kind"] == "tool-start":
            place = tuple(int(part) for part in line["key"].rsplit(":", 1)[1].split("."))
            if place in calls:
                found.append(f"{line['tool']} ran again after its result was stored")
            before = attempts.get(line["key"], 0)
            if line["attempt"] <= before:
                found.append(f"attempt {line['attempt']} of {line['tool']} came after {before}")
            attempts[line["key"]] = line["attempt"]
    return found
