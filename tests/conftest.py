"""Fixtures that more than one tier uses, and a safe end of the test run."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from temporalio.client import Client

from perdure.dev_server import DevServer
from perdure.process import end_now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# A busy machine makes no example wrong; and what a run found before is not what this one is about.
settings.register_profile(
    "tests", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

_SESSIONS: list[pytest.Session] = []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    _SESSIONS.append(session)


def _end_with_the_status_of_the_session() -> None:
    """End this process without the interpreter's finalisation, which can crash (process.py).

    At exit, and not in one of pytest's hooks: all that pytest prints has been printed by then,
    and what others registered since (to stop a PostgreSQL server, say) has been done.
    """
    if not _SESSIONS:
        return
    status = int(_SESSIONS[0].exitstatus)
    # pytest's own clean-up comes after the session and can still fail, with a traceback.
    if status == 0 and hasattr(sys, "last_value"):
        status = 1
    end_now(status)


atexit.register(_end_with_the_status_of_the_session)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal_server() -> AsyncIterator[DevServer]:
    """One development server for the whole run, in memory: give each test ids of its own."""
    async with DevServer(headless=True) as server:
        yield server


@pytest.fixture
def temporal_address(temporal_server: DevServer) -> str:
    """``HOST:PORT`` of the run's server."""
    return temporal_server.address


@pytest.fixture
async def temporal_client(temporal_address: str) -> Client:
    """A client of the test's own event loop."""
    return await Client.connect(temporal_address)


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """The address of a SQLite file that does not exist yet, one for each test."""
    return f"sqlite:///{tmp_path / 'perdure.db'}"
