"""Triggers when the model names a sum that the law is said to owe the traveller."""

import re

OWED = re.compile(r"(entitled to|owe you|compensation of)\D{0,20}\d+", re.IGNORECASE)


def after_model_guardrail_callback(callback_context: CallbackContext, llm_response: LlmResponse):
    parts = (llm_response.content.parts if llm_response.content else None) or []
    if any(part.text and OWED.search(part.text) for part in parts):
        return create_guardrail_result(decision="TRIGGER", reason="a sum owed by law")
    return create_guardrail_result(decision="OK")
