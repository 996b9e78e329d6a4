"""How long things may take and how they are retried, in one place."""

from __future__ import annotations

from datetime import timedelta

from temporalio.common import RetryPolicy

HEARTBEAT = timedelta(seconds=5)
"""After this silence a worker counts as dead."""

STORE_TIMEOUT = timedelta(seconds=30)
STORE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    maximum_interval=timedelta(seconds=10),
)
"""Without an end: a run waits for its store, and nothing is lost meanwhile."""

MODEL_TIMEOUT = timedelta(minutes=15)
MODEL_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(minutes=1),
    maximum_attempts=30,
)
"""For workers that die while a model answers; how often a provider may fail is the activity's
to say, which has the count in the ledger (``activities/model_call.py``)."""

HOOK_TIMEOUT = timedelta(minutes=5)
HOOK_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=3)
"""For workers that die while an agent's hook runs."""

ONCE = RetryPolicy(maximum_attempts=1)
"""For tools: a policy with more attempts would also repeat deadlines and raised errors."""

TOOL_GRACE = timedelta(days=1)
"""Beyond a tool's own deadline: time to store the outcome while the store is away."""

MAX_RERUNS = 5
"""How often a call is dispatched again after its worker died."""

CLEANUP = timedelta(seconds=10)
"""How long a cancelled run waits for calls in flight to notice."""

EVENTS_PER_EXECUTION = 4_000
"""Roll over here: a cold replay of so much takes well under five seconds."""
