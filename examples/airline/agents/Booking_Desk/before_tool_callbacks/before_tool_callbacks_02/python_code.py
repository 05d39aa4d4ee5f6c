"""Answers a repeated question for a seat map from the session; the reservation system is slow."""


def before_tool_callback(tool, tool_input, callback_context):
    if tool.name != "seat_options":
        return None
    seats = callback_context.variables.get("seat_cache", {})
    cached = seats.get(f"{tool_input.get('booking_reference')}/{tool_input.get('cabin', 'economy')}")
    return {"result": cached, "cached": True} if cached else None
