"""What a turn needs of a model, and one that answers from a script.

A Model is asked with an `Ask` and gives responses, plain LlmResponses, as they come: any number of
partial ones (`partial: True`), whose texts a client may show at once, then the complete one. It
raises ModelFailed where it cannot. `ScriptedModel` is for cases, tests and trying things out;
`chat_completions` speaks to any OpenAI-compatible endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from dispatcher.resources import ModelSettings
from sandbox import ces, misfit
from sandbox.errors import InputError, ModelFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from dispatcher.contents import Plain


@dataclass(frozen=True, slots=True)
class Declaration:
    """A tool as the model is told of it. No `parameters`: any object will do."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None  # JSON schema


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of the model: an LlmRequest after all callbacks, and the tools it leaves visible."""

    request: Plain
    tools: tuple[Declaration, ...] = ()
    settings: ModelSettings = field(default_factory=ModelSettings)


class Model(Protocol):
    """Answers asks, several at once where turns run at once."""

    def respond(self, ask: Ask) -> AsyncIterator[Plain]: ...


class ScriptedModel:
    """Answers from a script, one response for each call. `asked` has what it was asked, in order.

    A response is an LlmResponse as plain data, or an exception to raise; see `scripted` for a shorter
    way to write one. A call that the script has no response for is a ModelFailed.
    """

    def __init__(self, responses: Iterable[Plain | Exception] = ()) -> None:
        self._left = list(responses)
        self.asked: list[Ask] = []

    @property
    def left(self) -> int:
        """How many responses nobody asked for yet."""
        return len(self._left)

    def add(self, responses: Iterable[Plain | Exception]) -> None:
        self._left += responses

    def script(self, responses: Iterable[Plain | Exception]) -> None:
        """Begin anew, with this script."""
        self._left, self.asked = list(responses), []

    async def respond(self, ask: Ask) -> AsyncIterator[Plain]:
        self.asked.append(ask)
        if not self._left:
            raise ModelFailed(f"the script has no response for model call {len(self.asked)}")
        response = self._left.pop(0)
        if isinstance(response, Exception):
            raise response
        for text in response.get("chunks") or []:
            yield {"content": {"role": "model", "parts": [{"text": text}]}, "partial": True}
        yield {name: value for name, value in response.items() if name != "chunks"}


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    args: dict[str, Any] = {}


def _part(value: dict[str, Any]) -> dict[str, Any]:
    ces.Part.model_validate(value)
    return value


class Line(BaseModel):
    """One response of a script as people write it: text, calls, or whole parts; or the error it fails with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str | None = None
    calls: list[_Call] = []
    parts: list[Annotated[dict[str, Any], AfterValidator(_part)]] | None = None
    chunks: list[str] = []  # partial outputs before it
    error: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> Line:
        said = self.text is not None or bool(self.calls)
        if (self.parts is not None) + said + (self.error is not None) != 1:
            raise ValueError("a model's response is one of: text and calls, parts, error")
        return self

    def response(self) -> Plain | Exception:
        """What a ScriptedModel takes."""
        if self.error is not None:
            return ModelFailed(self.error)
        parts: list[Plain] = [{"text": self.text}] if self.text is not None else []
        parts += [{"function_call": {"name": call.name, "args": call.args}} for call in self.calls]
        given = parts if self.parts is None else [ces.dump(ces.load(ces.Part, part)) for part in self.parts]
        return {"content": {"role": "model", "parts": given}, "chunks": self.chunks}


def scripted(*lines: object) -> list[Plain | Exception]:
    """Responses from a script: text, or `{text, calls: [{name, args}]}`, `{parts}`, `{error}`. Raises InputError."""
    return [_line(line, index).response() for index, line in enumerate(lines)]


def _line(value: object, index: int) -> Line:
    try:
        return Line.model_validate(value)
    except ValidationError as problem:
        wrong = misfit.first(problem, value)
        raise InputError(misfit.dotted(("script", index, *wrong.path)), wrong.why) from problem
