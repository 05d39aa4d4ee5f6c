"""Turns a quote into the offer that the traveller can confirm, and gives the model only what it needs."""

from datetime import datetime
from typing import Any, Optional


def after_tool_callback(
    tool: Tool, input: dict[str, Any], callback_context: CallbackContext, tool_response: dict[str, Any]
) -> Optional[dict[str, Any]]:
    if tool.name != "fare difference":
        return None
    quote = tool_response.get("result", {})
    if not quote:
        return {"error": "no quote", "advice": "Offer another date."}

    departure = datetime.fromisoformat(quote["departure"])
    callback_context.variables["offer"] = {
        "id": quote["quote_id"],
        "flight": quote["flight"],
        "price": quote["to_pay"],
        "currency": quote["currency"],
        "departure": quote["departure"],
        "confirmed": False,
    }
    return {
        "flight": quote["flight"],
        "to_pay": f"{quote['to_pay']:.2f} {quote['currency']}",
        "departs": departure.strftime("%A %d %B, %H:%M"),
    }
