"""The files that ship a worker, by their own linters and schemas: no engine runs here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
PROGRAMS = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ("hadolint", "Dockerfile"),
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"),
        ("kubernetes-validate", "--strict", "--quiet", "kubernetes/worker.yaml"),
    ],
    ids=lambda command: command[0],
)
def test_a_file_is_what_its_tool_expects(command: tuple[str, ...]) -> None:
    program, *arguments = command
    done = subprocess.run(
        [str(PROGRAMS / program), *arguments],
        cwd=DOCKER,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_composed_processes_run(
    tmp_path: Path, temporal_address: str, postgres_url: str
) -> None:
    """The commands and the environment of the compose file, with the addresses of this machine."""
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))["services"]
    ready = tmp_path / "ready"
    here = {
        "TEMPORAL_ADDRESS": temporal_address,
        "PERDURE_STORE": postgres_url,
        "PERDURE_READY_FILE": str(ready),
        "PERDURE_TASK_QUEUE": f"queue-{uuid.uuid4().hex}",
        "OPENAI_API_KEY": "none-is-called",
    }

    def start(name: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **services[name]["environment"], **here}
        del environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
        command = [sys.executable, "-m", "perdure", *services[name]["command"]]
        return subprocess.Popen(command, cwd=DOCKER / "agents", env=environment)

    setup = start("setup")
    assert setup.wait(60) == 0
    worker = start("worker")
    while not ready.exists():
        assert worker.poll() is None
        time.sleep(0.05)
    worker.terminate()
    assert worker.wait(60) == 0


def test_they_set_what_the_program_reads() -> None:
    code = "".join(file.read_text("utf-8") for file in (ROOT / "perdure").rglob("*.py"))
    known = set(re.findall(r"\"(PERDURE_[A-Z_]+)\"", code))
    files = [DOCKER / "Dockerfile", DOCKER / "compose.yaml", DOCKER / "kubernetes" / "worker.yaml"]
    for file in files:
        named = set(re.findall(r"\bPERDURE_[A-Z_]+\b", file.read_text("utf-8")))
        assert named, file
        assert named <= known, file


def test_the_image_has_the_extras_that_there_are() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for extras in re.findall(r"\[([a-z,-]+)\]'", (DOCKER / "Dockerfile").read_text("utf-8")):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
