"""Asks for feedback once, when a conversation has gone on for a few turns and went well."""

from typing import Optional

ASK_AFTER_TURNS = 4


def went_well(callback_context: CallbackContext) -> bool:
    return not any(event.has_error() for event in callback_context.events)


def after_agent_callback(callback_context: CallbackContext) -> Optional[Content]:
    feedback = callback_context.get_variable("feedback", {"asked": False})
    if feedback["asked"] or callback_context.get_variable("turn_count", 0) < ASK_AFTER_TURNS:
        return None
    if not went_well(callback_context):
        return None

    callback_context.set_variable("feedback", {"asked": True})
    said = [part for part in callback_context.get_last_agent_output() if part.text]
    question = Part.from_text(text="Before you go: did this solve it for you?")
    return Content(parts=[*said, question], role="model")
