"""Fixtures of the fault tests: worker processes that can be killed, and a client to watch them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.dev_server import DevServer
    from tests.acceptance.faults.rig import Rig


@pytest.fixture(scope="session")
def rig_module() -> Any:
    """``rig.py``, which tests cannot import: pytest runs in importlib mode."""
    name = "tests.acceptance.faults.rig"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("rig.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="module")
def new_rig(
    rig_module: Any, temporal_server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Rig]]:
    """Make rigs; whatever workers they started are gone at the end of the module."""
    rigs: list[Rig] = []

    def make(name: str, **options: Any) -> Rig:
        folder = tmp_path_factory.mktemp(name)
        rigs.append(
            rig_module.Rig(folder, temporal_server.address, task_queue=folder.name, **options)
        )
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()
