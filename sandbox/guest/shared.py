"""Memory that children share with the zygote, and goes on being shared when they touch it.

A fork copies no memory, but the first write to a page does, and costs microseconds each; CPython
writes to an object by looking at it, because it counts references. So before the first fork:

    warm       do what a child does, often enough that caches are filled and bytecode is specialized here
    clear      use up the free room on shared pages, and take fresh memory for what comes
    gather     bytecode that cannot be specialized counts how often it ran, in the code itself: put all
               such code side by side there, so that the counts are on few pages
    immortal   give every object the reference count that CPython 3.12 never changes (PEP 683 was
               made for servers that fork)
    freeze     and put them where the cycle collector does not write to them either
    clear      use up the free room once more, because of what came since
    anew       make what every child writes once more, there (`forks.Zygote.serve`)

`mappings` does the rest. Together they take a child from 850 page faults to 170. An object that is immortal is never
freed: in the zygote, and for the few milliseconds a child lives, that is what we want.
"""

from __future__ import annotations

import bisect
import ctypes
import gc
import operator
import sys
import time
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from sandbox import codec
from sandbox.contract import Cargo, Job
from sandbox.guest import chain, lockdown, mappings, source
from sandbox.hooks import HOOKS
from sandbox.invocation import Code, Invocation, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import TextIO

    from sandbox.contract import CallKind, Return

ROUNDS, MORE_ROUNDS = 20, 60
"""Runs of the warm-up here: bytecode is specialized after a handful, and the second tier of caches after more. A call of
a function whose code was replaced is specialized again when it was missed 52 times.
"""

# Of CPython 3.12, 64 bit:
_IMMORTAL = 0xFFFFFFFF  # _Py_IMMORTAL_REFCNT
_AT_ONCE = 500  # objects whose referents are asked for
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_MA_KEYS = 32  # offset in PyDictObject

_SAID = {"role": "user", "parts": [{"text": "a"}]}
_CONTEXT = {"variables": {"a": 0}, "user_content": _SAID, "session_id": "", "agent_name": "", "invocation_id": ""}
_TOOL: dict[str, Any] = {"tool": {"name": "a"}, "input": {"a": 1}}
_TURN: dict[str, dict[str, Any]] = {
    "before_agent_callback": {},
    "before_model_callback": {"llm_request": {"contents": [_SAID]}},
    "after_model_callback": {"llm_response": {"content": _SAID}},
    "before_tool_callback": _TOOL,
    "after_tool_callback": {**_TOOL, "tool_response": {"a": 1}},
}
"""The arguments of the hooks of a turn, which come again and again."""

_WAYS = 4  # that code comes


def warm_job(hook: str = "before_agent_callback", first: str = "pass") -> Job:
    """A callback of `hook` that does what most do. Another text each time: compiling is part of what is warmed."""
    taken = ", ".join(parameter.name for parameter in HOOKS[hook].positional("ces"))
    text = f"def {hook}({taken}):\n    {first}\n    callback_context.state['a'] = {time.monotonic_ns()}\n"
    code = Code(sources=(Source(name="warm", text=text),))
    return Job("", code.encode(), Invocation(hook=hook, context=_CONTEXT, arguments=_TURN[hook]).encode())


def warm_up() -> None:
    """Run one, as new and as known code is run."""
    job = warm_job()
    chain.run_chain(job.code, job.body, Nobody(), tell=_read_again)


def _read_again(compiled: bytes) -> None:
    chain.compile_early(compiled, compiled=True)


def drill_order(turn: int) -> bytes:
    """A job as it comes over the channel: the hooks take turns, and so do the ways that its code comes."""
    hook = list(_TURN)[turn % len(_TURN)]
    job = warm_job(hook, "print(callback_context.state)")
    known, early = turn % 2 == 1, turn % _WAYS > 1
    code = source.packed(chain.decoded(job.code)) if known else job.code
    caps = lockdown.CAPS.pack(0, 0, 0)
    if not early:
        return codec.frame(b"J" + caps + Cargo(code, job.body, compiled=known).encode())
    before = codec.frame(b"W") * (not known) + codec.frame(b"P" + caps + Cargo(code, b"", compiled=known).encode())
    return before + codec.frame(b"J" + caps + Cargo(b"", job.body).encode())


class Nobody:
    """The host of the warm-up, which calls nobody."""

    def call(self, kind: CallKind, name: str, arguments: dict[str, Any]) -> Return:
        raise AssertionError(kind, name, arguments)

    def want(self, package: str) -> None:
        raise AssertionError(package)


def share(drill: Callable[[int], None], once: Collection[str], maps: TextIO) -> None:
    """All of it but the last, before the first fork. `drill`: do what a child does, in the nth turn.

    `once`: modules with code that only a child itself can run, so that it is never specialized.
    """
    _repeat(drill, ROUNDS)
    old = mappings.spans(maps)
    gathered: set[FunctionType] = set()
    for _ in range(2):  # calls of what was gathered are specialized anew, and some only count from then on
        written = [one for one in _written(drill, once) if one not in gathered]
        filler = _use_up_pools(old)
        use_up_blocks(old)
        _use_up_kept()
        _use_up_heap()
        _gather(written)
        del filler  # for what comes and goes now
        gathered.update(written)
        _repeat(drill, MORE_ROUNDS)
    gc.collect()
    gc.disable()
    immortalize()


def _names_offset() -> int:
    """Where in a class the address of that table is: an instance's dict has it, too."""

    class Probe:
        def __init__(self) -> None:
            self.name = 0

    table = _word(id(vars(Probe())) + _MA_KEYS)
    size: int = type.__basicsize__  # type: ignore[assignment]  # it is one
    return next(at for at in range(0, size, 8) if _word(id(Probe) + at) == table)


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def clear(old: Sequence[range]) -> None:
    """Use up the free room at `old` addresses, so that what comes next lies together elsewhere."""
    gc.collect()  # which empties the lists of tuples, dicts and floats to be used again
    _USED_UP.extend(_use_up_pools(old))
    use_up_blocks(old)
    _use_up_kept()
    _use_up_heap()
    if _GLIBC:  # large blocks of a job's own may be used again from now on (see `zygote.ENVIRONMENT`)
        _libc.mallopt(_M_MMAP_THRESHOLD, 4 * _ROOM)
        _libc.mallopt(_M_TRIM_THRESHOLD, 8 * _ROOM)


def _repeat(drill: Callable[[int], None], rounds: int) -> None:
    gc.freeze()  # the collector is on in a drill, and has better things to do
    for turn in range(rounds):
        drill(turn)
        chain.forget()
    gc.unfreeze()


def _written(drill: Callable[[int], None], once: Collection[str]) -> list[FunctionType]:
    """The functions to whose code a run writes."""
    functions = [found for found in gc.get_objects() if type(found) is FunctionType]
    before = [[_counts(code) for code in _with_inner(function.__code__)] for function in functions]
    for turn in range(_WAYS * len(_TURN)):
        drill(turn)
    return [
        function
        for function, counts in zip(functions, before, strict=True)
        if function.__module__ in once or counts != [_counts(code) for code in _with_inner(function.__code__)]
    ]


def _gather(functions: Sequence[FunctionType]) -> None:
    """Copies of their code, made one after the other, in place of the originals."""
    originals = [function.__code__ for function in functions]
    copies: dict[int, CodeType] = {}
    for function, original in zip(functions, originals, strict=True):
        function.__code__ = _copy(original, copies)


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


def immortalize() -> None:
    """Every object that can be reached from one the collector knows: most strings and numbers it does not.

    What is immortal already has been here; a set of the visited would leave ten megabytes of holes. The
    table of attribute names that a class's instances share counts its users too.
    """
    count_of = ctypes.c_uint32.from_address
    names_of = _names_offset()
    todo: list[object] = gc.get_objects()
    while todo:
        some = [one for one in todo[-_AT_ONCE:] if sys.getrefcount(one) != _IMMORTAL]
        del todo[-_AT_ONCE:]
        todo += gc.get_referents(*some)
        for found in some:
            count_of(id(found)).value = _IMMORTAL
            if isinstance(found, type) and found.__flags__ & _HEAP_TYPE and (table := _word(id(found) + names_of)):
                ctypes.c_ssize_t.from_address(table).value = _IMMORTAL
            elif isinstance(found, dict):
                todo += dict.keys(found)
            elif isinstance(found, CodeType):  # neither of which the collector looks into
                todo += (found.co_consts, found.co_names, found.co_varnames, found.co_freevars, found.co_cellvars)
                todo += (found.co_filename, found.co_name, found.co_qualname)
    gc.freeze()


def _use_up_pools(old: Sequence[range]) -> list[object]:
    """Of CPython's allocator, every free pool up to one at a new address. What fills them.

    On an allocator that is made otherwise this is no use, and must not be without end.
    """
    filler: list[object] = []
    for _ in range(4 * _ROOM // _LARGEST_SMALL):
        filler.append(_block(_LARGEST_SMALL))
        if _is_new(filler[-1], old):
            break
    return filler


def use_up_blocks(old: Sequence[range]) -> None:
    """For each size, every free block up to one at a new address."""
    for size in range(_ALIGNMENT, _LARGEST_SMALL + 1, _ALIGNMENT):
        for _ in range(_ROOM // size):
            _USED_UP.append(_block(size))
            if _is_new(_USED_UP[-1], old):
                break


def _use_up_kept() -> None:
    """Of the interpreter, what was freed and is kept for the next of its kind."""
    _KEPT.extend(tuple([None] * size) for size in range(1, 20) for _ in range(50))
    for make in (list, dict, lambda: slice(None)):
        _KEPT.extend(make() for _ in range(100))


def _block(size: int) -> object:
    """An object of `size` bytes to CPython's allocator."""
    if size == _ALIGNMENT:
        return object()
    return float(size) if size == 2 * _ALIGNMENT else bytes(size - _BYTES_HEAD)


def _is_new(block: object, old: Sequence[range]) -> bool:
    """`old`: in order."""
    place = bisect.bisect_right(old, id(block), key=_START) - 1
    return place < 0 or id(block) not in old[place]


_START = operator.attrgetter("start")


def _use_up_heap() -> None:
    """Of the C library, everything free below the end of its heap."""
    if not _GLIBC:
        return
    limit, end = _libc.sbrk(0), 0
    for _ in range(_MOST_HEAP // _LARGE):
        if (end := _libc.malloc(_LARGE)) >= limit:
            break
    for size in (*(_LARGE >> n for n in range(1, 7)), *range(_LARGEST_BIN, 0, -_ALIGNMENT)):
        for _ in range(_ROOM // size):
            if _libc.malloc(size) >= end:
                break  # it is kept as well: given back it would be the first to be had again


_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_libc.sbrk.restype, _libc.sbrk.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t,)
_GLIBC = hasattr(_libc, "gnu_get_libc_version")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_ROOM = 1024 * 1024
_ALIGNMENT, _LARGEST_SMALL = 16, 512  # of CPython's allocator
_BYTES_HEAD = sys.getsizeof(b"")
_LARGE, _LARGEST_BIN = 64 * 1024, 1032  # of the C library's; a block twice as large would not be in its heap
_MOST_HEAP = 1 << 24
_USED_UP: list[object] = []
_KEPT: list[object] = []
