"""The tables and the filters: numbers match the headers, and the list allows exactly what it says."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from pathlib import Path

import pytest

from sandbox import policy
from sandbox.kernel import calls, seccomp, syscalls

HEADERS = {
    "x86_64": [f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"],
    "aarch64": ["/usr/include/asm-generic/unistd.h"],
}


def test_the_table_has_the_numbers_of_this_machines_headers():
    machine = platform.machine()
    header = next(Path(path) for path in HEADERS[machine] if Path(path).exists())
    named = {n: int(v) for n, v in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", header.read_text())}
    assert len(named) > 300
    table = syscalls.TABLES[machine]
    assert {name: table.get(name) for name in named if name != "syscalls"} == {
        name: number for name, number in named.items() if name != "syscalls"
    }


@pytest.mark.parametrize("machine", syscalls.TABLES)
def test_every_named_call_exists_on_one_of_the_machines(machine):
    known = set(syscalls.X86_64) | set(syscalls.AARCH64)
    table = policy.rules("A", 1, named=True)
    assert not set(table) - known
    assert len(seccomp.program(table, seccomp.DENY, machine)) % 8 == 0


def verdict(code: bytes, number: int, arch: int, arguments=(0,) * 6) -> int:
    """Run a classic BPF program as the kernel would: the tests' own little machine."""
    data = number.to_bytes(4, "little") + arch.to_bytes(4, "little") + bytes(8)
    data += b"".join(a.to_bytes(8, "little") for a in arguments)
    at, accumulator = 0, 0
    while True:
        op = int.from_bytes(code[at * 8 : at * 8 + 2], "little")
        yes, no = code[at * 8 + 2], code[at * 8 + 3]
        value = int.from_bytes(code[at * 8 + 4 : at * 8 + 8], "little")
        at += 1
        match op:
            case 0x20:
                accumulator = int.from_bytes(data[value : value + 4], "little")
            case 0x54:
                accumulator &= value
            case 0x15:
                at += yes if accumulator == value else no
            case 0x05:
                at += value
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x06:
                return value
            case _:
                raise AssertionError(hex(op))


@pytest.mark.parametrize("machine", syscalls.TABLES)
@pytest.mark.parametrize("tier", ["A", "B", "C"])
def test_over_all_numbers_exactly_the_list_is_allowed(machine, tier):
    rules = policy.rules(tier, 1, named=False)
    code = seccomp.program(rules, seccomp.DENY, machine)
    arch = syscalls.AUDIT_ARCH[machine]
    names = {number: name for name, number in syscalls.TABLES[machine].items()}
    for number in range(600):
        rule = rules.get(names.get(number, ""), seccomp.DENY)
        if isinstance(rule, int):
            assert verdict(code, number, arch) == rule, names.get(number)
    for number in (0x40000000, 0x40000001, 0xFFFFFFFF) if machine == "x86_64" else ():
        assert verdict(code, number, arch) == seccomp.KILL
    assert verdict(code, 0, 0x40000003) == seccomp.KILL  # i386


ARGUMENTS = [
    ("mmap", (0, 4096, 3, 0x22, 0, 0), True),
    ("mmap", (0, 4096, 7, 0x22, 0, 0), False),
    ("mprotect", (0, 4096, 4, 0, 0, 0), False),
    ("clone", (0x3D0F00, 0, 0, 0, 0, 0), True),  # what pthread_create asks for
    ("clone", (17, 0, 0, 0, 0, 0), False),  # fork
    ("clone", (0x3D0F00 | calls.CLONE_NEWUSER, 0, 0, 0, 0, 0), False),
    ("kill", (1, 15, 0, 0, 0, 0), True),
    ("kill", (0xFFFFFFFFFFFFFFFF, 9, 0, 0, 0, 0), False),
    ("kill", (2, 0, 0, 0, 0, 0), False),
    ("socketpair", (1, 1 | 0o2000000, 0, 0, 0, 0), True),
    ("socketpair", (1, 2, 0, 0, 0, 0), False),  # datagrams can be sent to a path
    ("socketpair", (2, 1, 0, 0, 0, 0), False),
    ("sendto", (3, 1, 1, 0, 0, 0), True),
    ("sendto", (3, 1, 1, 0, 0x7FFF00000000, 16), False),  # an address whose low half is 0
    ("ioctl", (0, 0x5401, 0, 0, 0, 0), True),
    ("ioctl", (0, 0x5412, 0, 0, 0, 0), False),  # TIOCSTI
    ("fcntl", (3, 3, 0, 0, 0, 0), True),
    ("fcntl", (3, 6, 0, 0, 0, 0), False),  # a lock
    ("prctl", (4, 1, 0, 0, 0, 0), False),  # dumpable again
]


@pytest.mark.parametrize(("name", "arguments", "allowed"), ARGUMENTS)
def test_arguments_decide(name, arguments, allowed):
    code = policy.allow_filter("B", 1, named=False)
    number, arch = syscalls.numbers()[name], syscalls.AUDIT_ARCH[platform.machine()]
    assert verdict(code, number, arch, arguments) == (seccomp.ALLOW if allowed else seccomp.DENY)


@pytest.mark.parametrize(
    ("tier", "flags", "allowed"),
    [
        ("A", os.O_RDONLY, True),
        ("A", os.O_RDWR | os.O_CREAT, True),
        ("B", os.O_RDONLY | os.O_CLOEXEC, True),
        ("B", os.O_WRONLY, False),
        ("B", os.O_RDONLY | os.O_TRUNC, False),
        ("C", os.O_RDONLY, False),
    ],
)
def test_files_are_opened_for_writing_only_where_there_is_a_private_tmp(tier, flags, allowed):
    code = policy.allow_filter(tier, 1, named=False)
    arguments = (0, 0, flags, 0, 0, 0)
    got = verdict(code, syscalls.numbers()["openat"], syscalls.AUDIT_ARCH[platform.machine()], arguments)
    assert got == (seccomp.ALLOW if allowed else seccomp.DENY)


def test_the_kernel_agrees_with_the_little_machine():
    """Positive control: the same program, installed for real in a fork, gives the same errno."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
        libc = ctypes.CDLL(None, use_errno=True)
        before = libc.syscall(syscalls.numbers()["getppid"])
        seccomp.install(seccomp.program({"getppid": seccomp.DENY, "clone3": seccomp.NO_SUCH_CALL}, seccomp.ALLOW))
        after = [(libc.syscall(syscalls.numbers()[name]), ctypes.get_errno()) for name in ("getppid", "clone3")]
        os.write(write, repr((before > 0, after)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100).decode() == repr((True, [(-1, errno.EPERM), (-1, errno.ENOSYS)]))
    os.close(read)
    os.close(write)
