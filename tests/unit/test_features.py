"""The table of features tells the truth about the tests."""

from __future__ import annotations

from tests import features


def test_every_row_is_shown_or_comes_later() -> None:
    rows = features.shown()
    assert set(rows) == set(features.FEATURES), "a test names a row that there is not"
    assert set(features.missing()) == set(features.LATER), "missing, or no longer to come"


def test_every_test_that_is_named_is_there() -> None:
    there_are = set(features.tests())
    for row, names in features.shown().items():
        assert set(names) <= there_are, f"F{row}"


def test_the_page_is_what_the_tests_say() -> None:
    assert features.PAGE.read_text("utf-8") == features.page(), (
        "write it anew: python -m tests.features --write"
    )
