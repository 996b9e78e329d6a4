"""What open runs and other programs rely on changes only on purpose."""

from __future__ import annotations

from tests import contract


def test_the_contract_with_temporal_is_the_written_one() -> None:
    assert contract.FILE.read_text("utf-8") == contract.as_text(), (
        "if nothing was renamed or taken away: python -m tests.contract --write"
    )
