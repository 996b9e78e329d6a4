"""The bridge's public names: all there, loaded when used, and never a module in their place."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from perdure import checkpoint_bridge


@pytest.mark.parametrize("name", checkpoint_bridge.__all__)
def test_a_public_name_is_what_it_says(name: str) -> None:
    value = getattr(checkpoint_bridge, name)
    assert not isinstance(value, ModuleType)
    assert name in dir(checkpoint_bridge)


def test_every_name_has_a_home_and_every_home_a_name() -> None:
    assert set(checkpoint_bridge.__all__) == set(checkpoint_bridge._HOME)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = checkpoint_bridge.nothing


def test_importing_the_bridge_is_light() -> None:
    code = (
        "import sys, perdure.checkpoint_bridge as bridge\n"
        "bridge.compare_trajectories, bridge.Checkpoint, bridge.ForkPatch\n"
        "heavy = {'sqlalchemy', 'temporalio', 'pydantic', 'httpx', 'alembic'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
