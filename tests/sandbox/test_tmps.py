"""A private tmp is used again only where nobody could tell that somebody was there before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.jail import Jail
from sandbox.zygote import readable_paths

from .conftest import Bench, settings

ROOT = Path(__file__).parents[2]

# In mounts of its own: make one, act there in another process, and ask.
ACT = """
import os, sys
from sandbox.guest import tmps
from sandbox.kernel import calls
os.unshare(os.CLONE_NEWNS | (os.CLONE_NEWUSER if os.geteuid() else 0))
calls.mount(None, "/", None, calls.MS_REC | calls.MS_PRIVATE)
tmps.PRIVATE, tmps.TMP = os.path.split(sys.argv[1])[0], sys.argv[1]
one = tmps.Tmp(os.open("/proc/self/ns", os.O_PATH), {{}})
assert one.untouched() and one.untouched()
pid = os.fork()
if not pid:
    calls.setns(one.mounts, calls.CLONE_NEWNS)
    os.chdir(tmps.TMP)
    {act}
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(one.untouched())
"""
LOOKING = {
    "nothing": "pass",
    "looking": "assert os.listdir('.') == [] and os.stat('.').st_mode and os.statvfs('.').f_bavail",
    "a file that is refused": "import contextlib\n    with contextlib.suppress(FileNotFoundError): open('none')",
}
TOUCHING = {
    "a file": "open('a', 'w').write('a')",
    "a file that is gone": "open('a', 'w'); os.unlink('a')",
    "a file without a name": "os.open('.', os.O_TMPFILE | os.O_RDWR)",
    "a folder that is gone": "os.mkdir('a'); os.rmdir('a')",
    "a link that is gone": "os.symlink('a', 'b'); os.unlink('b')",
    "a pipe that is gone": "os.mkfifo('a'); os.unlink('a')",
    "the time now": "import time; time.sleep(0.05); os.utime('.')",
    "another time": "os.utime('.', (1, 1))",
    "another mode": "os.chmod('.', 0o700)",
    "as many files as there can be": """
    try:
        for number in range(2000): os.close(os.open(str(number), os.O_CREAT))
    except OSError: pass
    for name in os.listdir('.')[1:]: os.unlink(name)
    """,
    "all of its room": """
    try:
        with open('a', 'wb', 0) as file:
            while file.write(bytes(1 << 20)): pass
    except OSError: pass
    """,
}


@pytest.mark.parametrize(
    ("act", "untouched"),
    [*((act, "True") for act in LOOKING.values()), *((act, "False") for act in TOUCHING.values())],
    ids=[*LOOKING, *TOUCHING],
)
def test_one_that_was_touched_says_so(tmp_path, act, untouched):
    (tmp_path / "tmp").mkdir()
    run = [sys.executable, "-c", ACT.format(act=act), str(tmp_path / "tmp")]
    assert subprocess.run(run, capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip() == untouched


WHICH = "import os\nv['which'] = [os.stat('/tmp').st_dev, os.stat('/tmp').st_ctime_ns]\n"


@pytest.mark.parametrize("touch", ["open('/tmp/a', 'w')", "os.close(os.open('/tmp', os.O_TMPFILE | os.O_RDWR))"])
def test_nobody_comes_where_somebody_has_left_a_trace(touch):
    with Jail(settings("A", waiting=1)) as jail:
        bench = Bench(jail)
        untouched = [bench.run(WHICH).variables["which"] for _ in range(6)]
        touched = [bench.run(WHICH + touch).variables["which"] for _ in range(6)]
    below = any(path.startswith("/tmp/") for path in readable_paths("plain"))  # then folders are in it from the first
    assert (len({*map(tuple, untouched)}) < 6) is not below, "control: they are used again"
    assert len({*map(tuple, touched)}) == 6
