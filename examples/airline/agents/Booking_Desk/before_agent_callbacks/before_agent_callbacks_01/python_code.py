"""Only verified travellers talk to this desk; everybody else is sent back, and told why once."""

from typing import Optional


def before_agent_callback(callback_context: CallbackContext) -> Optional[Content]:
    traveller = callback_context.variables.get("traveller", {})
    if traveller.get("verified"):
        callback_context.variables.pop("sent_back", None)
        return None

    parts = []
    if not callback_context.variables.get("sent_back"):
        parts.append(Part.from_text(text="I need to check your booking first."))
    callback_context.variables["sent_back"] = True
    parts.append(Part.from_agent_transfer(agent="Front Desk"))
    return Content(parts=parts, role="model")
