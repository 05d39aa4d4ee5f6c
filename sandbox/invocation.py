"""What travels inside `Job.code`, `Job.body` and `Outcome.reply`: only the dispatcher and the guest read it.

Code is the callbacks, an Invocation is one hook to run over them; a Reply is what the code claims to
have done. Everything in both is plain data in the runtime's own field names (snake_case;
`Blob.data` is base64 text), so neither side needs the other's objects.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, with_config

from sandbox import codec, misfit
from sandbox.contract import CONTEXT_BYTES
from sandbox.errors import ProtocolError

Dialect = Literal["ces", "adk", "veadk"]
Fidelity = Literal["documented", "live"]


_known_keys = with_config(ConfigDict(extra="forbid"))


class _Message:
    """Checked where it is decoded, and not where it is made: everybody waits for that."""

    __slots__: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return codec.pack(self._plain())

    @classmethod
    def decode(cls, data: bytes, limit: int = CONTEXT_BYTES) -> Self:
        """Raises ProtocolError for anything else than such a message of at most `limit` bytes."""
        raw = codec.unpack(data, limit)
        try:
            message: Self = _ADAPTERS[cls].validate_python(raw)
        except ValidationError as error:
            raise ProtocolError(f"{cls.__name__.lower()}: {misfit.first(error, raw)}") from error
        return message

    def _plain(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Source(BaseModel):
    """One callback's code. `name` is the file that tracebacks show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    text: str


@_known_keys
@dataclass(frozen=True, slots=True)
class Code(_Message):
    """The callbacks of a hook, in the order in which they run."""

    sources: tuple[Source, ...]

    def _plain(self) -> dict[str, Any]:
        return {"sources": [source.model_dump() for source in self.sources]}


@_known_keys
@dataclass(frozen=True, slots=True)
class Invocation(_Message):
    """One hook, to be run over its callbacks in order, in one sandbox, on the same objects."""

    hook: str  # a key of hooks.HOOKS
    context: dict[str, Any] = field(default_factory=dict)  # CallbackContext fields; events are beside it, as JSON
    arguments: dict[str, Any] = field(default_factory=dict)  # by the documents' names, without callback_context
    dialect: Dialect = "ces"
    fidelity: Fidelity = "documented"
    entry: str = ""  # for a python tool: its function; '' = the first one defined
    tools: tuple[str, ...] = ()  # display names that `tools.<NAME>` answers to


@_known_keys
@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An exception of the user's code. `traceback` holds the user's own frames only."""

    type: str
    message: str
    traceback: str = ""
    file: str | None = None
    line: int | None = None


@_known_keys
@dataclass(frozen=True, slots=True)
class Reply(_Message):
    """What the code claims: nothing in it is trusted before the dispatcher has checked it."""

    answered_by: str | None = None  # Source.name of the callback that ended the chain
    returned: Any = None
    arguments: dict[str, Any] = field(default_factory=dict)  # every one as it is after the hook, changed or not
    set: dict[str, Any] = field(default_factory=dict)  # variables written, by name, whole values
    remove: tuple[str, ...] = ()  # variables deleted
    error: ErrorInfo | None = None
    warnings: tuple[str, ...] = ()

    def _plain(self) -> dict[str, Any]:
        error = self.error and asdict(self.error)
        return {**_Message._plain(self), "error": error}

    @staticmethod
    def claims_error(data: bytes) -> bool:
        """Whether an encoded reply says that the code raised, for counting: the rest of it is not looked at."""
        return codec.holds(data, "error")


_ADAPTERS: dict[type, TypeAdapter[Any]] = {cls: TypeAdapter(cls) for cls in (Code, Invocation, Reply)}
