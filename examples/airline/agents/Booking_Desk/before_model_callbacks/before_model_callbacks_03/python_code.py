"""Shows the offer as a card when the client asks for it: a payload alone, the model is not called."""

import json
from typing import Optional

SHOW_OFFER = "<event>show_offer</event>"


def before_model_callback(callback_context: CallbackContext, llm_request: LlmRequest) -> Optional[LlmResponse]:
    asked = any(part.text == SHOW_OFFER for part in callback_context.get_last_user_input())
    offer = callback_context.variables.get("offer")
    if not asked or not offer:
        return None
    card = {"type": "offer", "flight": offer["flight"], "price": f"{offer['price']:.2f} {offer['currency']}"}
    return LlmResponse.from_parts(parts=[Part.from_json(data=json.dumps(card))])
