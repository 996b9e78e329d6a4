from __future__ import annotations

import asyncio
import importlib.metadata
import os
import random
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
from temporalio.client import Client

from perdure import dev_server
from perdure.checkpoint_bridge.errors import ConfigurationError, TemporalUnavailableError
from perdure.dev_server import DevServer, find_temporal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process's state has no event
            await asyncio.sleep(0.02)


async def test_serves_the_api_and_the_ui_on_loopback_and_stops() -> None:
    async with DevServer(search_attributes={"Colour": "Keyword"}) as server:
        client = await Client.connect(server.address)
        assert (await client.count_workflows("Colour = 'red'")).count == 0
        assert server.ui_url is not None
        async with httpx.AsyncClient() as browser:
            assert "<html" in (await browser.get(server.ui_url)).text
        pid = server.pid
        assert pid is not None
        listening = {c.laddr.ip for c in psutil.Process(pid).net_connections() if not c.raddr}
        assert listening == {"127.0.0.1"}
        log_file = server.log_file
        assert log_file is not None
    assert server.pid is None
    assert not psutil.pid_exists(pid)
    assert not log_file.exists()


async def test_headless_has_no_ui(temporal_server: DevServer) -> None:
    assert temporal_server.ui_url is None


async def test_comes_back_with_its_state_after_a_kill(tmp_path: Path) -> None:
    async with DevServer(db_filename=tmp_path / "temporal.db", headless=True) as server:
        address = server.address
        client = await Client.connect(address)
        await client.start_workflow("Nobody", id="kept", task_queue="none")
        await server.kill()
        assert server.pid is None
        await server.restart()
        assert server.address == address
        again = await Client.connect(address)
        description = await again.get_workflow_handle("kept").describe()
        assert description.workflow_type == "Nobody"


async def test_notices_a_server_that_somebody_killed(tmp_path: Path) -> None:
    async with DevServer(headless=True) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: server.pid is None)
        await server.restart()
        assert server.running


async def test_a_server_that_ends_at_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    server = DevServer(headless=True, log_file=log, extra_args=["--no-such-flag"])
    with pytest.raises(TemporalUnavailableError) as caught:
        await server.start()
    assert "unknown flag: --no-such-flag" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(log) in caught.value.__notes__[0]
    assert not server.running


@pytest.mark.parametrize("wrong", [{"port": "x"}, {"ui_port": 65_536}, {"stop_timeout": 0}])
def test_what_cannot_be_is_refused_at_once(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=f"^{name} is ") as caught:
        DevServer(**wrong)
    assert caught.value.field == name


async def test_a_taken_port_is_refused_when_it_was_asked_for(temporal_server: DevServer) -> None:
    port = int(temporal_server.address.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"port {port} is in use"):
        await DevServer(headless=True, port=port).start()


async def test_other_ports_are_tried_after_a_collision(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        choices = iter([[taken], random.sample(dev_server._PORTS, 10)])
        monkeypatch.setattr(random, "sample", lambda *_: next(choices))
        # As if it had been free when we looked.
        monkeypatch.setattr(dev_server, "_is_free", lambda *_: True)
        async with DevServer(headless=True) as server:
            assert server.address != f"127.0.0.1:{taken}"
            await Client.connect(server.address)


async def test_two_servers_do_not_share_a_database_file(tmp_path: Path) -> None:
    database = tmp_path / "temporal.db"
    async with DevServer(db_filename=database, headless=True):
        with pytest.raises(ConfigurationError, match=r"another development server uses .*db"):
            await DevServer(db_filename=database, headless=True, stop_timeout=0.1).start()


async def test_the_server_ends_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio\n"
        "from perdure.dev_server import DevServer\n"
        "async def main():\n"
        "    async with DevServer(headless=True) as server:\n"
        "        print(server.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    server = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    await eventually(lambda: not server.is_running() or server.status() == "zombie")


def test_a_missing_program_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(importlib.metadata, "files", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        find_temporal()
    assert "pip install 'perdure[dev-server]'" in caught.value.hint


def test_the_program_is_found_through_its_package_and_in_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = find_temporal()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_temporal().samefile(beside)
    program = tmp_path / "temporal"
    program.touch(mode=0o755)
    monkeypatch.setattr(importlib.metadata, "files", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_temporal() == program
