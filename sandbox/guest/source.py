"""One callback's source: compiled once, executed afresh, searched for its function.

Code objects are kept by name and text, so that code can be compiled before its job is there
(`compiled`); a code object holds no state. So what one process compiled another may run (`packed`), as
ordinary Python does with its .pyc files. Everything else is new for each invocation: a module
of its own, whose globals are the runtime's names and then whatever the source makes of them.
The function is looked up after the source ran, because real code rebinds it while running.
"""

from __future__ import annotations

import builtins
import difflib
import inspect
import linecache
import marshal
import warnings
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from sandbox.contract import COMPILED_BYTES
from sandbox.guest.blame import HookNotFound, WrongSignature
from sandbox.guest.imports import BUILTINS
from sandbox.guest.names import typing_names_used
from sandbox.invocation import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Compiled:
    """A code object, the typing names it uses without importing them, and the compiler's warnings: category, text and
    line of each.
    """

    code: CodeType
    typing_names: tuple[str, ...]
    warnings: tuple[tuple[str, str, int], ...]


_COMPILED: dict[tuple[str, str], Compiled] = {}


def compiled(source: Source) -> Compiled:
    """The code of `source`, from the cache if it is there; says nothing (see `warn`). Raises what `compile` raises."""
    key = source.name, source.text
    found = _COMPILED.get(key)
    if found is None:
        with warnings.catch_warnings(record=True, module=warnings) as said:
            code = compile(source.text, source.name, "exec", dont_inherit=True)
        own = (one for one in said if one.filename == source.name)
        lines = tuple((one.category.__name__, str(one.message), one.lineno) for one in own)
        found = _COMPILED[key] = Compiled(code, typing_names_used(code), lines)
    return found


def warn(source: Source) -> None:
    """Say what the compiler says of it, whoever compiled it, and when."""
    for category, text, line in compiled(source).warnings:
        warnings.warn_explicit(text, getattr(builtins, category), source.name, line)


def packed(sources: Sequence[Source]) -> bytes:
    """Sources and their code, for `unpacked`; b'' where one cannot be compiled, which its run will say, or all of it
    is too long.
    """
    try:
        made = [(one.name, one.text, compiled(one)) for one in sources]
        data = marshal.dumps([(name, text, one.code, one.typing_names, one.warnings) for name, text, one in made])
    except Exception:
        return b""
    return data if len(data) <= COMPILED_BYTES else b""


def unpacked(data: bytes) -> tuple[Source, ...]:
    """The sources of `packed`, whose code is known from now on. Only for bytes of this same interpreter, made before
    it ran any code of the user: others can do to this process what code can do.
    """
    sources = []
    for name, text, *made in marshal.loads(data):  # noqa: S302  # see above
        _COMPILED[name, text] = Compiled(*made)
        sources.append(Source(name=name, text=text))
    return tuple(sources)


def forget() -> None:
    """Nothing of what was compiled so far is kept, nor shown in tracebacks."""
    global _COMPILED
    _COMPILED = {}
    linecache.cache = {}


def show_lines(source: Source) -> None:
    """Let tracebacks and `inspect` see the lines of a file that is nowhere on disk."""
    linecache.cache[source.name] = (len(source.text), None, source.text.splitlines(keepends=True), source.name)


def module_for(source: Source, position: int, names: Mapping[str, Any]) -> ModuleType:
    """A fresh module with the runtime's names; the first is `user_code`, the second `user_code_2`."""
    module = ModuleType("user_code" if position == 0 else f"user_code_{position + 1}")
    module.__dict__.update(names)
    module.__file__ = source.name
    module.__dict__["__builtins__"] = vars(BUILTINS)
    return module


def execute(source: Source, module: ModuleType) -> None:
    """Run the whole file in `module`."""
    exec(compiled(source).code, module.__dict__)


def functions_of(module: ModuleType) -> list[str]:
    """The names of the functions the file defines, in order."""
    space = module.__dict__
    return [name for name, value in space.items() if type(value) is FunctionType and value.__globals__ is space]


def find(source: Source, module: ModuleType, wanted: Sequence[str], *, any_function: bool) -> Callable[..., Any]:
    """The first of `wanted` that the file defines, else (`any_function`) its first function.

    Raises HookNotFound, which names the functions there are and one that is spelt almost right, or says what the
    name stands for instead.
    """
    for name in wanted:
        if callable(module.__dict__.get(name)):
            function: Callable[..., Any] = module.__dict__[name]
            return function
    defined = functions_of(module)
    if any_function and defined:
        first: Callable[..., Any] = module.__dict__[defined[0]]
        return first
    if other := next((name for name in wanted if name in module.__dict__), None):
        kind = type(module.__dict__[other]).__name__
        raise HookNotFound(f"{source.name} defines {other} as {kind}, not as a function", source.name)
    missing = " or ".join(wanted) or "function"
    has = f"it defines {', '.join(defined)}" if defined else "it defines no function"
    near = _near(wanted, defined)
    hint = f"; {near[0]} must be spelt {near[1]}" if near else ""
    raise HookNotFound(f"{source.name} defines no {missing}; {has}{hint}", source.name)


def _near(wanted: Sequence[str], defined: Sequence[str]) -> tuple[str, str] | None:
    """A pair (as defined, as wanted) that differs only in spelling."""
    letters = {name.replace("_", "").lower(): name for name in defined}
    for name in wanted:
        close = difflib.get_close_matches(name.replace("_", "").lower(), letters, n=1, cutoff=0.9)
        if close:
            return letters[close[0]], name
    return None


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether `function` can be called with `count` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def code_of(function: object) -> CodeType | None:
    """Where a function is defined, if Python knows."""
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def call(function: Callable[..., Any], arguments: Sequence[Any], source: Source, called_as: str) -> Any:
    """Call by position. Raises WrongSignature, which shows both sides, where the arguments do not fit."""
    try:
        return function(*arguments)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None or takes(function, len(arguments)):
            raise  # it was called; the mistake is inside
        name = getattr(function, "__name__", "the callable")
        try:
            defined = f"{name}{inspect.signature(function)}"
        except (TypeError, ValueError):
            defined = name
        why = f"the call is {called_as}, by position; {source.name} defines {defined}"
        raise WrongSignature(why, source.name, code_of(function)) from None
