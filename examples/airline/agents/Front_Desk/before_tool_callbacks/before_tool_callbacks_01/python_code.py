"""Cleans a booking reference before it is looked up: people read it out with spaces and in small letters.

The tool still runs: what is changed in `input` is what it gets. Only a reference that cannot be one
is answered here, so the model asks again instead of the booking system saying "internal error".
"""

import re
from typing import Any, Optional

REFERENCE = re.compile(r"[A-Z0-9]{6}")


def before_tool_callback(
    tool: Tool, input: dict[str, Any], callback_context: CallbackContext
) -> Optional[dict[str, Any]]:
    if "booking_reference" not in input:
        return None
    reference = re.sub(r"[\s-]", "", str(input["booking_reference"])).upper()
    if not REFERENCE.fullmatch(reference):
        callback_context.variables["last_tool_error"] = {"tool": tool.name, "code": "bad_reference"}
        return {"error": f"{reference!r} is no booking reference: six letters and digits are needed"}
    input["booking_reference"] = reference
    input["source"] = "care"
    return None
