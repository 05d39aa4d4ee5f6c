"""Across invocations: what one leaves behind, the next never sees; what should differ, differs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from sandbox.contract import Limits
from sandbox.jail import Jail
from sandbox.settings import Settings

from .cells import REFUSED, Attempt, Cell, Ends, gets_through, named, promises, said

ROOMY = Limits(wall_s=10, cpu_s=3)


@dataclass(frozen=True)
class Trace:
    """`leave` something in one invocation; in the next, `look` puts what it finds into v['got']."""

    leave: str
    look: str
    left: Ends | dict[str, Ends] = "ok"  # how the first one ends


_TMPS = "('/tmp', '/var/tmp', '/dev/shm', '/run', '/private', '.', '/')"
_LEAVE_FILES = f"""
import contextlib, os
left = 0
for folder in {_TMPS}:
    with contextlib.suppress(OSError):
        fd = os.open(folder + '/hookpool-trace', os.O_CREAT | os.O_WRONLY)
        left += os.write(fd, b'trace') > 0
"""
# The control must not touch the machine's own files: where it has a file of its own, that one.
_A_FILE = "import os\npath = '/tmp/host.sock' if os.path.exists('/tmp/host.sock') else os.__file__\n"

TRACES = {
    "a module's attribute": Trace("import json\njson.trace = 1", "import json\nv['got'] = hasattr(json, 'trace')"),
    "a module of its own": Trace(
        "import sys, types\nsys.modules['trace_of_mine'] = types.ModuleType('x')",
        "import sys\nv['got'] = 'trace_of_mine' in sys.modules",
    ),
    "a patched function of the standard library": Trace(
        "import json\njson.dumps = print", "import json\nv['got'] = json.dumps is print"
    ),
    "a patched method of a class": Trace(
        "import string\nstring.Template.safe_substitute = lambda *_: 'mine'",
        "import string\nv['got'] = string.Template('x').safe_substitute() == 'mine'",
    ),
    "a builtin": Trace("import builtins\nbuiltins.trace = 1", "import builtins\nv['got'] = hasattr(builtins, 'trace')"),
    "an environment variable": Trace(
        "import os\nos.environ['TRACE'] = '1'", "import os\nv['got'] = 'TRACE' in os.environ"
    ),
    "an environment variable of the C library": Trace(
        "import ctypes\nctypes.CDLL(None).setenv(b'TRACE', b'1', 1)",
        "import ctypes\nv['got'] = bool(ctypes.CDLL(None).getenv(b'TRACE'))",
    ),
    "a seed": Trace(
        "import random\nrandom.seed(4)", "import random\nv['got'] = random.random() == 0.23604808973743452"
    ),
    "a decimal context": Trace(
        "import decimal\ndecimal.getcontext().prec = 3\ndecimal.DefaultContext.prec = 3",
        "import decimal\nv['got'] = str(decimal.Decimal(1) / 3) == '0.333'",
    ),
    "a warnings filter": Trace(
        "import warnings\nwarnings.filterwarnings('error', 'trace')",
        "import warnings\nv['got'] = any(f[1] and f[1].match('trace') for f in warnings.filters)",
    ),
    "an exit function": Trace(
        "import atexit\nbefore = atexit._ncallbacks()\nfor _ in range(77): atexit.register(print)",
        "import atexit\nv['got'] = atexit._ncallbacks() >= 77",
    ),
    "a timer": Trace(
        "import threading\ntimer = threading.Timer(30, print)\ntimer.name = 'trace'\ntimer.daemon = True\ntimer.start()",
        "import threading\nv['got'] = any(t.name == 'trace' for t in threading.enumerate())",
    ),
    "a signal's action": Trace(
        "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "import signal\nv['got'] = signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN",
    ),
    "a logging level": Trace(
        "import logging\nlogging.getLogger('trace').setLevel(7)",
        "import logging\nv['got'] = logging.getLogger('trace').level == 7",
    ),
    "an error handler of codecs": Trace(
        "import codecs\ncodecs.register_error('trace', lambda e: ('', e.end))",
        "import codecs\ntry: v['got'] = bool(codecs.lookup_error('trace'))\nexcept LookupError: pass",
    ),
    "a way to copy": Trace(
        "import copyreg\ncopyreg.dispatch_table[range] = 1",
        "import copyreg\nv['got'] = range in copyreg.dispatch_table",
    ),
    "a recursion limit": Trace(
        "import sys\nsys.setrecursionlimit(777)", "import sys\nv['got'] = sys.getrecursionlimit() == 777"
    ),
    "a context variable": Trace(
        "import contextvars\ncontextvars.trace = contextvars.ContextVar('t', default=1)",
        "import contextvars\nv['got'] = bool(getattr(contextvars, 'trace', None))",
    ),
    "an object kept alive": Trace(
        "import gc\nclass Trace: pass\nkept = Trace()\nkept.me = kept\ngc.disable()",
        "import gc\nv['got'] = any(type(o).__name__ == 'Trace' for o in gc.get_objects())",
    ),
    "bytes in freed memory": Trace(
        "marker = ('TR' + 'ACE-IN-MEMORY').encode() * 20000\nkeep = [bytearray(marker) for _ in range(8)]\n"
        "import gc\ngc.trace = keep",
        "import gc\nmarker = ('TR' + 'ACE-IN-MEMORY').encode()\n"
        "v['got'] = any(marker in bytes(o) for o in gc.get_objects() if type(o) is bytearray) or "
        "any(marker in o for o in getattr(gc, 'trace', ()))",
    ),
    "a name in a cache": Trace(
        "import re\nre.trace = re.compile('trace')", "import re\nv['got'] = hasattr(re, 'trace')"
    ),
    "files in every tmp": Trace(
        _LEAVE_FILES + "v['left'] = left",
        f"import os\nv['got'] = [f for f in {_TMPS} if os.path.exists(f + '/hookpool-trace')]",
    ),
    "a link, a folder and a pipe in tmp": Trace(
        "import contextlib, os\nfor act in (lambda: os.mkdir('/tmp/trace-d'), lambda: os.symlink('/', '/tmp/trace-l')):\n"
        "    with contextlib.suppress(OSError): act()",
        "import os\nv['got'] = [n for n in ('/tmp/trace-d', '/tmp/trace-l') if os.path.lexists(n)]",
    ),
    "a temporary file": Trace(
        "import contextlib, tempfile\nwith contextlib.suppress(OSError): tempfile.mkstemp(prefix='hookpool-trace')",
        "import glob, tempfile\nv['got'] = glob.glob('/tmp/hookpool-trace*')",
    ),
    "a working directory": Trace(
        "import contextlib, os\nwith contextlib.suppress(OSError): os.chdir(os.path.dirname(os.__file__))",
        "import os\nv['got'] = os.getcwd() == os.path.dirname(os.__file__)",
    ),
    "the times of a file of the standard library": Trace(
        f"{_A_FILE}os.utime(path, (77, 77))",
        f"{_A_FILE}try: v['got'] = int(os.stat(path).st_mtime) == 77\nexcept OSError: pass",
        {"A": "callback_error OSError: [Errno 30]", "BC": REFUSED},
    ),
    "shared memory of System V": Trace(
        "v['left'] = call('shmget', 0x5EED, 4096, 0o1666) >= 0",
        "try: v['got'] = call('shmget', 0x5EED, 4096, 0o666) >= 0\nexcept OSError: pass",
        REFUSED,
    ),
    "a message queue of System V": Trace(
        "v['left'] = call('msgget', 0x5EED, 0o1666) >= 0",
        "try: v['got'] = call('msgget', 0x5EED, 0o666) >= 0\nexcept OSError: pass",
        REFUSED,
    ),
    "semaphores of System V": Trace(
        "v['left'] = call('semget', 0x5EED, 1, 0o1666) >= 0",
        "try: v['got'] = call('semget', 0x5EED, 1, 0o666) >= 0\nexcept OSError: pass",
        REFUSED,
    ),
    "a message queue of POSIX": Trace(
        "v['left'] = call('mq_open', b'trace', 0o102, 0o666, 0) >= 0",
        "try: v['got'] = call('mq_open', b'trace', 2, 0, 0) >= 0\nexcept OSError: pass",
        REFUSED,
    ),
    "shared memory with a name": Trace(
        "import _posixshmem, os\nv['left'] = _posixshmem.shm_open('/trace', os.O_CREAT | os.O_RDWR, 0o666) >= 0",
        "import _posixshmem, os\ntry: v['got'] = _posixshmem.shm_open('/trace', os.O_RDWR, 0o666) >= 0\nexcept OSError: pass",
        {"A": "callback_error FileNotFoundError", "B": REFUSED, "C": REFUSED},
    ),
    "a key in a keyring": Trace(
        "v['left'] = call('add_key', b'user', b'trace', b'secret', 6, -2) > 0",
        "import contextlib\nv['got'] = call('keyctl', 10, -2, b'user', b'trace', 0) > 0",
        named("add_key"),
    ),
    "a lock on a file of the standard library (flock)": Trace(
        "import fcntl, os\nfcntl.trace = os.open(os.__file__, os.O_RDONLY) if os.path.exists(os.__file__) else 0\n"
        "fcntl.flock(fcntl.trace, fcntl.LOCK_EX)",
        "import fcntl, os\nfd = os.open(os.__file__, os.O_RDONLY) if os.path.exists(os.__file__) else 0\n"
        "try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept BlockingIOError: v['got'] = 'locked'",
        REFUSED,
    ),
    "a lock on a descriptor that is shared (open file description)": Trace(
        "import fcntl, os, struct\nfd = os.open(os.__file__, os.O_RDONLY) if os.path.exists(os.__file__) else 0\nfcntl.trace = fd\n"
        "fcntl.fcntl(fd, 37, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0))",
        "import fcntl, struct\nv['got'] = hasattr(fcntl, 'trace')",
        REFUSED,
    ),
    "a flag of the descriptors it was born with": Trace(
        "import contextlib, fcntl, os\nfor fd in range(9):\n    with contextlib.suppress(OSError):\n"
        "        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_RDWR)\nv['left'] = 1",
        "import contextlib, fcntl, os\nflags = 0\nfor fd in range(9):\n    with contextlib.suppress(OSError):\n"
        "        flags |= fcntl.fcntl(fd, fcntl.F_GETFL)\nv['got'] = flags & os.O_APPEND",
    ),
    "a lease on a file of the standard library": Trace(
        "import fcntl, os\nfd = os.open(os.__file__, os.O_RDONLY) if os.path.exists(os.__file__) else 0\nfcntl.trace = fd\n"
        "fcntl.fcntl(fd, fcntl.F_GETLEASE)",
        "import fcntl\nv['got'] = hasattr(fcntl, 'trace')",
        REFUSED,
    ),
}


@pytest.mark.parametrize("what", TRACES)
def test_the_next_invocation_sees_nothing_of(cell: Cell, what):
    trace = TRACES[what]
    first = cell.run(trace.leave)
    wanted = cell.wanted(Attempt("", trace.left))
    assert any(said(first).startswith(w.partition(" ")[0]) and w.partition(" ")[2] in said(first) for w in wanted), (
        said(first)
    )
    for _ in range(3):  # the first of them may have been waiting already, the last was born after
        after = cell.run(trace.look)
        assert not after.state_delta.set.get("got"), said(after)
        assert after.ok or "PermissionError" in after.detail or after.status == "policy_violation", said(after)
    cell.unharmed()


@pytest.mark.parametrize(
    "what", [what for what in TRACES if what in promises({k: Attempt(t.leave + t.look, "") for k, t in TRACES.items()})]
)
def test_in_one_process_the_next_would_see(what):
    trace = TRACES[what]
    gets_through(Attempt(f"{trace.leave}\nv['left'] = 1\n{trace.look}", "ok"))


DRAWN = {
    "random": "random.random()",
    "a list of random numbers": "random.sample(range(10**6), 3)",
    "system random": "random.SystemRandom().random()",
    "uuid1": "str(uuid.uuid1())",
    "uuid4": "str(uuid.uuid4())",
    "os.urandom": "os.urandom(8).hex()",
    "secrets": "secrets.token_hex(8)",
    "OpenSSL's random bytes": "ssl.RAND_bytes(8).hex()",
    "numpy's random numbers": "float(numpy.random.random())",
    "the name of a temporary file": "next(tempfile._get_candidate_names())",
    "the key of multiprocessing": "multiprocessing.current_process().authkey.hex()",
}


@pytest.mark.parametrize("what", DRAWN)
def test_children_of_one_zygote_draw_their_own(cell: Cell, what):
    module = DRAWN[what].removeprefix("str(").removeprefix("float(").removeprefix("next(").partition(".")[0]
    drawn = [cell.run(f"import {module}\nv['x'] = {DRAWN[what]}", ROOMY) for _ in range(4)]
    assert all(verdict.ok for verdict in drawn), said(drawn[0])
    values = [str(verdict.state_delta.set["x"]) for verdict in drawn]
    assert len(set(values)) == len(values), values


def test_two_at_the_same_time_share_no_tmp(world):
    """In tier A, the only one that has a tmp."""
    writes = "import time\nopen('/tmp/sibling', 'w').write('x')\ntime.sleep(0.4)"
    looks = "import os, time\ntime.sleep(0.2)\nv['seen'] = os.listdir('/tmp')"
    with Jail(Settings(force_tier="A")) as jail, ThreadPoolExecutor(2) as threads:
        cell = Cell("A", "A", jail, os.getpid(), world)
        first, second = threads.map(cell.run, (writes, looks))
    assert first.ok, said(first)
    assert "sibling" not in second.state_delta.set["seen"]  # where a library lies below /tmp, that is all there is


def test_the_body_of_an_earlier_job_is_nowhere_in_memory(cell: Cell):
    """Every sandbox is a fork of a process that has never seen a job."""
    marker = "earlier-tenant"
    cell.run(f"v['x'] = {marker!r}", variables={"secret": marker * 3})
    seen = cell.run(
        "import gc\nword = 'earlier-' + 'tenant'\nv['got'] = [1 for o in gc.get_objects() if type(o) is dict and word in str(o)[:10**5]]"
    )
    assert not seen.state_delta.set.get("got"), said(seen)
