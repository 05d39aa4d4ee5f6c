"""Memory, CPU and disk: every way to use too much ends at its own limit, and says which."""

from __future__ import annotations

import pytest

from sandbox.contract import Limits

from .cells import NOTHING, QUICK, REFUSED, SPUN, TOO_MUCH, Attempt, Cell, crash, gets_through, promises

HUNGRY = Limits(wall_s=5, cpu_s=3, memory_mb=64)  # where memory is what must end it
NO_MEMORY = "callback_error OSError: [Errno 12]"
NO_SPACE = {"A": "callback_error OSError: [Errno 28]", "BC": REFUSED}  # a private tmp, or none
TOO_BIG = {"A": "callback_error OSError: [Errno 27]", "BC": REFUSED}
_TAME = "v['got'] = 'more than the limit'"

ATTEMPTS = {
    "two gigabytes at once are a MemoryError": Attempt(
        "v['got'] = len(bytearray(2 << 30))", TOO_MUCH, control="v['got'] = len(bytearray(80 << 20))"
    ),
    "two gigabytes through ctypes are a MemoryError": Attempt(
        "import ctypes\nv['got'] = ctypes.sizeof(ctypes.create_string_buffer(2 << 30))",
        TOO_MUCH,
        control="import ctypes\nv['got'] = ctypes.sizeof(ctypes.create_string_buffer(80 << 20))",
    ),
    "two gigabytes of text by multiplication are a MemoryError": Attempt(
        "v['got'] = len('x' * (2 << 30))", TOO_MUCH, control="v['got'] = len('x' * (80 << 20))"
    ),
    "a number of endless digits is a MemoryError": Attempt(
        "v['got'] = (1 << (16 << 33)) > 0", TOO_MUCH, control="v['got'] = (1 << (80 << 23)) > 0"
    ),
    "slow growth ends at the memory limit": Attempt(
        "import time\nkept = []\nwhile True:\n    kept.append(bytearray(1 << 20))\n    time.sleep(0.002)",
        TOO_MUCH,
        limits=HUNGRY,
        control=f"kept = [bytearray(1 << 20) for _ in range(80)]\n{_TAME}",
    ),
    "growth whose MemoryErrors are swallowed gets no further": Attempt(
        """
        kept = []
        while True:
            try:
                while True: kept.append(bytearray(4 << 20))
            except BaseException: pass
        """,
        (SPUN, TOO_MUCH),
        control=f"kept = [bytearray(4 << 20) for _ in range(20)]\n{_TAME}",
    ),
    "many small objects end at the memory limit": Attempt(
        "kept = []\nwhile True: kept.append([None])",
        TOO_MUCH,
        limits=HUNGRY,
        control=f"kept = [[None] for _ in range(10**6)]\n{_TAME}",
    ),
    "recursion without end ends at the memory limit": Attempt(
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        TOO_MUCH,
        limits=HUNGRY,
        control="import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return n and 1 + f(n - 1)\nv['got'] = f(10**5)",
    ),
    "anonymous shared memory counts": Attempt(
        "import mmap\nv['got'] = len(mmap.mmap(-1, 2 << 30))",
        NO_MEMORY,
        control="import mmap\nv['got'] = len(mmap.mmap(-1, 80 << 20))",
    ),
    "anonymous shared memory in pieces counts": Attempt(
        "import mmap\nkept = []\nwhile True: kept.append(mmap.mmap(-1, 1 << 20))",
        NO_MEMORY,
        control=f"import mmap\nkept = [mmap.mmap(-1, 1 << 20) for _ in range(80)]\n{_TAME}",
    ),
    "memory locked against swapping is refused": Attempt(
        "import ctypes\nv['got'] = call('mlock', ctypes.create_string_buffer(8192), 4096) == 0", REFUSED
    ),
    "a small compressed text that unpacks to much is a MemoryError": Attempt(
        "import zlib\npacked = zlib.compress(bytes(1 << 20), 9) \nd = zlib.decompressobj()\n"
        "v['got'] = len(b''.join(zlib.decompress(packed) for _ in range(2048)))",
        TOO_MUCH,
        limits=HUNGRY,
        control="import zlib\npacked = zlib.compress(bytes(80 << 20), 9)\nv['got'] = len(zlib.decompress(packed)) > 80",
    ),
    "pipes and their buffers are few": Attempt(
        """
        import os
        filled = 0
        while filled < 32 << 20:
            read, write = os.pipe()
            os.set_blocking(write, False)
            try:
                while True: filled += os.write(write, bytes(65536))
            except BlockingIOError: pass
        v['got'] = filled
        """,
        "callback_error OSError: [Errno 24]",
    ),
    "a pipe is not made larger": Attempt(
        "import fcntl, os\nv['got'] = fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20)", REFUSED
    ),
    "socket pairs and their buffers are few": Attempt(
        """
        import socket
        filled, kept = 0, []
        while filled < 64 << 20:
            kept += (pair := socket.socketpair())
            for end in pair:
                end.setblocking(False)
                try:
                    while True: filled += end.send(bytes(65536))
                except BlockingIOError: pass
        v['got'] = filled
        """,
        "callback_error OSError: [Errno 24]",
    ),
    "a socket's buffer is not made larger": Attempt(
        "import socket\nsocket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)\nv['got'] = 1",
        REFUSED,
    ),
    "a number that takes for ever ends at the CPU limit": Attempt(
        "v['got'] = pow(3, (1 << 900_000) - 1, (1 << 900_001) - 1) > 0", SPUN, control="v['got'] = pow(3, 99, 7) > 0"
    ),
    "a number's digits that take for ever end at the CPU limit": Attempt(
        "import sys\nsys.set_int_max_str_digits(0)\nv['got'] = len(str(1 << 20_000_000))",
        SPUN,
        control="import sys\nsys.set_int_max_str_digits(0)\nv['got'] = len(str(1 << 20_000))",
    ),
    "a regular expression that takes for ever ends at the CPU limit": Attempt(
        "import re\nre.match('(a+)+$', 'a' * 64 + 'b')\nv['got'] = 1",
        SPUN,
        control="import re\nv['got'] = re.match('(a+)+$', 'a' * 16 + 'b') is None",
    ),
    "a compile that takes for ever ends at a limit": Attempt(
        "compile('(' * 90 + '0,' + ')' * 90 + '\\n' + 'x=1\\n' * 10**6, 'x', 'exec')\nv['got'] = 1",
        (SPUN, TOO_MUCH),
        control="v['got'] = compile('x=1\\n' * 10, 'x', 'exec') is not None",
    ),
    "a file of 300 MiB does not fit": Attempt(
        "with open('/tmp/big', 'wb', 0) as file:\n    for _ in range(300): file.write(bytes(1 << 20))\nv['got'] = 1",
        {"A": ("callback_error OSError: [Errno 28]", "callback_error OSError: [Errno 27]"), "BC": REFUSED},
        control="with open('/tmp/big', 'wb', 0) as file:\n    for _ in range(20): file.write(bytes(1 << 20))\nv['got'] = 1",
    ),
    "many files do not fit": Attempt("for n in range(4096): open(f'/tmp/{n}', 'w').close()\nv['got'] = n", NO_SPACE),
    "many folders do not fit": Attempt(
        "import os\nfor n in range(4096): os.mkdir(f'/tmp/{n}')\nv['got'] = n", NO_SPACE
    ),
    "a sparse file of a terabyte is refused": Attempt(
        "import os\nfd = os.open('/tmp/sparse', os.O_CREAT | os.O_RDWR)\nos.ftruncate(fd, 1 << 40)\nv['got'] = 1",
        TOO_BIG,
    ),
    "a file reserved in one call does not fit": Attempt(
        "import os\nfd = os.open('/tmp/whole', os.O_CREAT | os.O_RDWR)\nos.posix_fallocate(fd, 0, 20 << 20)\nv['got'] = 1",
        TOO_BIG,
    ),
    "2,000 descriptors are refused": Attempt(
        "import os\nfds = [os.dup(0) for _ in range(2000)]\nv['got'] = len(fds)", "callback_error OSError: [Errno 24]"
    ),
    "2,000 event counters are refused": Attempt(
        "import os\nfds = [os.eventfd(0) for _ in range(2000)]\nv['got'] = len(fds)",
        "callback_error OSError: [Errno 24]",
    ),
    "an overflow of the C stack is a crash of the sandbox alone": Attempt(
        """
        import itertools, threading
        def overflow():
            chain = iter(())
            for _ in range(50_000): chain = itertools.chain(chain)
            next(chain, None)
        threading.stack_size(65536)
        thread = threading.Thread(target=overflow)
        thread.start()
        thread.join()
        """,
        crash("SIGSEGV"),
        end_of_control="SIGSEGV",
    ),
    "crafted bytecode is a crash of the sandbox alone": Attempt(
        "import marshal, types\nf = types.FunctionType((lambda: 0).__code__.replace(co_consts=(), co_names=(), "
        "co_code=bytes([144, 127, 144, 255, 100, 255, 83, 0])), {})\nf()",
        crash("SIGSEGV"),
        end_of_control="SIGSEGV",
    ),
    "a priority is not raised": Attempt("import os\nv['got'] = os.nice(-5) or 1", REFUSED),
    "a processor is not chosen": Attempt("import os\nos.sched_setaffinity(0, {0})\nv['got'] = 1", REFUSED),
    "a real-time schedule is refused": Attempt(
        "import os\nos.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\nv['got'] = 1", REFUSED
    ),
}


@pytest.mark.parametrize("promise", promises(ATTEMPTS))
def test_it_is_contained(cell: Cell, promise):
    cell.contains(ATTEMPTS[promise])


@pytest.mark.parametrize("promise", promises(ATTEMPTS))
def test_unprotected_the_same_act_gets_through(promise):
    gets_through(ATTEMPTS[promise])


def test_what_a_memory_limit_let_through_was_not_more_than_it_says(cell: Cell):
    verdict = cell.run("kept = []\nwhile True: kept.append(bytearray(1 << 20))", HUNGRY)
    assert verdict.usage.peak_rss_bytes < (HUNGRY.memory_mb + 64) << 20  # what an interpreter has to begin with


def test_memory_is_given_back_to_the_next(cell: Cell):
    for _ in range(3):
        assert cell.run("v['size'] = len(bytearray(40 << 20))").state_delta.set == {"size": 40 << 20}


def test_within_the_limits_nothing_is_refused(cell: Cell):
    """The positive control of the limits themselves: what ends at one was not ended by another."""
    verdict = cell.run("v['n'] = [len(bytearray(30 << 20)), sum(range(10**5))]", QUICK)
    assert (verdict.status, NOTHING) == ("ok", "ok"), verdict.detail


def test_code_that_takes_for_ever_to_compile_ends_at_a_limit_every_time_it_comes(cell: Cell):
    """Also where it was compiled before its job was there."""
    body = "x = [" + "(1 + y), " * 200_000 + "]"
    for _ in range(4):
        verdict = cell.run(body)
        assert verdict.status in {"cpu_limit", "memory_limit"}, verdict.detail[:300]
    cell.unharmed()
