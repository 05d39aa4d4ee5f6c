"""What a zygote does to its memory so that children share it: tried in a process of its own, which it would spoil."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def said(body: str) -> list[str]:
    run = [sys.executable, "-c", f"from sandbox.guest import mappings, shared\n{body}"]
    return subprocess.run(run, capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()


DRILL = """
from sandbox.guest import chain
from sandbox.invocation import Reply
for hook in shared._TURN:
    job = shared.warm_job(hook)
    reply = Reply.decode(chain.run_chain(job.code, job.body, shared.Nobody()))
    print(reply.error is None and "a" in reply.set)
"""


def test_what_the_zygote_runs_beforehand_ends_well():
    assert said(DRILL) == ["True"] * 5


GATHER = """
def seen(x):
    def inner():
        return x.real
    return inner() + 1
def still():
    return 1
def drill(turn):
    for x in (1, 1.5, True, 2j):
        seen(x)
for _ in range(60):
    drill(0)
    still()
names = [f.__name__ for f in shared._written(drill, once=()) if f.__module__ == "__main__"]
before = seen.__code__
shared._gather([seen])
inner = [[c for c in code.co_consts if hasattr(c, "co_code")][0] for code in (before, seen.__code__)]
print(names.count("seen"), names.count("still"), seen(2), before == seen.__code__, before is seen.__code__, inner[0] is inner[1])
"""


def test_code_that_a_run_writes_to_is_found_and_copied_with_what_is_in_it():
    assert said(GATHER) == ["1", "0", "3", "True", "False", "False"]


HOLES = """
from sandbox.guest.shared import _libc
import ctypes
_libc.free.argtypes = (ctypes.c_void_p,)
sizes = [48, 500, 1100, 5000, 40000]
blocks = [(_libc.malloc(size), _libc.malloc(64)) for size in sizes for _ in range(20)]
for block, _ in blocks:
    _libc.free(block)
end = _libc.sbrk(0)
{step}
print(all(_libc.malloc(size) >= end for size in sizes for _ in range(5)))
"""


@pytest.mark.parametrize(
    ("step", "beyond"), [("shared._use_up_heap()", "True"), ("pass", "False")], ids=["used up", "control"]
)
def test_no_free_block_of_the_heap_is_left(step, beyond):
    assert said(HOLES.format(step=step)) == [beyond]


POOLS = """
maps = mappings.opened()
old = mappings.spans(maps)
{step}
new = [shared._block(size) for size in range(16, 513, 16) for _ in range(3)]
print(sum(shared._is_new(one, old) for one in new) > len(new) - 4)  # a few are made of what was freed since
"""


@pytest.mark.parametrize(
    ("step", "apart"),
    [("shared.clear(old)", "True"), ("pass", "False")],
    ids=["used up", "control"],
)
def test_new_objects_of_every_size_lie_in_fresh_memory(step, apart):
    assert said(POOLS.format(step=step)) == [apart]


USERS = """
import ctypes
class One:
    def __init__(self):
        self.a = 1
vars(One())
{step}
count = ctypes.c_ssize_t.from_address(shared._word(id(One) + shared._names_offset()))
before = count.value
one = One()
two = vars(one)
print(count.value == before)
"""


@pytest.mark.parametrize(
    ("step", "same"), [("shared.immortalize()", "True"), ("pass", "False")], ids=["immortal", "control"]
)
def test_an_instance_writes_nothing_to_its_class(step, same):
    assert said(USERS.format(step=step)) == [same]
