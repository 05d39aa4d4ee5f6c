"""Memory that children share with the zygote, and goes on being shared when they touch it.

A fork copies no memory, but the first write to a page does, and costs microseconds each; CPython
writes to an object by looking at it, because it counts references. So before the first fork:

    doors      do once what every child would do to `sys.modules`
    warm       walk the lockdown with calls that do nothing, and run the runtime, often enough that caches
               are filled and bytecode is specialized here
    gather     bytecode that cannot be specialized counts how often it ran, in the code itself: put all
               such code side by side, so that the counts are on few pages
    immortal   give every object the reference count that CPython 3.12 never changes (PEP 683 was
               made for servers that fork)
    freeze     and put them where the cycle collector does not write to them either
    clear      use up the free room on shared pages, so that new objects lie together on new ones

`mappings` does the rest. Together they take a child from 850 page faults to 270. An object that is immortal is never
freed: in the zygote, and for the few milliseconds a child lives, that is what we want.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from sandbox.guest import chain, imports, lockdown
from sandbox.invocation import Code, Invocation, Source

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sandbox.contract import CallKind, Return
    from sandbox.guest.lockdown import Plan

ROUNDS = 60
"""Runs of the warm-up here: bytecode is specialized after a handful, and the second tier of caches after more."""

_IMMORTAL = 0xFFFFFFFF  # _Py_IMMORTAL_REFCNT of CPython 3.12, 64 bit

WARM_BODY = Invocation(
    hook="before_agent_callback",
    context={"variables": {}, "events": [], "session_id": "", "agent_name": "", "invocation_id": ""},
).encode()


def warm_code(turn: int) -> bytes:
    """Another text each time: compiling is part of what is warmed."""
    text = f"def before_agent_callback(callback_context):\n    callback_context.state['a'] = {turn}\n"
    return Code(sources=(Source(name="warm", text=text),)).encode()


class Nobody:
    """The host of the warm-up, which calls nobody."""

    def call(self, kind: CallKind, name: str, arguments: dict[str, Any]) -> Return:
        raise AssertionError(kind, name, arguments)

    def want(self, package: str) -> None:
        raise AssertionError(package)


def share(plan: Plan, once: Collection[str]) -> None:
    """All of it, before the first fork. `once`: modules whose code runs once in each child, so it is never specialized."""
    imports.close_doors()
    _warm_up(plan)
    clear_ground()
    _gather(plan, once)
    _warm_up(plan)
    chain.forget()
    gc.collect()
    gc.disable()
    _immortalize()
    gc.freeze()


def _warm_up(plan: Plan, rounds: int = ROUNDS) -> None:
    for turn in range(rounds):
        lockdown.rehearse(plan)
        chain.run_chain(warm_code(turn), WARM_BODY, Nobody())


def _gather(plan: Plan, once: Collection[str]) -> None:
    """Copies of all code that a run writes to, made one after the other, in place of the originals."""
    functions = [found for found in gc.get_objects() if type(found) is FunctionType]
    before = {id(code): (code, _counts(code)) for function in functions for code in _with_inner(function.__code__)}
    _warm_up(plan, rounds=1)
    written = {key for key, (code, counts) in before.items() if _counts(code) != counts}
    written |= {id(function.__code__) for function in functions if function.__module__ in once}
    copies: dict[int, CodeType] = {}
    for function in functions:
        if any(id(code) in written for code in _with_inner(function.__code__)):
            function.__code__ = _copy(function.__code__, copies)


def _counts(code: CodeType) -> int:
    return hash(code._co_code_adaptive)  # type: ignore[attr-defined]  # CPython 3.12's, as it stands


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """`code`, and that of the functions defined in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _with_inner(inner)


def _copy(code: CodeType, copies: dict[int, CodeType]) -> CodeType:
    """The one copy of `code`, by its address: whoever calls this keeps the originals until all is copied."""
    if id(code) not in copies:
        inner = (_copy(one, copies) if isinstance(one, CodeType) else one for one in code.co_consts)
        copies[id(code)] = code.replace(co_consts=tuple(inner))
    return copies[id(code)]


def _immortalize() -> None:
    """Every object that can be reached from one the collector knows: most strings and numbers it does not.

    What is immortal already has been here; a set of the visited would leave ten megabytes of holes.
    """
    count_of = ctypes.c_uint32.from_address
    todo: list[object] = gc.get_objects()
    while todo:
        found = todo.pop()
        count = count_of(id(found))
        if count.value == _IMMORTAL:
            continue
        count.value = _IMMORTAL
        todo += gc.get_referents(found)
        if isinstance(found, CodeType):  # which the collector does not look into
            todo += (found.co_consts, found.co_names, found.co_varnames, found.co_freevars, found.co_cellvars)
            todo += (found.co_filename, found.co_name, found.co_qualname)


def clear_ground() -> None:
    """Use up the free room in pages that are shared, so that what comes next lies together on fresh ones.

    Of CPython's allocator: for each size, every block up to the first of an untouched pool. Of the C
    library's: everything below the end of its heap. None of it is given back. Of each at most `_ROOM`
    bytes: on an allocator that is made otherwise this is no use, and must not be without end.
    """
    gc.collect()  # which empties the lists of tuples, dicts and floats to be used again
    blocks_in = ctypes.c_uint32.from_address  # a pool begins with their number
    for size in range(_ALIGNMENT * 3, _LARGEST_SMALL + 1, _ALIGNMENT):
        for _ in range(_ROOM // size):
            block = bytes(size - _BYTES_HEAD)
            if blocks_in(id(block) // _POOL * _POOL).value == 1:
                break
            _USED_UP.append(block)
    _KEPT.extend(tuple([None] * size) for size in range(1, 20) for _ in range(50))  # what was freed since
    _KEPT.extend(slice(None) for _ in range(2))
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    end = libc.malloc(_MAPPED_APART // 2)
    for size in (*(_MAPPED_APART >> n for n in range(1, 8)), *range(_LARGEST_BIN, 0, -_ALIGNMENT)):
        for _ in range(_ROOM // size):
            if (block := libc.malloc(size)) is None or block >= end:
                libc.free(block)
                break
    libc.free(end)


def new_arena() -> None:
    """Use up pools until one is of an arena made for it, so that no huge page is written to any more."""
    for _ in range(4 * _ROOM // _LARGEST_SMALL):
        block = bytes(_LARGEST_SMALL - _BYTES_HEAD)
        _USED_UP.append(block)
        if id(block) % _ARENA < _POOL * 2:
            break


_ROOM = 1024 * 1024
_ALIGNMENT, _LARGEST_SMALL = 16, 512  # of CPython's allocator
_ARENA, _POOL = 1024 * 1024, 16 * 1024
_BYTES_HEAD = sys.getsizeof(b"")
_MAPPED_APART, _LARGEST_BIN = 128 * 1024, 1032  # of the C library's
_USED_UP: list[bytes] = []
_KEPT: list[object] = []
