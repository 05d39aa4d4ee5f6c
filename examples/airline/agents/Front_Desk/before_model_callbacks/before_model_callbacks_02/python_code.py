"""Hands over to a person: fixed words for the traveller, and a payload that routes the conversation."""

import json
from typing import Optional

QUEUES = {"platinum": "care-priority", "gold": "care-priority"}


def wants_person(llm_request: LlmRequest) -> bool:
    return any(part.has_function_call("escalate") for content in llm_request.contents for part in content.parts)


def before_model_callback(callback_context: CallbackContext, llm_request: LlmRequest) -> Optional[LlmResponse]:
    if not wants_person(llm_request):
        return None

    traveller = callback_context.variables.get("traveller", {})
    payload = {
        "action": "transfer_to_person",
        "queue": QUEUES.get(traveller.get("tier"), "care-standard"),
        "context": {
            "session": callback_context.session_id,
            "booking": callback_context.variables.get("booking", {}).get("reference"),
            "turns": callback_context.variables.get("turn_count", 0),
        },
    }
    callback_context.variables["escalated"] = True
    return LlmResponse.from_parts(
        parts=[
            Part.from_text(text="I am connecting you with a colleague. They can see what we discussed."),
            Part.from_json(data=json.dumps(payload)),
        ]
    )
