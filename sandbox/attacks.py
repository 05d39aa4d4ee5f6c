"""Ten things hostile code tries first, as callbacks: what `doctor` runs in real sandboxes.

Each source ends in a return of what it got, or in an exception when it was stopped; a killed
sandbox is a stop as well. These are a sample a person can read; `tests/escape` has them all.
"""

from __future__ import annotations

ATTACKS: dict[str, str] = {
    "reads a host file": "return open('/etc/shadow').read()",
    "reads this process's environment": "return open('/proc/1/environ', 'rb').read() + open('/proc/self/environ').read()",
    "opens a network connection": "import socket\nreturn repr(socket.create_connection(('127.0.0.1', 6379), 1))",
    "opens a raw socket": "import socket\nreturn repr(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
    "starts a process": "import subprocess\nreturn subprocess.check_output(['/bin/sh', '-c', 'id'])",
    "forks": "import os\nreturn os.fork()",
    "replaces itself with a shell": "import os\nos.execv('/bin/sh', ['/bin/sh', '-c', 'true'])",
    "leaves its namespaces": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0\nreturn 'unshared'",
    "traces another process": "import ctypes\nassert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0\nreturn 'attached'",
    "signals everybody": "import os\nos.kill(-1, 9)\nreturn 'signalled'",
}


def source(body: str) -> str:
    """An attack as the text of a before_agent callback."""
    return "def before_agent_callback(callback_context):\n" + "".join(f"    {line}\n" for line in _kept(body))


def _kept(body: str) -> list[str]:
    """The body's lines, with what it returns kept as a variable: a returned string is no Content."""
    return [
        f"callback_context.variables['got'] = repr({line.removeprefix('return ')})"
        if line.startswith("return ")
        else line
        for line in body.splitlines()
    ]
