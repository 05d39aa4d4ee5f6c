"""seccomp: classic BPF programs out of frozen rules, assembled by hand.

Theory of operation. A filter sees the call's number, the machine and six 64-bit arguments, never
memory. A program here starts with the machine: the wrong one, or the x32 numbers, kill the process.
Then it is a binary search over ranges of numbers, one instruction for each, whose branches go on
searching, or to the conditions of a rule, or to a verdict; each of those is there once. All of it is
for the kernel's sake: at every installation it translates the program, and tries all numbers
against it to learn which are always allowed. Several filters on one thread all run and the strictest answer
wins, in this order: kill, errno, user notification, allow. That order is why naming a forbidden
call takes two filters: the first notifies the supervisor of the fatal calls and allows the rest,
the second is the allow list and lets the fatal ones pass *to the first*.

An errno verdict must carry a value: with 0 the call would be skipped and report success.
"""

from __future__ import annotations

import array
import ctypes
import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sandbox.kernel.calls import call
from sandbox.kernel.syscalls import AUDIT_ARCH, MACHINE, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KILL = 0x80000000  # the process, not the thread
NOTIFY = 0x7FC00000
ALLOW = 0x7FFF0000
DENY = 0x00050000 | errno.EPERM
NO_SUCH_CALL = 0x00050000 | errno.ENOSYS

_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_X32_BIT = 0x40000000
_NOTIF_RECV = 0xC0502100  # _IOWR('!', 0, struct seccomp_notif), 80 bytes
_LOAD, _AND = 0x20, 0x54  # BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K
_EQUAL, _AT_LEAST, _RETURN = 0x15, 0x35, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16


@dataclass(frozen=True, slots=True)
class Is:
    """Condition: argument `index`, its low 32 bits under `mask`, is one of `values`.

    With `wide`, the high 32 bits must be 0 too (pointers; int arguments are cut by the kernel).
    """

    index: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    wide: bool = False


type Rule = int | tuple[Is, ...]
"""A verdict, or conditions that must all hold for ALLOW; otherwise DENY."""


def program(rules: Mapping[str, Rule], default: int, machine: str = MACHINE) -> bytes:
    """The filter for `rules` by call name; names the machine does not have are left out."""
    table = numbers(machine)
    ranges = _ranges({table[name]: rule for name, rule in rules.items() if name in table}, default)
    code: list[Op | Label] = [Op(_LOAD, _ARCH_AT), Op(_EQUAL, AUDIT_ARCH[machine], no=KILL), Op(_LOAD, _NUMBER_AT)]
    if machine == "x86_64":
        code.append(Op(_AT_LEAST, _X32_BIT, yes=KILL))
    code += _search(ranges)
    for rule in dict.fromkeys(rule for _, rule in ranges if not isinstance(rule, int)):
        code += [Label(rule), *_conditions(rule)]
    for verdict in dict.fromkeys([*(rule for _, rule in ranges if isinstance(rule, int)), ALLOW, DENY, KILL]):
        code += [Label(verdict), Op(_RETURN, verdict)]
    return _assembled(code)


type Target = Rule | str | None
"""Where a branch goes: to a rule's conditions or a verdict, to a place with a name, or to the next instruction."""


class Op(NamedTuple):
    """One instruction; `yes` and `no` are the branches of a comparison."""

    code: int
    value: int
    yes: Target = None
    no: Target = None


class Label(NamedTuple):
    """The place where `target` is."""

    target: Target


def _ranges(by_number: Mapping[int, Rule], default: int) -> list[tuple[int, Rule]]:
    """The whole number line as (first number, rule), each range up to the next one's start."""
    ranges: list[tuple[int, Rule]] = []
    for number in range(max(by_number) + 2):
        rule = by_number.get(number, default)
        if not ranges or ranges[-1][1] != rule:
            ranges.append((number, rule))
    return ranges


def _search(ranges: Sequence[tuple[int, Rule]]) -> list[Op | Label]:
    """Binary search: left of the middle falls through, right of it is jumped to; a single range is its rule."""
    if len(ranges) == 1:
        return []
    middle = len(ranges) // 2
    first, rule = ranges[middle]
    left = ranges[0][1] if middle == 1 else None
    right = rule if middle == len(ranges) - 1 else f"from {first}"
    return [
        Op(_AT_LEAST, first, yes=right, no=left),
        *_search(ranges[:middle]),
        *([Label(right)] if isinstance(right, str) else []),
        *_search(ranges[middle:]),
    ]


def _conditions(tests: tuple[Is, ...]) -> list[Op | Label]:
    """Each test falls through to the next, the last to ALLOW; what does not hold goes to DENY."""
    code: list[Op | Label] = []
    for place, test in enumerate(tests):
        low = _ARGUMENTS_AT + 8 * test.index
        passed: Target = ALLOW if place == len(tests) - 1 else f"{tests} {place}"
        if test.wide:
            code += [Op(_LOAD, low + 4), Op(_EQUAL, 0, no=DENY)]
        code += [Op(_LOAD, low)]
        if test.mask != 0xFFFFFFFF:  # all bits
            code += [Op(_AND, test.mask)]
        code += [Op(_EQUAL, value, yes=passed) for value in test.values[:-1]]
        code += [Op(_EQUAL, test.values[-1], yes=passed, no=DENY), Label(passed)]
    return code[:-1]


def _assembled(code: Sequence[Op | Label]) -> bytes:
    """Targets become distances. A branch goes forward, and no further than 255."""
    places: dict[Target, int] = {}
    ops: list[Op] = []
    for one in code:
        if isinstance(one, Label):
            places[one.target] = len(ops)
        else:
            ops.append(one)
    return b"".join(
        struct.pack("=HBBI", op.code, *(0 if to is None else places[to] - at for to in (op.yes, op.no)), op.value)
        for at, op in enumerate(ops, 1)
    )


def install(filter_: bytes) -> None:
    """Bind this process by the filter. Needs no_new_privs."""
    _install(filter_, 0)


def install_listener(filter_: bytes) -> int:
    """The same, and the fd on which NOTIFY verdicts arrive.

    Raises OSError where the kernel has no such fd to give (EBUSY: somebody outside listens already).
    """
    return _install(filter_, _NEW_LISTENER)


def _install(filter_: bytes, flags: int) -> int:
    code = array.array("B", filter_)  # a buffer of ctypes would be a new type first, for each length
    address, size = code.buffer_info()
    return call("seccomp", _SET_MODE_FILTER, flags, struct.pack("@HP", size // 8, address))


def notified(listener: int) -> int:
    """The number of the call that a NOTIFY verdict stopped; blocks until there is one.

    Raises OSError when the thread died meanwhile.
    """
    request = ctypes.create_string_buffer(80)
    call("ioctl", listener, _NOTIF_RECV, request)
    return int(struct.unpack_from("=i", request, 16)[0])  # seccomp_notif.data.nr
