"""An exception of the user's code, as the ErrorInfo of a reply.

Theory. The exception is hostile until proven otherwise: its text may raise, be a megabyte long or hold
lone surrogates, its causes may go in circles. Only the user's own frames are shown, with file and
line, for the exception, its causes and the members of a group. Whatever goes wrong here, some
ErrorInfo comes out.

Faults are what the runtime itself finds wrong with a callback. They look like exceptions of it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from sandbox.invocation import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import CodeType

NAME_CHARS = 200
MESSAGE_CHARS = 8_192
TRACEBACK_CHARS = 65_536
_FRAMES = 400


class Fault(Exception):
    """Something about a callback that is wrong without Python having said so."""

    def __init__(self, message: str, file: str | None = None, code: CodeType | None = None) -> None:
        self.file = file
        self.line = code.co_firstlineno if code else None
        self.function = code.co_name if code else None
        super().__init__(message)


class HookNotFound(Fault):
    """The file does not define the function."""


class WrongSignature(Fault):
    """The function cannot be called with the hook's arguments."""


class WrongReturn(Fault):
    """It returned, or left behind, a value of another type than the hook allows."""


class WrongPayload(Fault):
    """A custom payload that is not JSON."""


class TestFailed(Exception):
    """A pytest test did not pass; `info` says how."""

    def __init__(self, info: ErrorInfo) -> None:
        self.info = info
        super().__init__(info.message)


class NoTests(Fault):
    """There is no pytest where this was to run."""


class MissingParameter(Fault):
    """A Python tool was called without an argument it needs."""


for _cls in (HookNotFound, WrongSignature, WrongReturn, WrongPayload, MissingParameter, NoTests):
    _cls.__module__ = "builtins"  # shown by their bare names, as tracebacks show Python's own


def blame(error: BaseException, files: Collection[str], file: str | None = None) -> ErrorInfo:
    """What `error` says about the user's code, whose files are `files`; `file` was running."""
    if isinstance(error, TestFailed):
        return error.info
    kind = "MemoryError" if isinstance(error, MemoryError) else _type_name(error)
    message = _message(error)
    if isinstance(error, Fault):
        at = error.file or file
        frame = f'  File "{at}", line {error.line}, in {error.function}\n' if error.line else ""
        shown = f"Traceback (most recent call last):\n{frame}{kind}: {message}\n"
        return ErrorInfo(type=kind, message=message, traceback=shown, file=at, line=error.line)
    try:
        shown = cap(_traceback(error, files), TRACEBACK_CHARS)
        where = _where(error, files)
    except KeyboardInterrupt:
        raise
    except BaseException:  # its causes or attributes fought back
        shown, where = f"{kind}: {message}\n", None
    at, line = where or (file, None)
    return ErrorInfo(type=kind, message=message, traceback=shown, file=at, line=line)


def _type_name(error: BaseException) -> str:
    name = type.__dict__["__name__"].__get__(type(error))
    return cap(name, NAME_CHARS) if type(name) is str else "Exception"


def _message(error: BaseException) -> str:
    try:
        if isinstance(error, SyntaxError) and type(error).__str__ is SyntaxError.__str__ and error.filename:
            return cap(str(error.msg), MESSAGE_CHARS)  # file and line stand beside it
        return cap(str.__str__(str(error)), MESSAGE_CHARS)
    except KeyboardInterrupt:
        raise
    except BaseException as again:  # its __str__ is code too
        return f"<its text cannot be made: {_type_name(again)}>"


def cap(text: str, most: int) -> str:
    """`text`, cut at `most` characters, as text that can be encoded."""
    left_out = len(text) - most
    shown = text if left_out <= 0 else f"{text[:most]}... ({left_out} more characters)"
    return shown if shown.isascii() else shown.encode("utf-8", "backslashreplace").decode()


def _traceback(error: BaseException, files: Collection[str]) -> str:
    whole = traceback.TracebackException(
        type(error), error, error.__traceback__, limit=_FRAMES, lookup_lines=False, compact=True
    )
    waiting: list[Any] = [whole]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if one.stack is not None:
            one.stack[:] = [frame for frame in one.stack if frame.filename in files]
        waiting += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return "".join(whole.format())


def _where(error: BaseException, files: Collection[str]) -> tuple[str, int | None] | None:
    """The user's innermost frame; for code that does not compile, the place in the source."""
    found: tuple[str, int | None] | None = None
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename in files:
            found = (step.tb_frame.f_code.co_filename, step.tb_lineno)
        step = step.tb_next
    if found is None and isinstance(error, SyntaxError) and error.filename and error.filename in files:
        return error.filename, error.lineno
    return found
