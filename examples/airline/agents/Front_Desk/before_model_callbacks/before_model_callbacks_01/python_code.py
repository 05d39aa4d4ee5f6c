"""Input guardrail: what a traveller types reaches the model only when it is safe to.

A payment card number is never sent on; it is the one thing people paste although nobody asked.
Attempts to rewrite the instructions are answered by us, not by the model.
"""

import re
from typing import Optional

CARD = re.compile(r"(?<!\d)(?:\d[ -]?){13,19}(?!\d)")
REWRITE = re.compile(r"(ignore|forget|disregard)\b.{0,30}\b(instructions|rules|prompt)", re.IGNORECASE)


def passes_luhn(number: str) -> bool:
    digits = [int(character) for character in reversed(number) if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def block(state: dict, reason: str, text: str) -> LlmResponse:
    guard = state.setdefault("guardrail", {"blocked": 0, "reasons": []})
    guard["blocked"] += 1
    guard["reasons"].append(reason)
    return LlmResponse.from_parts(parts=[Part.from_text(text=text)])


def before_model_callback(callback_context: CallbackContext, llm_request: LlmRequest) -> Optional[LlmResponse]:
    user_turns = [content for content in llm_request.contents if content.is_user()]
    if not user_turns:
        return None
    said = " ".join(part.text_or_transcript() or "" for part in user_turns[-1].parts)
    state = callback_context.variables

    if any(passes_luhn(match.group()) for match in CARD.finditer(said)):
        return block(state, "card_number", "Please do not share card numbers here. We never ask for them in chat.")
    if REWRITE.search(said):
        return block(state, "prompt_injection", "I can help with bookings, bags and flights. What do you need?")
    return None
