"""Tells the model what it may do right now, and hides the tools it may not use."""

from typing import Optional

LONGEST_HISTORY = 20
NEEDS_OFFER = ("change_flight", "refund")


def before_model_callback(callback_context: CallbackContext, llm_request: LlmRequest) -> Optional[LlmResponse]:
    offer = callback_context.variables.get("offer")
    if not offer or not offer.get("confirmed"):
        for name in NEEDS_OFFER:
            llm_request.config.hide_tool(name)

    booking = callback_context.variables.get("booking", {})
    facts = [f"Booking {booking['reference']}: flights {', '.join(booking['flights'])}."] if booking else []
    if offer:
        state = "confirmed" if offer.get("confirmed") else "waiting for the traveller's yes"
        facts.append(f"Offer: {offer['price']} {offer['currency']}, {state}.")
    if facts:
        llm_request.append_instructions(facts)

    # Long chats cost money and confuse: keep the newest, and start with something the user said.
    if len(llm_request.contents) > LONGEST_HISTORY:
        kept = llm_request.contents[-LONGEST_HISTORY:]
        while kept and not kept[0].is_user():
            kept.pop(0)
        llm_request.contents[:] = kept
    return None
