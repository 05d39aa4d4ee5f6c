"""Keeps an embedded pool's processes, and ends them: a program of its own, standard library only.

    embedding process --stdin--> keeper --+-- server
                      <-stdout--          +-- worker ...

Theory of operation. Nothing may outlive the process that embeds a pool, however that one ends. It
cannot see to that itself when it is killed, and a parent-death signal set by it would hang on the
thread that started the child, not on the process. So it starts this one, in a session of its own
(a terminal's Ctrl-C does not come here), and holds a pipe to it. The pipe's end is the order to
end: workers are asked, then killed, then the server is killed, then the directory is removed. The
keeper is single-threaded, so its children can be bound to it by a parent-death signal: if it is
killed itself, they are too, and only the directory stays.

It says one line of JSON for each child that ends before the order: {"name": ..., "status": ...}. A
line it is told is the name of such a child, to be started again.

    python -I -S keeper.py '{"directory": ..., "grace_s": ..., "children": {name: [command, ...]}}'
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

SERVER = "server"
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Until stdin ends."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in order["children"].items():
            children[name] = start(name, command, order["directory"])
        watch(children, order)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        end(children, order["grace_s"])
        shutil.rmtree(order["directory"], ignore_errors=True)


def start(name: str, command: list[str], directory: str) -> subprocess.Popen[bytes]:
    """A child that dies with this process, its output in NAME.log."""
    libc = ctypes.CDLL(None)
    keeper = os.getpid()

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died between the fork and the line above
            os._exit(1)

    with open(os.path.join(directory, f"{name}.log"), "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=bind,  # noqa: PLW1509  # one thread here
        )


def watch(children: dict[str, subprocess.Popen[bytes]], order: dict[str, Any]) -> None:
    """Report ends, and start again what we are told to, until stdin is at its own."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    names: dict[int, str] = {}

    def look_after(name: str) -> None:
        pidfd = os.pidfd_open(children[name].pid)
        poller.register(pidfd, select.POLLIN)
        names[pidfd] = name

    for name in children:
        look_after(name)
    told = b""
    while True:
        for fd, _ in poller.poll():
            if fd == 0:
                said = os.read(0, 4096)
                if not said:
                    return
                *lines, told = (told + said).split(b"\n")
                for name in map(bytes.decode, lines):
                    children[name] = start(name, order["children"][name], order["directory"])
                    look_after(name)
            else:
                poller.unregister(fd)
                os.close(fd)
                line = {"name": names[fd], "status": children[names[fd]].wait()}
                os.write(1, json.dumps(line).encode() + b"\n")


def end(children: dict[str, subprocess.Popen[bytes]], grace_s: float) -> None:
    """Workers first, so that they do not miss their server."""
    workers = [child for name, child in children.items() if name != SERVER]
    for child in workers:
        child.terminate()
    until = time.monotonic() + grace_s
    for child in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, until - time.monotonic()))
    for child in children.values():
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
