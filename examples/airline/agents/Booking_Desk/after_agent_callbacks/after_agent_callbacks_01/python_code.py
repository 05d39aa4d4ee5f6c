"""Writes the turn to the audit trail: who asked for what, and which tools ran. At most fifty entries."""

KEPT = 50


def tools_used(callback_context):
    return [part.function_call.name for part in callback_context.parts() if part.function_call]


def after_agent_callback(callback_context):
    trail = callback_context.state.setdefault("audit", {"entries": [], "dropped": 0})
    asked = " ".join(part.text for part in callback_context.get_last_user_input() if part.text)
    trail["entries"].append(
        {"agent": callback_context.agent_name, "asked": asked[:120], "tools": tools_used(callback_context)}
    )
    surplus = len(trail["entries"]) - KEPT
    if surplus > 0:
        del trail["entries"][:surplus]
        trail["dropped"] += surplus
