"""Redacts what must not be read out, in place: the next callback and the traveller see the rest."""

import re
from typing import Optional

PATTERNS = (
    (re.compile(r"\b[A-Z]{1,2}\d{7}\b"), "[document number]"),
    (re.compile(r"\b\d{3}-\d{10}\b"), "[ticket number]"),
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.]+\b"), "[email]"),
)


def after_model_callback(callback_context: CallbackContext, llm_response: LlmResponse) -> Optional[LlmResponse]:
    if not llm_response.content or not llm_response.content.parts:
        return None
    found = 0
    for part in llm_response.content.parts:
        if not part.text:
            continue
        for pattern, mask in PATTERNS:
            part.text, count = pattern.subn(mask, part.text)
            found += count
    if found:
        callback_context.variables["redactions"] = callback_context.variables.get("redactions", 0) + found
    return None
