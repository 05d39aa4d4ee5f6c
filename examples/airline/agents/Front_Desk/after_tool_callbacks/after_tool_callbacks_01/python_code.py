"""Keeps a booking that was looked up, and hides travel documents from the model."""

from typing import Any, Optional


def after_tool_callback(
    tool: Tool, input: dict[str, Any], callback_context: CallbackContext, tool_response: dict[str, Any]
) -> Optional[dict[str, Any]]:
    if tool.name != "lookup_booking" or "error" in tool_response:
        return None

    for passenger in tool_response.get("passengers", []):
        passenger.pop("document", None)
        passenger.pop("date_of_birth", None)

    state = callback_context.variables
    state["booking"] = {
        "reference": input["booking_reference"],
        "flights": [segment["flight"] for segment in tool_response.get("segments", [])],
        "passengers": len(tool_response.get("passengers", [])),
    }
    state.setdefault("traveller", {})["verified"] = bool(tool_response.get("contact_matches"))
    return None
