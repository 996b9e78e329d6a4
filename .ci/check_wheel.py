"""Look into the wheel and the source archive, and import every module of the installed wheel.

Run with an interpreter into which only the wheel was installed: ``python -I check_wheel.py
perdure.whl perdure.tar.gz``.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

NEEDS_EXTRA = {"perdure.codec_server"}
FOLDERS = ("activities", "checkpoint_bridge", "workflows")


def main(wheel: str, archive: str) -> None:
    """Fail with a line that says what is missing or too much."""
    with zipfile.ZipFile(wheel) as file:
        in_wheel = [name for name in file.namelist() if name.endswith(".py")]
    with tarfile.open(archive) as file:
        in_archive = [name.partition("/")[2] for name in file.getnames() if name.endswith(".py")]
    twice = [name for name, count in Counter(in_wheel).items() if count > 1]
    assert not twice, f"twice in the wheel: {twice}"
    outside = [name for name in in_wheel if not name.startswith("perdure/")]
    assert not outside, f"outside of perdure in the wheel: {outside}"

    root = Path(__file__).parents[1]
    expected = {
        path.relative_to(root).as_posix()
        for folder in ("perdure", *FOLDERS)
        for path in (root / folder).rglob("*.py")
    }
    packed = {name.removeprefix("perdure/") if _is_mapped(name) else name for name in in_wheel}
    assert packed == expected, f"not the same in wheel and folders: {packed ^ expected}"
    assert expected <= set(in_archive), f"not in the archive: {expected - set(in_archive)}"

    import perdure

    home = str(perdure.__file__)
    assert "site-packages" in home, f"not the wheel's perdure: {home}"
    names = [module.name for module in pkgutil.walk_packages(perdure.__path__, "perdure.")]
    # Alembic runs its own files with a context that only it can make.
    names = [name for name in names if not name.endswith("migrations.env")]
    from perdure.checkpoint_bridge.errors import ConfigurationError

    for name in names:
        try:
            importlib.import_module(name)
        except ConfigurationError as error:
            # It needs an extra, and says which: nothing else may be missing.
            if name not in NEEDS_EXTRA or "perdure[" not in (error.hint or ""):
                raise
    print(f"{len(in_wheel)} files in the wheel, {len(names)} modules imported")


def _is_mapped(name: str) -> bool:
    return name.split("/")[1] in FOLDERS


if __name__ == "__main__":
    main(*sys.argv[1:])
