"""What README and docs show is what there is; the type checker looks at the Python blocks too."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
from typing import Any

import pytest
import typer
import yaml

from perdure.cli.main import app
from tests.doc_blocks import ROOT, as_module, blocks, commands


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.place)
def test_python_can_be_read_and_imports_what_there_is(block: Any) -> None:
    tree = ast.parse(as_module(block), block.place)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("perdure"):
            module = importlib.import_module(str(node.module))
            assert {alias.name for alias in node.names} <= {
                *dir(module),
                *getattr(module, "__all__", ()),
            }


def test_data_can_be_read() -> None:
    for block in blocks("json", "yaml"):
        (json.loads if block.language == "json" else yaml.safe_load)(block.text)


@pytest.mark.parametrize(
    ("block", "line"), [pytest.param(b, line, id=f"{b.place} {line}") for b, line in commands()]
)
def test_a_command_is_one_that_there_is(block: Any, line: str) -> None:
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    shell = [at for at, word in enumerate(words) if word in (">", ">>", "|", "&", "&&")]
    program, *arguments = words[: shell[0]] if shell else words
    program = program.removeprefix(".venv/bin/")
    if program == "make":
        target = re.escape(arguments[0])
        assert re.search(
            rf"^(?:[\w -]* )?{target}[ :]", (ROOT / "Makefile").read_text(), re.MULTILINE
        )
    elif program == "perdure" and arguments[0] not in ("--version", "--help"):
        group: Any = typer.main.get_command(app)
        command = group.commands[arguments[0]]
        # Reads the whole line and runs nothing.
        command.make_context(arguments[0], list(arguments[1:]))
    else:
        known = {
            "cd",
            "docker",
            "export",
            "sqlite3",
            "git",
            "kubectl",
            "pip",
            "perdure",
            "python",
            "temporal",
            "npm",
        }
        assert program in known, block.place
