"""Over all numbers: what the kernel does with each system call in a sandbox is exactly what the policy says.

Each call is made for real, with arguments that no kernel takes (-1 everywhere) or, where an argument
decides, with one set that fits its rule and one that misses for each of its conditions. What only
an escape attempt calls ends the sandbox, so each of those has a sandbox of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal

import pytest

from sandbox import policy
from sandbox.kernel import calls, seccomp
from sandbox.kernel.seccomp import ALLOW, DENY, KILL, NO_SUCH_CALL, Is
from sandbox.kernel.syscalls import numbers

from .cells import Cell, said, unprotected

LAST = 512  # well beyond the newest number
PID = 999_999  # stands for the sandbox's own pid
BAD = -1
X32 = 0x40000000

# Where -1 is not an argument that returns at once and harmlessly.
SPECIAL = {
    "alarm": (0,),
    "futex": (BAD, 1),  # wake, at no address; -1 is a futex call that no kernel has
    "pause": (),  # ended by the alarm below
    "umask": (0o777,),
    "set_tid_address": (0,),
    "clone": (policy._THREAD | 0x101000, 0, 0, 0, 0),  # CLONE_PIDFD and CLONE_PARENT_SETTID: two uses of one argument
}
# These do not return, so each has a sandbox of its own: how it ends shows that it ran.
FINAL = {
    "exit": "no_result it exited with 255",
    "exit_group": "no_result it exited with 255",
    "rt_sigreturn": "crashed killed by SIGSEGV",
}
# These pass every filter, since Linux 6.14 and 6.18: they belong to probes that the kernel itself sets, and do
# nothing outside of one. Numbers of x86_64; elsewhere they are numbers like any other.
PROBES = {"uretprobe": 335, "number 336": 336} if platform.machine() == "x86_64" else {}
# Without protection these would do something: two make processes, two write the machine's disks.
UNTRIED = {"fork", "vfork", "sync", "syncfs"}

_TRY = """
import ctypes, errno, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
signal.signal(signal.SIGALRM, lambda *_: None)
seen = {{}}
for key, number, arguments in {plan!r}:
    if key == 'pause':
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    plain = [ctypes.c_long(os.getpid() if a == {pid} else a) for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *plain)
    seen[key] = 'ran' if result != -1 else errno.errorcode.get(ctypes.get_errno(), '?')
    if key == 'pause':
        signal.setitimer(signal.ITIMER_REAL, 0)
"""


def plan_of(rules) -> dict[str, tuple[int, tuple[int, ...], str]]:
    """What to try -> number, arguments, and what must be seen: EPERM, ENOSYS, ran or fatal."""
    names = {number: name for name, number in numbers().items()}
    plan = {}
    for number in range(LAST):
        name = names.get(number, f"number {number}")
        rule = rules.get(name, DENY)
        arguments = (*SPECIAL.get(name, ()), *(BAD,) * 6)[:6]
        if isinstance(rule, int):
            wanted = {ALLOW: "ran", DENY: "EPERM", NO_SUCH_CALL: "ENOSYS", KILL: "fatal"}[rule]
            plan[name] = (number, arguments, wanted)
            continue
        fitting = [*arguments]
        for condition in rule:
            if name not in SPECIAL:
                fitting[condition.index] = int(condition.values[0])
        plan[name] = (number, tuple(fitting), "ran")
        for condition in rule:
            missing = [*fitting]
            missing[condition.index] = _miss(condition)
            plan[f"{name}, argument {condition.index} amiss"] = (number, tuple(missing), "EPERM")
    return plan


def _miss(condition: Is) -> int:
    """A value for the argument that is none of those allowed; the nearest, by one bit of the mask."""
    if condition.wide:
        return 1 << 32
    bits = [1 << n for n in range(32) if condition.mask >> n & 1]
    return next(value for bit in bits if (value := int(condition.values[0]) ^ bit) not in condition.values)


def rules_of(cell: Cell):
    """The policy as data: a fatal call is allowed by the list because the first filter stops it."""
    return policy.rules(cell.tier, PID, named=False)


def tried(plan) -> str:
    """The body that tries all of it and leaves what it saw in `seen`."""
    return _TRY.format(plan=[(key, number, arguments) for key, (number, arguments, _) in plan.items()], pid=PID)


def test_each_call_does_what_the_policy_says(cell: Cell):
    apart = FINAL.keys() | PROBES.keys()
    plan = {key: row for key, row in plan_of(rules_of(cell)).items() if row[2] != "fatal" and key not in apart}
    assert len(plan) > LAST - 100
    verdict = cell.run(tried(plan) + "v['seen'] = seen")
    assert verdict.ok, said(verdict)
    seen = verdict.state_delta.set["seen"]
    wanted = {key: row[2] for key, row in plan.items()}
    # An allowed call fails by its arguments, in the kernel and not in the filter.
    shown = {key: "ran" if wanted[key] == "ran" and seen[key] not in {"EPERM", "ENOSYS"} else seen[key] for key in plan}
    assert {key: shown[key] for key in plan if shown[key] != wanted[key]} == {}
    assert shown == wanted


def test_each_fatal_call_ends_the_sandbox_and_is_named(cell: Cell):
    fatal = {key: row for key, row in plan_of(rules_of(cell)).items() if row[2] == "fatal"}
    assert set(fatal) == set(policy.FATAL) & numbers().keys()
    seen = {}
    for key, row in fatal.items():
        verdict = cell.run(tried({key: row}) + "v['seen'] = seen")
        seen[key] = (verdict.status, verdict.detail or verdict.state_delta.set["seen"][key])
    named = {key: ("policy_violation", f"forbidden system call {key}") for key in fatal}
    denied = {key: ("ok", "EPERM") for key in fatal if key in cell.outer}  # by the host around it
    assert seen == named | denied


@pytest.mark.parametrize("name", FINAL)
def test_a_call_that_does_not_return_is_seen_by_its_end(cell: Cell, name):
    row = plan_of(rules_of(cell))[name]
    assert said(cell.run(tried({name: row}))).startswith(FINAL[name])


@pytest.mark.parametrize("name", PROBES)
def test_a_call_of_the_kernels_own_probes_does_nothing_but_end_its_caller(cell: Cell, name):
    verdict = cell.run(tried({name: (PROBES[name], (BAD,) * 6, "EPERM")}) + "v['seen'] = seen")
    ends = ("crashed killed by SIGILL", "ok EPERM", "ok ENXIO", "ok EPROTO")
    assert f"{verdict.status} {verdict.detail or verdict.state_delta.set['seen'][name]}" in ends
    cell.unharmed()


FOREIGN = {
    "x86_64": {
        **{f"x32 number {number}": X32 | number for number in (0, 1, 41, 56, 57, 59, 101, 322, 469, 512, 520, 547)},
        "the largest x32 number": 0x7FFFFFFF,
        "the number -1": 0xFFFFFFFF,
        "a negative number": 0x80000000,
    },
}


@pytest.mark.parametrize("what", FOREIGN.get(platform.machine(), {}))
def test_a_number_of_a_foreign_abi_ends_the_sandbox(cell: Cell, what):
    number = FOREIGN[platform.machine()][what]
    verdict = cell.run(tried({what: (number, (BAD,) * 6, "fatal")}))
    assert said(verdict) == "policy_violation a forbidden system call, or one of a foreign machine type (SIGSYS)"


# mov eax, getpid; int 0x80; ret. No page of a sandbox can be made to hold it, so here it is laid down
# before the filter; in a real one an attacker would have to find the bytes somewhere in a program.
_INT_80 = bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3])


def _made_32_bit_call(filter_: bytes | None) -> int:
    """How a process ends that makes one: 0 when it worked."""
    pid = os.fork()
    if pid == 0:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(_INT_80)
        made = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        if filter_ is not None:
            calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
            seccomp.install(filter_)
        os._exit(made() != os.getpid())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("tier", ["A", "B", "C"] if platform.machine() == "x86_64" else [])
def test_a_32_bit_call_ends_the_process_and_works_without_the_filter(tier):
    assert _made_32_bit_call(policy.allow_filter(tier, 1, named=True)) == -signal.SIGSYS
    assert _made_32_bit_call(policy.naming_filter()) == -signal.SIGSYS
    assert _made_32_bit_call(None) == 0


def test_unprotected_the_refused_calls_are_not_refused():
    """The positive control: what says EPERM in a sandbox says something else elsewhere, nearly always."""
    plan = {key: row for key, row in plan_of(policy.rules("A", PID, named=False)).items() if row[2] == "EPERM"}
    plan = {key: row for key, row in plan.items() if key not in UNTRIED | PROBES.keys() and " amiss" not in key}
    assert len(plan) > 200
    body = tried(plan) + "v['got'] = sum(one == 'EPERM' for one in seen.values()) < 5"
    assert unprotected(body) == "got"


def test_every_rule_is_about_a_call_there_is():
    assert len(numbers()) > 300
    assert max(numbers().values()) < LAST
