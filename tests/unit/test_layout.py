"""The folders, the mapping in pyproject.toml and the links say the same."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = ("activities", "checkpoint_bridge", "workflows")


def setuptools_table() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    table: dict[str, Any] = tomllib.loads(text)["tool"]["setuptools"]
    return table


def packages_in_folders() -> list[str]:
    """Every folder that holds Python files, by the name under which it is imported."""
    found = set()
    for top in ("perdure", *MAPPED):
        # rglob does not follow the links inside perdure/.
        for file in (ROOT / top).rglob("*.py"):
            parts = file.parent.relative_to(ROOT).parts
            found.add(".".join(parts if top == "perdure" else ("perdure", *parts)))
    return sorted(found)


def test_every_folder_with_python_files_is_packaged() -> None:
    assert setuptools_table()["packages"] == packages_in_folders()


def test_every_package_has_an_init() -> None:
    for package in packages_in_folders():
        folder = ROOT / "perdure" / Path(*package.split(".")[1:])
        assert (folder / "__init__.py").is_file(), package


def test_the_mapping_names_the_folders_at_the_top() -> None:
    expected = {f"perdure.{name}": name for name in MAPPED} | {"perdure": "perdure"}
    assert setuptools_table()["package-dir"] == expected


@pytest.mark.parametrize("name", MAPPED)
def test_the_links_for_type_checkers_point_to_the_folders(name: str) -> None:
    link = ROOT / "perdure" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_the_links_are_the_only_ones() -> None:
    links = {path.name for path in (ROOT / "perdure").rglob("*") if path.is_symlink()}
    assert links == set(MAPPED)
