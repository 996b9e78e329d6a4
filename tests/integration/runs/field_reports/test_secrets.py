"""R37: not all that a tool raises or prints is for the model, the client or a history."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, PropagatingToolError, tool
from perdure.checkpoint_bridge.errors import ConfigurationError, PerdureError
from perdure.testing import call

if TYPE_CHECKING:
    from tests.integration.runs.conftest import Bench

CANARY = "hunter2canary"
DATABASE = f"postgresql://bob:{CANARY}@db.internal:5432/orders"


async def everything(bench: Bench) -> str:
    """All that is stored and all that Temporal keeps."""
    texts = [str(await bench.record()), str(await bench.events())]
    for history in await bench.histories():
        texts += [event.SerializeToString().decode("latin-1") for event in history.events]
    return "\n".join(texts)


@tool(read_only=True)
def broken() -> None:
    """Fails with a secret in its message, its cause and its locals."""
    password = CANARY
    print(f"logging in with {password}")
    try:
        raise ConnectionError(f"cannot reach {DATABASE}")
    except ConnectionError as error:
        raise ValueError(f"order 7 was not found via {DATABASE}, password={password}") from error


async def test_r37_secrets_in_an_exception_stay_with_the_worker(
    bench: Bench, session: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = bench.model([call("broken")], "Done.")
    with caplog.at_level(logging.WARNING):
        async with bench.serving(Agent("agent", provider=model, tools=[broken])):
            await bench.client.execute("agent", "Go", session_id=session)
    (message,) = await bench.results()
    error = json.loads(message["content"])
    # The model reads enough to go on.
    assert (error["error"], error["kind"]) == ("ValueError", "execution")
    assert error["message"] == (
        "order 7 was not found via postgresql://[redacted]@db.internal:5432/orders, "
        "password=[redacted]"
    )
    assert CANARY not in str(model.requests[1].messages)
    assert CANARY not in await everything(bench)
    # The worker's log has what its operator needs.
    assert CANARY in caplog.text


@pytest.mark.parametrize(
    ("how", "text"),
    [("type", "Tool execution failed"), ("full", f"order 7 was not found via {DATABASE}")],
)
async def test_r37_the_operator_chooses(bench: Bench, session: str, how: Any, text: str) -> None:
    model = bench.model([call("broken")], "Done.")
    agent = Agent("agent", provider=model, tools=[broken], tool_errors=how)
    async with bench.serving(agent):
        await bench.client.execute("agent", "Go", session_id=session)
    error = json.loads((await bench.results())[0]["content"])
    assert error["error"] == "ValueError"
    assert error["message"].startswith(text)


def test_r37_a_choice_that_there_is_not(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="redacted, full, type") as raised:
        Agent("agent", provider=bench.model(), tool_errors="all")  # type: ignore[arg-type]
    assert raised.value.field == "tool_errors"


async def test_r37_an_error_that_fails_the_run(bench: Bench, session: str) -> None:
    """It reaches the client and Temporal's history, and its causes do not."""

    @tool(read_only=True)
    def fails() -> None:
        try:
            raise RuntimeError(DATABASE)
        except RuntimeError as error:
            raise PropagatingToolError(f"closed: api_key={CANARY}") from error

    model = bench.model([call("fails")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[fails])):
        with pytest.raises(PropagatingToolError) as raised:
            await bench.client.execute("agent", "Go", session_id=session)
    assert raised.value.message == "closed: api_key=[redacted]"
    assert CANARY not in await everything(bench)


async def test_r37_a_provider_of_ones_own(
    bench: Bench, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a secret of no known form: the worker knows it from its environment."""
    monkeypatch.setenv("SHOP_API_KEY", "a plain sentence")
    model = bench.model(RuntimeError("the key was: a plain sentence"))
    async with bench.serving(Agent("agent", provider=model)):
        with pytest.raises(PerdureError) as raised:
            await bench.client.execute("agent", "Go", session_id=session)
    assert raised.value.message.endswith("raised RuntimeError: the key was: [redacted]")


async def test_r37_arguments_and_unknown_tools_stay_as_they_are(bench: Bench, session: str) -> None:
    """What the model wrote itself is no secret to it."""

    @tool(read_only=True)
    def log_in(password: int) -> None: ...

    model = bench.model([call("log_in", {"password": "abc"}), call("password=abc1")], "Done.")
    async with bench.serving(Agent("agent", provider=model, tools=[log_in])):
        await bench.client.execute("agent", "Go", session_id=session)
    first, second = (json.loads(message["content"]) for message in await bench.results())
    assert first["message"].startswith("password: Input should be a valid integer")
    assert "'password=abc1' was not found" in second["message"]
