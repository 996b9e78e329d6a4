"""The files that ship a worker, by their own linters and schemas: no engine runs here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
