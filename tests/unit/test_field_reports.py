"""Every kind of fault that users have reported has a test that names it.

The rows are those of the project's list of field reports, by number. A test names its row in its
own name (``test_r24_falsy_results_are_results``) or in its docstring (``R24``).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROWS = set(range(1, 39))


def functions() -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for file in sorted(TESTS.rglob("test_*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]


def rows_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    names = re.findall(r"_r(\d+)(?=_)", test.name)
    return {int(row) for row in names + re.findall(r"\bR(\d+)\b", ast.get_docstring(test) or "")}


def test_every_row_is_named_by_a_test() -> None:
    named = set().union(*map(rows_of, functions()))
    assert named == ROWS


def test_the_failure_model_names_tests_that_there_are() -> None:
    text = (TESTS.parent / "docs" / "failure-model.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    rows = [row for row in rows if not row.startswith("| operation |")]
    there_are = {test.name for test in functions()}
    assert len(rows) > 50
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= there_are, row
