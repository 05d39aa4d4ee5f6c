"""Opens every turn: counts it, notes how the traveller reaches us, drops what the last turn left."""

from typing import Optional

# Written by tools and callbacks for the length of one turn only.
LEFT_OVERS = ("pending_offer", "last_tool_error")


def before_agent_callback(callback_context: CallbackContext) -> Optional[Content]:
    state = callback_context.variables
    state["turn_count"] = state.get("turn_count", 0) + 1

    session = state.get("_session", {})
    contact = state.setdefault("traveller", {}).setdefault("contact", {})
    contact["last_channel"] = session.get("channel", "API")
    if session.get("modality") == "VOICE":
        contact["prefers_short_answers"] = True

    for name in LEFT_OVERS:
        if name in state:
            del state[name]

    print(f"turn {state['turn_count']} on {contact['last_channel']}")

    hours = state.get("support_hours", {})
    if not hours.get("open", True):
        text = f"Our desk is closed right now and reopens at {hours.get('reopens', 'a later time')}."
        return Content(parts=[Part.from_text(text=text)], role="model")
    return None
