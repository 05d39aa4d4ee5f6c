"""What travels inside `Job.code`, `Job.body` and `Outcome.reply`: only the dispatcher and the guest read it.

Code is the callbacks, an Invocation is one hook to run over them; a Reply is what the code claims to
have done. Everything in both is plain data in the runtime's own field names (snake_case;
`Blob.data` is base64 text), so neither side needs the other's objects.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from sandbox import codec, misfit
from sandbox.contract import CONTEXT_BYTES
from sandbox.errors import ProtocolError

Dialect = Literal["ces", "adk", "veadk"]
Fidelity = Literal["documented", "live"]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def encode(self) -> bytes:
        return codec.pack(self.model_dump())

    @classmethod
    def decode(cls, data: bytes, limit: int = CONTEXT_BYTES) -> Self:
        """Raises ProtocolError for anything else than such a message of at most `limit` bytes."""
        raw = codec.unpack(data, limit)
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise ProtocolError(f"{cls.__name__.lower()}: {misfit.first(error, raw)}") from error


class Source(BaseModel):
    """One callback's code. `name` is the file that tracebacks show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    text: str


class Code(_Message):
    """The callbacks of a hook, in the order in which they run."""

    sources: tuple[Source, ...]


class Invocation(_Message):
    """One hook, to be run over its callbacks in order, in one sandbox, on the same objects."""

    hook: str  # a key of hooks.HOOKS
    context: dict[str, Any] = {}  # CallbackContext fields: variables, user_content, ...; events are beside it, as JSON
    arguments: dict[str, Any] = {}  # by the documents' names, without callback_context
    dialect: Dialect = "ces"
    fidelity: Fidelity = "documented"
    entry: str = ""  # for a python tool: its function; '' = the first one defined
    tools: tuple[str, ...] = ()  # display names that `tools.<NAME>` answers to


class ErrorInfo(BaseModel):
    """An exception of the user's code. `traceback` holds the user's own frames only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    message: str
    traceback: str = ""
    file: str | None = None
    line: int | None = None


class Reply(_Message):
    """What the code claims: nothing in it is trusted before the dispatcher has checked it."""

    answered_by: str | None = None  # Source.name of the callback that ended the chain
    returned: Any = None
    arguments: dict[str, Any] = {}  # every argument as it is after the hook, changed or not
    set: dict[str, Any] = {}  # variables written, by name, whole values
    remove: tuple[str, ...] = ()  # variables deleted
    error: ErrorInfo | None = None
    warnings: tuple[str, ...] = ()

    @staticmethod
    def claims_error(data: bytes) -> bool:
        """Whether an encoded reply says that the code raised, for counting: the rest of it is not looked at."""
        return codec.holds(data, "error")
