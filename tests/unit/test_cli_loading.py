"""How APP is read."""

from __future__ import annotations

import pytest

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.cli.loading import split_app


@pytest.mark.parametrize(
    ("app", "source", "attribute"),
    [
        ("app", "app", None),
        ("shop.agents", "shop.agents", None),
        ("shop.agents:billing", "shop.agents", "billing"),
        ("shop:agents.billing", "shop", "agents.billing"),
        ("app.py", "app.py", None),
        ("app.py:billing", "app.py", "billing"),
        ("./shop/app.py:billing", "./shop/app.py", "billing"),
        ("/srv/my shop/app.py", "/srv/my shop/app.py", None),
        ("C:/shop/app.py", "C:/shop/app.py", None),
        ("C:/shop/app.py:billing", "C:/shop/app.py", "billing"),
    ],
)
def test_forms_of_app(app: str, source: str, attribute: str | None) -> None:
    assert split_app(app) == (source, attribute)


@pytest.mark.parametrize("app", ["", ":", "app:", "my app", "app:a b", "1app", "app..b", "a-b"])
def test_what_is_no_app(app: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        split_app(app)
    assert refused.value.field == "app"
    assert "MODULE:ATTRIBUTE" in refused.value.message
