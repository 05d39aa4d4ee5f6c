"""The objects inside a manifest, each as what an app is made of. Pure; InputError says what is wrong and where."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dispatcher.resources import Action, ErrorHandling, ModelSettings, ToolsetUse

if TYPE_CHECKING:
    from dispatcher.manifest import Manifest

MODES = ("PARALLEL", "SEQUENTIAL")
STRATEGIES = ("NONE", "FALLBACK_RESPONSE", "END_SESSION")


def kind_of(manifest: Manifest, endings: tuple[str, ...]) -> str:
    """The key that says what kind of tool or toolset this is: the one with an object, named so."""
    return next(
        (name for name, value in manifest.value.items() if name.endswith(endings) and isinstance(value, dict)), ""
    )


def seconds(manifest: Manifest) -> float | None:
    """A timeout as the export writes it: "20s"."""
    value = manifest.text("timeout")
    if value and not re.fullmatch(r"\d+(\.\d+)?s", value):
        raise manifest.error(f"{value!r} is no duration like 20s", "timeout")
    return float(value[:-1]) if value else None


def sequential(manifest: Manifest) -> bool:
    mode = manifest.text("toolExecutionMode") or MODES[0]
    if mode not in (*MODES, "TOOL_EXECUTION_MODE_UNSPECIFIED"):
        raise manifest.error(f"{mode!r} is none of {', '.join(MODES)}", "toolExecutionMode")
    return mode == MODES[1]


def model(manifest: Manifest) -> ModelSettings:
    settings = manifest.below("modelSettings")
    return ModelSettings(settings.text("model"), settings.number("temperature"))


def error_handling(manifest: Manifest) -> ErrorHandling:
    settings = manifest.below("errorHandlingSettings")
    strategy = settings.text("errorHandlingStrategy") or STRATEGIES[0]
    if strategy not in (*STRATEGIES, "ERROR_HANDLING_STRATEGY_UNSPECIFIED"):
        raise settings.error(f"{strategy!r} is none of {', '.join(STRATEGIES)}", "errorHandlingStrategy")
    fallback, end = settings.below("fallbackResponseConfig"), settings.below("endSessionConfig")
    messages, attempts = fallback.below("customFallbackMessages"), fallback.number("maxFallbackAttempts")
    return ErrorHandling(
        messages={language: messages.text(language) for language in messages.value},
        ends=strategy == STRATEGIES[2],
        max_attempts=None if attempts is None else int(attempts),
        escalate=end.flag("escalateSession"),
    )


def toolset_use(entry: Manifest) -> ToolsetUse:
    if not (name := entry.text("toolset")):
        raise entry.error("toolset is missing")
    return ToolsetUse(name, entry.texts("toolIds"))


def action(manifest: Manifest) -> Action | None:
    """A guardrail's action, None where it says nothing of one."""
    respond, transfer = manifest.below("respondImmediately"), manifest.below("transferAgent")
    responses = [respond.below("responses", index) for index in range(len(respond.items("responses")))]
    if texts := [one.text("text") for one in responses if not one.flag("disabled")]:
        return Action("respond", texts[0])
    if agent := transfer.text("agent"):
        return Action("transfer", agent)
    if prompt := manifest.below("generativeAnswer").text("prompt"):
        return Action("generate", prompt)
    return None
