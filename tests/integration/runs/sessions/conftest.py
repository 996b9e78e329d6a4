"""A session object for the tests of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure.sessions.session import Session
    from tests.integration.runs.conftest import Bench


@pytest.fixture
def talk(bench: Bench) -> Session:
    return bench.client.sessions.get(bench.session)
