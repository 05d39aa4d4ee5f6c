"""seccomp: classic BPF programs out of frozen rules, assembled by hand.

Theory of operation. A filter sees the call's number, the machine and six 64-bit arguments, never
memory. A program here starts with the machine: the wrong one, or the x32 numbers, kill the process.
Then it is a binary search over ranges of numbers, each with a verdict or a block of conditions. The
search is for the kernel's sake: at every installation it tries all numbers against the program to
learn which are always allowed, and a linear one made that 0.8 ms per child. Several filters on one thread all run and the strictest answer
wins, in this order: kill, errno, user notification, allow. That order is why naming a forbidden
call takes two filters: the first notifies the supervisor of the fatal calls and allows the rest,
the second is the allow list and lets the fatal ones pass *to the first*.

An errno verdict must carry a value: with 0 the call would be skipped and report success.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
_JUMP, _EQUAL, _AT_LEAST, _RETURN = 0x05, 0x15, 0x35, 0x06
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
    code = [
        _op(_LOAD, _ARCH_AT),
        _op(_EQUAL, AUDIT_ARCH[machine], yes=1),
        _op(_RETURN, KILL),
        _op(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32_BIT, no=1), _op(_RETURN, KILL)]
    code += _search(_ranges({table[name]: rule for name, rule in rules.items() if name in table}, default))
    return b"".join(code)


def _ranges(by_number: Mapping[int, Rule], default: int) -> list[tuple[int, Rule]]:
    """The whole number line as (first number, rule), each range up to the next one's start."""
    ranges: list[tuple[int, Rule]] = []
    for number in range(max(by_number) + 2):
        rule = by_number.get(number, default)
        if not ranges or ranges[-1][1] != rule:
            ranges.append((number, rule))
    return ranges


def _search(ranges: Sequence[tuple[int, Rule]]) -> list[bytes]:
    """Binary search: left of the middle falls through, right of it is jumped to."""
    if len(ranges) == 1:
        rule = ranges[0][1]
        return [_op(_RETURN, rule)] if isinstance(rule, int) else _conditions(rule)
    middle = len(ranges) // 2
    left, right = _search(ranges[:middle]), _search(ranges[middle:])
    return [_op(_AT_LEAST, ranges[middle][0], no=1), _op(_JUMP, len(left)), *left, *right]


def _conditions(tests: tuple[Is, ...]) -> list[bytes]:
    """Each test falls through to the next or jumps to the DENY at the end of its own piece."""
    code: list[bytes] = []
    for test in tests:
        low = _ARGUMENTS_AT + 8 * test.index
        if test.wide:
            code += [_op(_LOAD, low + 4), _op(_EQUAL, 0, yes=1), _op(_RETURN, DENY)]
        code += [_op(_LOAD, low)]
        if test.mask != 0xFFFFFFFF:  # all bits
            code += [_op(_AND, test.mask)]
        count = len(test.values)
        code += [_op(_EQUAL, value, yes=count - place) for place, value in enumerate(test.values)]
        code += [_op(_RETURN, DENY)]
    return [*code, _op(_RETURN, ALLOW)]


def _op(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def install(filter_: bytes) -> None:
    """Bind this process by the filter. Needs no_new_privs."""
    _install(filter_, 0)


def install_listener(filter_: bytes) -> int:
    """The same, and the fd on which NOTIFY verdicts arrive.

    Raises OSError where the kernel has no such fd to give (EBUSY: somebody outside listens already).
    """
    return _install(filter_, _NEW_LISTENER)


def _install(filter_: bytes, flags: int) -> int:
    code = ctypes.create_string_buffer(filter_, len(filter_))
    head = struct.pack("@HP", len(filter_) // 8, ctypes.addressof(code))
    return call("seccomp", _SET_MODE_FILTER, flags, head)


def notified(listener: int) -> int:
    """The number of the call that a NOTIFY verdict stopped; blocks until there is one.

    Raises OSError when the thread died meanwhile.
    """
    request = ctypes.create_string_buffer(80)
    call("ioctl", listener, _NOTIF_RECV, request)
    return int(struct.unpack_from("=i", request, 16)[0])  # seccomp_notif.data.nr
