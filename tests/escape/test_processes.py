"""Processes: none is started, none is left, none gets out of reach of its limits."""

from __future__ import annotations

import time

import psutil
import pytest

from .cells import NOTHING, OVERTIME, REFUSED, SLEEPY, SPUN, Attempt, Cell, crash, gets_through, named, promises

NO_THREAD = "callback_error RuntimeError: can't start new thread"
TOO_MANY_THREADS = "policy_violation threads, limit 16 (limit threads)"

_RAW_THREADS = """
import _thread, threading, time
start = _thread.start_new_thread
start = getattr(start.__self__, '_start', start)  # Python's own, from behind the polite one
threading.stack_size(32768)
for _ in range(64):
    start(time.sleep, (9,))
time.sleep({linger})
v['got'] = 'threads'
"""

_SPAWN = "import os\nv['got'] = os.posix_spawn('/bin/true', ['true'], {})"  # a vfork that gives its child a stack

ATTEMPTS = {
    "a fork bomb is refused at its first fork": Attempt(
        "import os\nwhile True: os.fork()",
        REFUSED,
        control="import os\nfor _ in range(8): os.fork() or os._exit(0)\nv['got'] = 1",
    ),
    "a raw fork is refused": Attempt("import os\npid = call('fork')\npid or os._exit(0)\nv['got'] = pid", REFUSED),
    "a raw vfork is refused": Attempt("v['got'] = call('vfork')", REFUSED, control=_SPAWN),
    "a raw clone of a process is refused": Attempt(
        "import os\npid = call('clone', 17, 0, 0, 0, 0)\npid or os._exit(0)\nv['got'] = pid", REFUSED
    ),
    "a clone that shares memory and is no thread is refused": Attempt(
        "v['got'] = call('clone', 0x4111, 0, 0, 0, 0)", REFUSED, control=_SPAWN
    ),
    "clone3 is not there, so that its flags need not be seen": Attempt(
        """
        import ctypes, os
        request = (ctypes.c_uint64 * 8)(0, 0, 0, 0, 17)
        pid = call('clone3', request, 64)
        pid or os._exit(0)
        v['got'] = pid
        """,
        "callback_error OSError: [Errno 38]",
    ),
    "multiprocessing starts no process": Attempt(
        """
        import multiprocessing
        process = multiprocessing.get_context('fork').Process(target=print)
        process.start()
        v['got'] = process.pid
        """,
        {"AB": REFUSED, "C": "callback_error ModuleNotFoundError"},  # no file is read there, and few know this one
    ),
    "a thread bomb ends at the limit by an exception": Attempt(
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        NO_THREAD,
        control="import threading, time\n"
        "for _ in range(64): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\nv['got'] = 1",
    ),
    "a thread bomb that goes round Python's limit meets the kernel's or the supervisor's": Attempt(
        _RAW_THREADS.format(linger=3),
        {"root": NO_THREAD, "user": TOO_MANY_THREADS},
        control=_RAW_THREADS.format(linger=0),
    ),
    "a daemonised grandchild does not outlive the invocation: it is never born": Attempt(
        """
        import os, time
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.1)
                os.write(write, b'alive')
                time.sleep(60)
            os._exit(0)
        os.wait()
        v['got'] = os.read(read, 5).decode()
        """,
        REFUSED,
    ),
    "a session of its own is refused": Attempt(
        "import os\nif os.getpid() == os.getpgrp(): os.setpgid(0, os.getppid())\nos.setsid()\nv['got'] = 1", REFUSED
    ),
    "SIGSTOP to itself does not outlast the wall limit": Attempt(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        {"A": NOTHING, "BC": OVERTIME},  # the first process of a pid namespace cannot be stopped from inside
        limits=SLEEPY,
        end_of_control="SIGSTOP",
    ),
    "SIGSTOP through a thread does not outlast the wall limit": Attempt(
        "import os, signal, threading\nsignal.pthread_kill(threading.get_native_id() and threading.get_ident(), 19)",
        {"A": NOTHING, "BC": OVERTIME},
        limits=SLEEPY,
        end_of_control="SIGSTOP",
    ),
    "ignoring every signal does not outlast the wall limit": Attempt(
        """
        import signal, time
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        while True: time.sleep(60)
        """,
        OVERTIME,
        limits=SLEEPY,
        control="import os, signal\nsignal.signal(15, signal.SIG_IGN)\nos.kill(os.getpid(), 15)\nv['got'] = 'lived on'",
    ),
    "a sleep that swallows every exception does not outlast the wall limit": Attempt(
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
        OVERTIME,
        limits=SLEEPY,
        control="""
        import os, time
        try:
            os.kill(os.getpid(), 2)
            time.sleep(1)
        except BaseException:
            v['got'] = 'swallowed'
        """,
    ),
    "a spin that swallows every exception ends at the CPU limit": Attempt(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        SPUN,
        control="import os\ntry: os.kill(os.getpid(), 2)\nexcept BaseException: v['got'] = 'swallowed'",
    ),
    "a spin on sixteen threads ends at the CPU limit": Attempt(
        """
        import threading
        def spin():
            while True: pass
        for _ in range(16): threading.Thread(target=spin).start()
        """,
        SPUN,
        control="import threading\nfor _ in range(16): threading.Thread(target=sum, args=(range(99),)).start()\nv['got'] = 1",
    ),
    "a thread left behind does not delay the reply": Attempt(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        NOTHING,
        limits=SLEEPY,
        control="import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "v['got'] = threading.active_count() == 2",
    ),
    "exec of a shell is fatal and named": Attempt(
        "import os\nos.execv('/bin/sh', ['sh', '-c', 'exit 7'])", named("execve"), end_of_control="exit 7"
    ),
    "exec of the interpreter itself is fatal and named": Attempt(
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(7)'])",
        named("execve"),
        end_of_control="exit 7",
    ),
    "exec through a descriptor is fatal and named": Attempt(
        "import os\nfd = os.open(os.__file__, os.O_RDONLY) if os.path.exists(os.__file__) else 0\n"
        "call('execveat', -100, b'/bin/false', 0, 0, 0)",
        named("execveat"),
        end_of_control="exit 1",
    ),
    "subprocess starts nothing": Attempt(
        "import subprocess\nv['got'] = subprocess.run(['/bin/sh', '-c', 'echo hello'], capture_output=True).stdout.decode()",
        REFUSED,
    ),
    "posix_spawn starts nothing": Attempt(_SPAWN, REFUSED),
    "os.system starts nothing": Attempt("import os\nv['got'] = os.system('exit 0') == 0", NOTHING),
    "a program in memory (memfd) cannot even be made": Attempt(
        "import os\nfd = os.memfd_create('x')\nos.write(fd, b'#!/bin/false\\n')\nos.execve(fd, ['x'], {})",
        REFUSED,
        control="import os\nfd = os.memfd_create('x', 0)\nos.write(fd, b'#!/bin/sh\\nexit 7\\n')\nos.execve(fd, ['x'], {})",
        end_of_control="exit 7",
    ),
    "secret memory (memfd_secret) cannot be made": Attempt(
        "import os\ntry:\n    got = call('memfd_secret', 0)\nexcept OSError as e:\n    if e.errno != 38: raise\n"
        "    got = os.memfd_create('x')\nv['got'] = got",
        REFUSED,
    ),
    "a program written to tmp is not executed": Attempt(
        """
        import os
        with open('/tmp/program', 'w') as file: file.write('#!/bin/sh\\nexit 7\\n')
        os.chmod('/tmp/program', 0o777)
        os.execv('/tmp/program', ['program'])
        """,
        {"A": named("execve"), "BC": REFUSED},
        end_of_control="exit 7",
    ),
    "memory that can be written and executed is refused": Attempt(
        "import mmap\nv['got'] = len(mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))",
        REFUSED,
    ),
    "memory does not become executable later": Attempt(
        """
        import ctypes, mmap
        page = mmap.mmap(-1, 4096)
        at = ctypes.addressof(ctypes.c_char.from_buffer(page))
        v['got'] = call('mprotect', at, 4096, 5) == 0
        """,
        REFUSED,
    ),
    "a key-protected mprotect is no way round": Attempt(
        """
        import ctypes, mmap
        page = mmap.mmap(-1, 4096)
        at = ctypes.addressof(ctypes.c_char.from_buffer(page))
        v['got'] = call('pkey_mprotect', at, 4096, 5, -1) == 0
        """,
        REFUSED,
    ),
    "a personality under which reading is executing is fatal and named": Attempt(
        "v['got'] = call('personality', 0x0400000) >= 0", named("personality")
    ),
    "a null pointer is a crash of the sandbox alone": Attempt(
        "import ctypes\nctypes.string_at(0)", crash("SIGSEGV"), end_of_control="SIGSEGV"
    ),
    "abort is a crash of the sandbox alone": Attempt(
        "import os\nos.abort()",
        {"A": crash("SIGSEGV"), "BC": crash("SIGABRT")},  # the C library's second try, where the signal is not taken
        end_of_control="SIGABRT",
    ),
    "SIGKILL to itself is a crash of the sandbox alone": Attempt(
        "import os\nos.kill(os.getpid(), 9)",
        {"A": NOTHING, "BC": crash("SIGKILL")},  # nor can it be killed from inside
        end_of_control="SIGKILL",
    ),
}


@pytest.mark.parametrize("promise", promises(ATTEMPTS))
def test_it_is_contained(cell: Cell, promise):
    cell.contains(ATTEMPTS[promise])


@pytest.mark.parametrize("promise", promises(ATTEMPTS))
def test_unprotected_the_same_act_gets_through(promise):
    gets_through(ATTEMPTS[promise])


def test_a_sandbox_is_gone_soon_after_its_verdict(cell: Cell):
    for _ in range(5):
        cell.run("import threading, time\nfor _ in range(15): threading.Thread(target=time.sleep, args=(60,)).start()")
    end = time.monotonic() + 20  # and not the minute they would sleep
    while any(_threads(process) > 10 for process in psutil.Process(cell.pid).children(recursive=True)):
        assert time.monotonic() < end


def _threads(process: psutil.Process) -> int:
    try:
        return process.num_threads()
    except psutil.NoSuchProcess:
        return 0
