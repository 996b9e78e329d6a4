"""A worker's place in its fleet, as the command line takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.cli.rollout import Rollout


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        (Rollout(deployment="billing"), "--deployment and --build-id go together"),
        (Rollout(build_id="one"), "--deployment and --build-id go together"),
        (Rollout(pinned=True), "--pinned needs --deployment and --build-id"),
        (Rollout(grace=0), "--grace is a number of seconds above 0"),
        (Rollout(ready_file=Path("/nowhere/ready")), "cannot be written"),
    ],
)
def test_what_does_not_fit_is_one_line(rollout: Rollout, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        rollout.check()
    assert "\n" not in caught.value.message


def test_the_ready_file_is_there_while_the_worker_takes_work(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    with Rollout(ready_file=file).ready():
        assert file.exists()
    assert not file.exists()
    with Rollout().ready():
        assert not file.exists()
