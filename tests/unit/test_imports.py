"""Imports point one way, and workflow code stays deterministic."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BRIDGE = "perdure.checkpoint_bridge"
ACTIVITIES = "perdure.activities"
WORKFLOWS = "perdure.workflows"

# Folder: what it may import of ours besides itself. perdure/ may import everything.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "checkpoint_bridge": (),
    "activities": (BRIDGE, "perdure.agent", "perdure.tool_kv", "perdure.tools"),
    # failures: the one place where an error becomes retryable or not, for both sides.
    "workflows": (
        *(f"{ACTIVITIES}.{name}" for name in ("wire", "packing", "failures")),
        BRIDGE,
    ),
}


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What workflow code may not touch: the clock, chance, files, the network, threads. Temporal's
# workflow.now(), workflow.random(), workflow.uuid4(), workflow.logger and activities serve.
NOT_IN_WORKFLOWS = words("""
    aiosqlite alembic httpx io logging multiprocessing opentelemetry os pathlib psycopg queue
    random rich secrets select shutil signal socket sqlalchemy sqlite3 ssl subprocess sys tempfile
    threading time typer urllib uuid
""")
# What opens stores, reads the clock or draws lots has no place in a part that workflows use.
NOT_PURE = words("""
    aiosqlite alembic httpx os pathlib psycopg random secrets shutil socket sqlalchemy sqlite3
    subprocess tempfile threading time
""")
# asyncio.wait and as_completed go through sets; workflow.wait and workflow.as_completed do not.
NOT_CALLED_IN_WORKFLOWS = words("""
    asyncio.as_completed asyncio.create_subprocess_exec asyncio.create_subprocess_shell
    asyncio.run asyncio.to_thread asyncio.wait
    date.today datetime.date.today datetime.datetime.now datetime.datetime.today
    datetime.datetime.utcnow datetime.now datetime.today datetime.utcnow
    hash id input open print
""")


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts if parts[0] == "perdure" else ("perdure", *parts))


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports_of(file: Path) -> list[str]:
    """The modules that a file imports, anywhere in it, as dotted names.

    ``from a import b`` gives ``a.b``: b may be a module, and a name within ``a`` is within it.
    Imports for the type checker alone bind nothing at run time, but point somewhere all the
    same, so they count.
    """
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are written perdure.*, not relative"
            assert node.module is not None
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def case(file: Path) -> object:
    return pytest.param(file, id=name_of(file))


@pytest.mark.parametrize("file", [case(f) for folder in MAY_IMPORT for f in modules(folder)])
def test_arrows_point_one_way(file: Path) -> None:
    folder = file.relative_to(ROOT).parts[0]
    allowed = (f"perdure.{folder}", *MAY_IMPORT[folder])
    ours = [name for name in imports_of(file) if is_within(name, "perdure")]
    wrong = [name for name in ours if not any(is_within(name, each) for each in allowed)]
    assert wrong == []


@pytest.mark.parametrize(
    "file", [case(f) for folder in ("perdure", *MAY_IMPORT) for f in modules(folder)]
)
def test_our_modules_are_imported_by_their_full_name(file: Path) -> None:
    tops = {name.split(".")[0] for name in imports_of(file)}
    assert tops.isdisjoint({"workflows", "activities", "checkpoint_bridge", "tests"})


@pytest.mark.parametrize("file", [case(f) for f in modules("workflows")])
def test_workflow_code_is_deterministic(file: Path) -> None:
    imported = {name.split(".")[0] for name in imports_of(file)}
    assert imported & NOT_IN_WORKFLOWS == set()
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call)
    }
    assert calls & NOT_CALLED_IN_WORKFLOWS == set()


def bridge_modules_of_workflows() -> list[Path]:
    """What workflow code reaches within the bridge and the wire types, directly or not."""
    files = {name_of(f): f for folder in MAY_IMPORT for f in modules(folder)}
    reached: dict[str, Path] = {}
    waiting = modules("workflows")
    while waiting:
        for name in imports_of(waiting.pop()):
            module = name if name in files else name.rpartition(".")[0]
            if module in files and module not in reached:
                reached[module] = files[module]
                waiting.append(files[module])
    return [f for module, f in sorted(reached.items()) if not is_within(module, WORKFLOWS)]


def test_workflows_reach_only_pure_parts_of_the_bridge() -> None:
    impure = {
        name_of(file): sorted(wrong)
        for file in bridge_modules_of_workflows()
        if (wrong := {name.split(".")[0] for name in imports_of(file)} & NOT_PURE)
    }
    assert impure == {}
