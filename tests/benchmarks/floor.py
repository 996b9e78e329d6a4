"""The floor: the plainest workflow that one would write by hand for the same steps.

One activity for the model and one for the tool in each step, Temporal's defaults, no log, no
ledger, no store. What a step costs here, Temporal itself costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow


@dataclass
class Work:
    """A run of ``steps`` calls whose results are ``size`` characters each."""

    steps: int
    size: int


@dataclass
class Step:
    """What an activity is told: which step it is, of what."""

    number: int
    work: Work


def result_text(number: int, size: int) -> str:
    """A tool's result: no two are equal, so nothing is stored once by luck."""
    return f"{number:08d}".ljust(size, "x")[:size]


@activity.defn
async def ask_model(step: Step) -> bool:
    """Whether the model wants another call."""
    return step.number < step.work.steps


@activity.defn
async def call_tool(step: Step) -> str:
    """What the call gave."""
    return result_text(step.number, step.work.size)


@workflow.defn
class Floor:
    """A loop of both."""

    @workflow.run
    async def run(self, work: Work) -> str:
        """Go on until the model asks for nothing more."""
        number = 0
        deadline = timedelta(minutes=1)
        while await workflow.execute_activity(
            ask_model, Step(number, work), start_to_close_timeout=deadline
        ):
            number += 1
            await workflow.execute_activity(
                call_tool, Step(number, work), start_to_close_timeout=deadline
            )
        return "Done."
