"""The code blocks of README and docs: found here, checked by tests and by the type checker.

python -m tests.doc_blocks FOLDER    write the Python blocks there, as modules for mypy
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docker" / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)

KNOWN = """\
from __future__ import annotations

from typing import Any

from perdure import Agent, ForkPatch, ToolContext, compare_trajectories, tool
from perdure.client import Client as SessionsClient, connect
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.results import RunResult
from perdure.sessions.session import Session

client: SessionsClient
session: Session
store: SqlStore
result: RunResult
billing: Agent
approval_id: str
messages: list[dict[str, Any]]
events: list[dict[str, Any]]
is_known: Any
temporal_client: Any
payments: Any

"""
"""What a block may use without having made it."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """All blocks in one of the languages."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for fence in _FENCE.finditer(text):
            if fence[2] in languages:
                line = text.count("\n", 0, fence.start()) + 2
                found.append(Block(page, line, fence[2], textwrap.dedent(fence[3])))
    return found


def commands() -> list[tuple[Block, str]]:
    """Every command line of the console blocks, continued lines joined, without comments."""
    found = []
    for block in blocks("console"):
        text = block.text.replace("\\\n", " ")
        found += [(block, line[2:]) for line in text.splitlines() if line.startswith("$ ")]
    return found


def as_module(block: Block) -> str:
    """A Python block as a module: a whole program as it is, a piece inside of a function."""
    if block.text.startswith("# ") and ".py" in block.text.splitlines()[0]:
        return block.text
    # Classes and decorated functions stand at the top, where their annotations are looked up.
    if not re.search(r"^(?:async (?:for|with)|.*\bawait\b)", block.text, re.MULTILINE):
        return KNOWN + block.text
    if re.search(r"^async def|^if __name__|^@", block.text, re.MULTILINE):
        return KNOWN + block.text
    return f"{KNOWN}\nasync def block() -> None:\n{textwrap.indent(block.text, '    ')}"


def main(folder: Path) -> None:
    """Write the Python blocks as modules, named by their place."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for block in blocks("python"):
        name = re.sub(r"\W+", "_", block.place.removesuffix(".md"))
        (folder / f"{name}.py").write_text(as_module(block), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
