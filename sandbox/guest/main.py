"""The zygote: a small single-threaded fork server, and the life of each child it forks.

It is started by file name with `-I -S`, an empty environment, /dev/null for standard streams and one
socket, whose number and the rest of its orders are JSON in argv. In order:

    namespaces, and this file anew in them (tier A) -> preload -> own root (tier A) -> prepare and prove the
    lockdown -> serve

On the control socket (SEQPACKET, one message each):
    worker -> zygote   `<serial>` with a channel to fork a child for; `<serial>` alone to hear of its end
    zygote -> worker   {"unshared"}; {"ready": layers, "missing": ...}; {"failed": text};
                       {"exit": serial, "code": waitstatus, "cpu_s": seconds}; {"unborn": serial, "why": text}
End of file there ends the zygote, and with it, in tier A, everything in its pid namespace.

A child is locked down, then waits for its one job on its channel; told to warm up, it runs a
harmless callback first. It answers, and is killed: no child ever runs twice.

Frames on a channel are a tag byte and a payload (`sandbox.codec.frame`):
    worker -> child  W warm up  P code  J job  V Return  H history
    child -> worker  K the code, compiled  O stdout  E stderr  C Call  H ask  R reply  N a package this flavour lacks
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False  # typing itself is imported later, with everything else
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main() -> None:
    """Become a zygote. Never returns."""
    orders = json.loads(sys.argv[1])
    control = socket.socket(fileno=orders["control"])
    environment = dict(os.environ)
    _PINS.extend(_one_stretch())
    os.register_at_fork = _nothing_at_fork
    os.environ.clear()
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    sys.path.append(orders["code"])
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _give_way()
    with open("/proc/self/comm", "w", encoding="ascii") as name:  # how `ps` and `top` show it and its children
        name.write("hookpool-zygote")

    try:
        if orders["tier"] == "A" and "inside" not in orders:
            _go_inside(orders, control, environment)
        pids = _inside() if orders["tier"] == "A" else None
        from sandbox.guest import preload

        preload.preload(orders["code"], orders["packages"], orders["heavy"])
        from sandbox.guest import forks

        zygote = forks.prepare(orders, pids)
    except Exception as error:  # whatever it was, the worker must hear of it
        _tell(control, failed=f"{type(error).__name__}: {error}")
        os._exit(1)
    os.dup2(1, 2)
    _tell(control, ready=[layer.name for layer in zygote.plan.layers], missing=zygote.plan.missing)
    try:
        zygote.serve(control)
    finally:  # whatever it was: there is no stream left to say it on, and the worker sees the end
        os._exit(1)


def _give_way() -> None:
    """Neither this process nor a child takes a core from another by waking up: their supervisor goes first.

    Else a child that is killed ends on the core of who killed it, and what it came to waits for that. Code
    cannot change it back. It is for speed alone, so a kernel that refuses is not an error.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        pass


def _nothing_at_fork(**_: object) -> None:
    """Instead of `os.register_at_fork`, before anything is imported that calls it.

    What modules do after a fork costs a third of it. Of it all, a child needs new seeds, and takes them itself.
    """


def _one_stretch() -> list[bytes]:
    """Make CPython's allocator take the room for what will be imported now, side by side.

    Taken bit by bit it would lie in pieces between the libraries, too small for huge pages (see
    `mappings`). What is returned keeps the allocator from giving the room back.
    """
    blocks = [bytes(_BLOCK) for _ in range(_STRETCH // _BLOCK)]
    return blocks[:: 512 * 1024 // _BLOCK]


_STRETCH, _BLOCK = 11 * 1024 * 1024, 479  # less than the plain flavour comes to
_PINS: list[bytes] = []


def _tell(control: socket.socket, **message: object) -> None:
    control.send(json.dumps(message).encode())


def _go_inside(orders: dict[str, Any], control: socket.socket, environment: dict[str, str]) -> NoReturn:
    """Tier A's namespaces. The process that goes on is pid 1 of its own; its parent only waits.

    The uid map of a range can only be written from outside, so the worker does it when told. What goes
    on starts this file anew: memory that came through a fork is never wholly its own to the kernel,
    which keeps it in smaller pieces and has more to copy at each fork that follows.
    """
    from sandbox.guest import lockdown

    lockdown.enter_namespaces()
    _tell(control, unshared=os.getpid())
    if control.recv(16) != b"mapped":
        raise OSError(0, "the worker could not map uids")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    pid = os.fork()
    if pid:
        control.close()
        os.waitpid(pid, 0)
        os._exit(0)
    again = [*sys.orig_argv[:-1], json.dumps(orders | {"inside": True})]
    os.execve(sys.executable, again, environment)  # noqa: S606  # our own interpreter and file


def _inside() -> int:
    """There: a descriptor of the pid namespace, to come back to after each fork."""
    from sandbox.kernel import calls

    calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


if __name__ == "__main__":
    main()
