"""The demo's agent: it plans a day by the weather, with a scripted model and no key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.agent import Agent
from perdure.demo.ledger import MODEL, START, Ledger
from perdure.testing import ScriptedModel, call
from perdure.tools import Tool, ToolContext, tool

if TYPE_CHECKING:
    from perdure.activities.providers.base import ModelRequest, ModelResponse

AGENT = "trip"
PROMPT = "Plan my Saturday in Lisbon, with a hotel."
WEATHER_CALL = "call_weather"
HOLD_SECONDS = 4.0
"""The hotel takes so long to confirm: long enough to kill the worker meanwhile."""


def trip_agent(ledger: Ledger) -> Agent:
    """The agent, with tools that act on a ledger."""
    return Agent(
        AGENT,
        provider=_NotedModel(ledger),
        instructions="You plan trips. Look at the weather before you plan.",
        tools=_tools(ledger),
    )


class _NotedModel(ScriptedModel):
    """The script; each request is noted in the ledger, as a provider's bill would have it."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__([_ask_both(), _plan, _answer])
        self._ledger = ledger

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self._ledger.note(MODEL, session=request.session_id, turn=request.step)
        return await super().generate(request)


def _tools(ledger: Ledger) -> list[Tool]:
    def start(name: str, ctx: ToolContext) -> dict[str, Any]:
        facts = {"tool": name, "session": ctx.session_id}
        ledger.note(START, key=ctx.idempotency_key, attempt=ctx.attempt, **facts)
        return facts

    @tool(read_only=True)
    async def weather(city: str, ctx: ToolContext) -> dict[str, str]:
        """The forecast for a city."""
        start("weather", ctx)
        return {"city": city, "forecast": "sunny"}

    @tool
    async def hold_hotel(city: str, ctx: ToolContext) -> dict[str, str]:
        """Hold a room, and wait for the hotel to confirm it."""
        facts = start("hold_hotel", ctx)
        ledger.act(ctx.idempotency_key, what=f"a room in {city} is held", **facts)
        await asyncio.sleep(HOLD_SECONDS)
        return {"hotel": "Casa do Rio", "status": "held"}

    @tool(needs_approval=True)
    async def book_boat(price: int, ctx: ToolContext) -> dict[str, Any]:
        """Book a boat on the river."""
        facts = start("book_boat", ctx)
        ledger.act(ctx.idempotency_key, what=f"a boat for {price} is booked", **facts)
        return {"booked": "boat", "price": price}

    @tool
    async def reserve_museum(name: str, ctx: ToolContext) -> dict[str, str]:
        """Reserve tickets for a museum; they are free."""
        facts = start("reserve_museum", ctx)
        ledger.act(ctx.idempotency_key, what=f"tickets for {name} are reserved", **facts)
        return {"reserved": name}

    return [weather, hold_hotel, book_boat, reserve_museum]


def _ask_both() -> list[dict[str, Any]]:
    return [
        call("weather", {"city": "Lisbon"}, id=WEATHER_CALL),
        call("hold_hotel", {"city": "Lisbon"}, id="call_hotel"),
    ]


def _plan(request: ModelRequest) -> list[dict[str, Any]]:
    if _rains(request):
        return [call("reserve_museum", {"name": "Museu do Azulejo"}, id="call_museum")]
    return [call("book_boat", {"price": 180}, id="call_boat")]


def _answer(request: ModelRequest) -> str:
    if _rains(request):
        return "It will rain: tiles at the Museu do Azulejo, and a room at Casa do Rio."
    return "The sun is out: a boat on the Tejo, and a room at Casa do Rio."


def _rains(request: ModelRequest) -> bool:
    results = (message for message in request.messages if message.get("role") == "tool")
    return any("rain" in str(message.get("content")) for message in results)
