"""What happens in the demo, and how it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format.fork import ForkPatch
from perdure.checkpoint_bridge.format.stable_json import stable_json
from perdure.checkpoint_bridge.format.trajectory import compare_trajectories
from perdure.cli.output import console_for, print_json, show_on
from perdure.client import connect
from perdure.demo import facts, trip
from perdure.demo.ledger import START
from perdure.demo.stage import DemoFailedError, Stage, end_on_sigterm, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import RenderableType

    from perdure.client import Client
    from perdure.results import RunResult

SESSION = "trip"
FORECAST = {"forecast": "rain"}
_WHO = "the demo"


class Teller:
    """Tells the story: to people on standard output, or, beside JSON, on standard error."""

    def __init__(self, *, as_json: bool) -> None:
        self._stream = sys.stderr if as_json else sys.stdout

    @contextlib.asynccontextmanager
    async def step(self, text: str) -> AsyncIterator[None]:
        """Tell what goes on while the block runs, and how long it took."""
        begin = time.monotonic()
        if self._stream.isatty():
            with console_for(self._stream).status(f"{text}…"):
                yield
        else:
            self.say(f"{text}…")
            yield
        self.say(f"✔ {text} ({time.monotonic() - begin:.1f} s)")

    def say(self, *parts: RenderableType) -> None:
        """Tell something."""
        show_on(self._stream, *(parts or ("",)))


async def tell(*, as_json: bool, keep: bool) -> bool:
    """Run the demo; returns whether everything that it claims is true.

    Args:
        as_json: print one JSON document of what happened; the story goes to standard error.
        keep: keep the Temporal UI open afterwards, until Ctrl-C.
    """
    end_on_sigterm()
    teller = Teller(as_json=as_json)
    begin = time.monotonic()
    async with Stage() as stage:
        told = await _Story(stage, teller, keep=keep).run()
        told["seconds"] = round(time.monotonic() - begin, 1)
        found = facts.checks(told)
        told["checks"] = [check.to_json() for check in found]
        told["ok"] = all(check.holds for check in found)
        if as_json:
            print_json(told)
        _tell_checks(teller, found, told["seconds"])
        if keep:
            await _keep(stage, teller)
        else:
            teller.say("", "To look around in the Temporal UI, keep it open: perdure demo --keep")
    return bool(told["ok"])


class _Story:
    def __init__(self, stage: Stage, teller: Teller, *, keep: bool) -> None:
        self.stage = stage
        self.teller = teller
        self.keep = keep
        self.told: dict[str, Any] = {"session": SESSION}

    async def run(self) -> dict[str, Any]:
        teller, stage = self.teller, self.stage
        async with teller.step("Starting a Temporal server"):
            await stage.server.start()
        while_it_lasts = "" if self.keep else "  (until the demo ends; --keep keeps it open)"
        teller.say(f"  Temporal UI: {stage.server.ui_url}{while_it_lasts}")
        self.told["temporal"] = {"address": stage.server.address, "ui": stage.server.ui_url}
        async with connect(
            stage.store, temporal=stage.server.address, namespace="default"
        ) as client:
            await self._crash(client)
            await self._approve(client)
            await self._history(client)
            await self._fork(client)
            await self._compare(client)
        self.told["facts"] = facts.count(stage.ledger)
        return self.told

    async def _crash(self, client: Client) -> None:
        teller, stage = self.teller, self.stage
        async with teller.step("Starting a worker in its own process"):
            first = await stage.start_worker()
        teller.say("", f"You: {trip.PROMPT}")
        handle = await client.start(trip.AGENT, trip.PROMPT, session_id=SESSION)
        async with teller.step("The model asks for two tools at once: weather and hold_hotel"):
            await until(lambda: self._middle_of_the_tool(client), "the middle of hold_hotel")
        teller.say("  weather has answered, hold_hotel waits for the hotel")
        code = await stage.kill(first)
        teller.say(f"✘ Killed worker {first.pid} with SIGKILL in the middle of hold_hotel")
        async with teller.step("Starting another worker"):
            second = await stage.start_worker()
        self.told["workers"] = [
            {"pid": first.pid, "exitCode": code, "killedIn": "hold_hotel"},
            {"pid": second.pid},
        ]
        async with teller.step("It goes on where the other one was; the same call runs again"):
            paused = await handle.result()
        self._take(paused)

    async def _middle_of_the_tool(self, client: Client) -> bool:
        """Whether the weather is recorded and the hotel is being waited for."""
        starts = self.stage.ledger.lines(START)
        if not any(line["tool"] == "hold_hotel" for line in starts):
            return False
        results = [
            event for event in await client.store.events(SESSION) if event.type == "tool/result"
        ]
        return len(results) == 1

    async def _approve(self, client: Client) -> None:
        pending = await client.approvals.list(SESSION)
        if len(pending) != 1:
            raise DemoFailedError(f"The run should wait for one approval, not {len(pending)}.")
        wanted = pending[0]
        teller = self.teller
        teller.say(
            "", f"The run waits: {wanted.tool_name} {json.dumps(wanted.args)} needs approval"
        )
        words = ("approve", wanted.id, "--by", _WHO, "--note", "the sun is out")
        teller.say(f"  $ perdure approve {wanted.id} --by '{_WHO}' --note 'the sun is out'")
        async with teller.step("Approving it from another process"):
            code, out, errors = await self.stage.command(*words, "--json")
        if code != 0:
            raise DemoFailedError(f"The approval failed: {errors.strip()}")
        answer = json.loads(out)
        self.told["approval"] = {
            "id": wanted.id,
            "tool": wanted.tool_name,
            "args": wanted.args,
            "by": _WHO,
            "exitCode": code,
        }
        self.told["answer"] = answer["text"]
        self.told["finishReason"] = answer["finishReason"]
        teller.say(f"Agent: {answer['text']}")

    def _take(self, paused: RunResult) -> None:
        if paused.finish_reason != "awaiting-approval":
            raise DemoFailedError(
                f"The run should wait for an approval, not {paused.finish_reason}."
            )

    async def _history(self, client: Client) -> None:
        from perdure.cli import render

        entries = await client.history(SESSION)
        self.told["history"] = [
            {
                "step": entry.step,
                "status": entry.status,
                "savedAt": entry.saved_at,
                "messages": len(entry.checkpoint.messages),
            }
            for entry in entries
        ]
        self.teller.say("", f"$ perdure history {SESSION}", render.history(entries))

    async def _fork(self, client: Client) -> None:
        teller = self.teller
        before = await self._source(client)
        teller.say("", "What if it had rained? Fork the run at step 1 with another forecast:")
        patch = ForkPatch(tool_result=(trip.WEATHER_CALL, FORECAST))
        fork = await client.fork(SESSION, from_step=1, patch=patch)
        forecast = json.dumps(FORECAST)
        teller.say(
            f"  $ perdure fork {SESSION} --from-step 1 "
            f"--tool-result '{trip.WEATHER_CALL}={forecast}'",
            f"  $ perdure resume {fork.session_id}",
        )
        async with teller.step("Resuming the fork: its step 1 is recorded, so it is not run again"):
            result = await client.resume(fork.session_id)
        if result is None:
            raise DemoFailedError("There was nothing to resume in the fork.")
        teller.say(f"Agent: {result.text}")
        self.told["fork"] = {
            "sessionId": fork.session_id,
            "fromStep": fork.step,
            "toolResult": {"toolCallId": trip.WEATHER_CALL, "result": FORECAST},
            "answer": result.text,
            "finishReason": result.finish_reason,
            "sourceBefore": before,
            "sourceAfter": await self._source(client),
        }

    async def _source(self, client: Client) -> str:
        """A digest of the trip's checkpoint and history, byte for byte."""
        import hashlib

        checkpoint = await client.checkpoint(SESSION)
        history = await client.history(SESSION)
        record = [checkpoint.to_json() if checkpoint else None, [e.to_json() for e in history]]
        return hashlib.sha256(stable_json(record).encode()).hexdigest()

    async def _compare(self, client: Client) -> None:
        from perdure.cli.render_compare import comparison

        fork_id = self.told["fork"]["sessionId"]
        a, b = await client.checkpoint(SESSION), await client.checkpoint(fork_id)
        if a is None or b is None:
            raise DemoFailedError("A checkpoint is missing.")
        found = compare_trajectories(a, b)
        self.told["comparison"] = found.to_json()
        self.teller.say(
            "", f"$ perdure compare {SESSION} {fork_id}", comparison(found, SESSION, fork_id)
        )


def _tell_checks(teller: Teller, found: list[facts.Check], seconds: float) -> None:
    teller.say("", "Counted from the ledger of the outside world, and from the store:")
    for check in found:
        teller.say(f"  {'✔' if check.holds else '✘'} {check.claim}")
        if not check.holds:
            teller.say(f"      expected {check.expected}", f"      found    {check.found}")
    wrong = sum(not check.holds for check in found)
    teller.say("", f"All true, in {seconds} s." if not wrong else f"{wrong} of these do not hold.")


async def _keep(stage: Stage, teller: Teller) -> None:
    teller.say(
        "",
        f"Temporal UI: {stage.server.ui_url}/namespaces/default/workflows",
        f"Sessions:    perdure sessions --store {stage.store}",
        "Ctrl-C ends the demo and removes its files.",
    )
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
