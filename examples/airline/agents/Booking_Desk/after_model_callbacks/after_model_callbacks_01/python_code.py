"""Catches empty answers of the model, and promises of a refund that no tool has made."""

import re
from typing import Optional

PROMISE = re.compile(r"\b(refunded|refund has been|money back)\b", re.IGNORECASE)
APOLOGY = "Sorry, I lost the thread. Could you say that once more?"
CORRECTION = "I have not issued a refund yet. Shall I ask for a quote first?"


def after_model_callback(callback_context: CallbackContext, llm_response: LlmResponse) -> Optional[LlmResponse]:
    parts = (llm_response.content.parts if llm_response.content else None) or []
    if not parts:
        failures = callback_context.variables.get("model_failures", 0) + 1
        callback_context.variables["model_failures"] = failures
        if failures >= 3:
            return LlmResponse.from_parts(parts=[Part.from_end_session(reason="model unavailable", escalated=True)])
        return LlmResponse.from_parts(parts=[Part.from_text(text=APOLOGY)])

    refunded = callback_context.variables.get("refund", {}).get("done", False)
    if not refunded and any(part.text and PROMISE.search(part.text) for part in parts):
        return LlmResponse.from_parts(parts=[Part.from_text(text=CORRECTION)])
    return None
