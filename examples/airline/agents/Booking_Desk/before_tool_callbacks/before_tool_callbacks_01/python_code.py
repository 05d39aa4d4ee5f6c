"""Guard: nothing is changed or paid back without an offer that the traveller has confirmed."""

from typing import Any, Optional

GUARDED = {"change_flight", "refund"}


def refuse(reason: str, advice: str) -> dict[str, Any]:
    return {"error": reason, "advice": advice}


async def before_tool_callback(
    tool: Tool, input: dict[str, Any], callback_context: CallbackContext
) -> Optional[dict[str, Any]]:
    if tool.name not in GUARDED:
        return None
    offer = callback_context.variables.get("offer")
    if not offer:
        return refuse("no offer", "Ask for a quote with fare_difference first.")
    if not offer.get("confirmed"):
        return refuse("offer not confirmed", "Repeat the price and wait for a clear yes.")
    if input.get("flight") not in (None, offer["flight"]):
        return refuse("another flight than offered", f"The offer is for {offer['flight']}.")
    input["offer_id"] = offer["id"]
    return None
