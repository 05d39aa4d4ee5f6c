"""Adds quick replies for the chat client under a text that asks a question. Voice gets none."""

import json
from typing import Optional

REPLIES = {
    "booking reference": ["I do not have it", "Where do I find it?"],
    "anything else": ["Yes", "No, thank you"],
    "change": ["Change my flight", "Add a bag", "Something else"],
}


def replies_for(text: str) -> list[str]:
    lowered = text.lower()
    return next((replies for phrase, replies in REPLIES.items() if phrase in lowered), [])


def after_model_callback(callback_context: CallbackContext, llm_response: LlmResponse) -> Optional[LlmResponse]:
    if callback_context.variables.get("_session", {}).get("modality") == "VOICE":
        return None
    parts = (llm_response.content.parts if llm_response.content else None) or []
    text = " ".join(part.text for part in parts if part.text)
    if not text.rstrip().endswith("?") or not (replies := replies_for(text)):
        return None
    payload = json.dumps({"type": "quick_replies", "replies": replies})
    return LlmResponse(content=Content(parts=[*parts, Part.from_json(data=payload)], role="model"))
