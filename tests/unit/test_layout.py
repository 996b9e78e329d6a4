"""The folders, pyproject.toml, the links and the requirements files say the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = ("activities", "checkpoint_bridge", "workflows")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def setuptools_table() -> dict[str, Any]:
    table: dict[str, Any] = pyproject()["tool"]["setuptools"]
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


def pins(name: str) -> dict[str, str]:
    """Package to version, of a requirements file."""
    text = (ROOT / name).read_text("utf-8")
    found = re.findall(r"^([a-z0-9_-]+)==(\S+)(?: ;.*)?$", text, re.MULTILINE)
    return dict(found)


def floors() -> dict[str, str]:
    """Package to the lowest version that the ranges of pyproject.toml allow, without dev."""
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    ranges = project["dependencies"] + extras["dev-server"] + extras["postgres"]
    found = [re.match(r"([a-z0-9_-]+)(?:\[\w+\])?>=([0-9.]+)", each) for each in ranges]
    return {match[1]: match[2] for match in found if match}


def test_the_lowest_versions_tested_are_those_of_the_ranges() -> None:
    versions = {name: as_numbers(version) for name, version in floors().items()}
    assert {n: as_numbers(v) for n, v in pins("requirements-lowest.txt").items()} == versions


def test_the_versions_for_development_are_in_the_ranges() -> None:
    compiled = pins("requirements-dev.txt")
    below = {n for n, floor in floors().items() if as_numbers(compiled[n]) < as_numbers(floor)}
    assert below == set()


def test_dev_repeats_the_other_extras() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    dev = set(extras.pop("dev"))
    assert dev >= {each for extra in extras.values() for each in extra}


@pytest.mark.parametrize("name", ["requirements-dev.txt", "requirements-lowest.txt"])
def test_requirements_name_no_address_and_no_path(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert not re.search(r"://|--index|--find-links|^-|@| /", text, re.MULTILINE)


def as_numbers(version: str) -> tuple[int, ...]:
    """``1.34`` and ``1.34.0`` are the same version."""
    numbers = [int(part) for part in version.split(".") if part.isdigit()]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
