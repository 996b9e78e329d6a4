"""The agents that the composed worker serves; put yours here."""

from __future__ import annotations

from perdure import Agent, ToolContext, tool


@tool(needs_approval=True)
async def charge_card(amount: int, order: str, ctx: ToolContext) -> dict[str, object]:
    """Charge the customer's card."""
    return {"charged": amount, "order": order, "reference": ctx.idempotency_key}


billing = Agent(
    "billing",
    model="openai/gpt-4o-mini",
    instructions="You settle bills. Charge what you are asked to charge.",
    tools=[charge_card],
)
