"""The zygote: a small single-threaded fork server, and the life of each child it forks.

It is started by file name with `-I -S`, an empty environment, /dev/null for standard streams and one
socket, whose number and the rest of its orders are JSON in argv. In order:

    namespaces (tier A) -> preload -> own root (tier A) -> prepare and prove the lockdown -> serve

On the control socket (SEQPACKET, one message each):
    worker -> zygote   `F<serial>` with a channel to fork a child for
    zygote -> worker   {"unshared"}; {"ready": layers, "missing": ...}; {"failed": text};
                       {"exit": serial, "code": waitstatus}; {"unborn": serial, "why": text}
End of file there ends the zygote, and with it, in tier A, everything in its pid namespace.

A child is locked down, warms itself by running a harmless callback, then waits for its one job on
its channel. It answers, and is killed: no child ever runs twice.

Frames on a channel are a tag byte and a payload (`sandbox.codec.frame`):
    worker -> child  P code  J job  V Return        child -> worker  O stdout  E stderr  C Call  R reply
                                                    B begun  N a package this flavour lacks
"""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import signal
import socket
import sys

TYPE_CHECKING = False  # typing itself is imported later, with everything else
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandbox.guest.lockdown import Plan


def main() -> None:
    """Become a zygote. Never returns."""
    orders = json.loads(sys.argv[1])
    control = socket.socket(fileno=orders["control"])
    os.environ.clear()
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    sys.path.append(orders["code"])
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        home = _enter(orders, control)
        zygote = _prepare(orders, home)
    except Exception as error:  # whatever it was, the worker must hear of it
        _tell(control, failed=f"{type(error).__name__}: {error}")
        os._exit(1)
    os.dup2(1, 2)
    _tell(control, ready=[layer.name for layer in zygote.plan.layers], missing=zygote.plan.missing)
    zygote.serve(control)
    os._exit(0)


def _tell(control: socket.socket, **message: object) -> None:
    control.send(json.dumps(message).encode())


def _enter(orders: dict[str, Any], control: socket.socket) -> int | None:
    """Tier A's namespaces. The process that goes on is pid 1 of its own; its parent only waits.

    The uid map of a range can only be written from outside, so the worker does it when told.
    Returns a descriptor of the pid namespace, to come back to after each fork.
    """
    if orders["tier"] != "A":
        return None
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
    from sandbox.kernel import calls

    calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


def _prepare(orders: dict[str, Any], home: int | None) -> Zygote:
    from sandbox.guest import lockdown, preload, proof
    from sandbox.policy import naming_filter

    preload.preload(orders["code"], orders["packages"], orders["heavy"])
    _quiet()
    readable = orders["readable"]
    bound = dict(zip(readable, readable, strict=True)) if home is None else lockdown.enter_root(readable)
    fork = functools.partial(_fork, home)
    plan = lockdown.prepare(orders["tier"], bound, named=proof.can_name(naming_filter(), fork))
    proof.prove(plan, fork, readable)
    if lost := [layer.name for layer in lockdown.LAYERS if layer.required and layer.name in plan.missing]:
        raise OSError(0, "; ".join(f"{name}: {plan.missing[name]}" for name in lost))
    return Zygote(plan, fork, orders["elsewhere"])


def _fork(home: int | None) -> int:
    """Fork; where `home` is this process's pid namespace, the child is pid 1 of a new one."""
    if home is None:
        return os.fork()
    from sandbox.kernel import calls

    calls.unshare(calls.CLONE_NEWPID)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid:
            calls.setns(home, calls.CLONE_NEWPID)
    return pid


def _quiet() -> None:
    """Nothing inherited from this process may be rewritten in the children by reference counts or gc."""
    gc.collect()
    gc.disable()
    gc.freeze()


class Zygote:
    """Forks on request and reports who ended how. One thread, no user code, no waiting on a child."""

    def __init__(self, plan: Plan, fork: Callable[[], int], elsewhere: list[str]) -> None:
        self.plan = plan
        self._elsewhere = elsewhere
        self._fork = fork
        self._pid = os.getpid()
        self._alive: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, serial)
        self._epoll = select.epoll()

    def serve(self, control: socket.socket) -> None:
        """Until end of file on `control`."""
        from sandbox.kernel import calls

        self._epoll.register(control, select.EPOLLIN)
        while True:
            for fd, _event in self._epoll.poll():
                if fd != control.fileno():
                    self._bury(fd, control)
                    continue
                data, fds = calls.receive_fds(control, 64)
                if not data:
                    return
                self._bear(int(data[1:]), fds[0], control)
                os.close(fds[0])

    def _bear(self, serial: int, channel: int, control: socket.socket) -> None:
        try:
            pid = self._fork()
        except OSError as error:
            _tell(control, unborn=serial, why=f"fork: {error.strerror}")
            return
        if pid == 0:
            from sandbox.guest import child, lockdown

            seat = lockdown.Seat(self.plan, serial, 0 if self.plan.tier == "A" else self._pid)
            child.live(seat, channel, self._elsewhere)
        pidfd = os.pidfd_open(pid)
        self._alive[pidfd] = (pid, serial)
        self._epoll.register(pidfd, select.EPOLLIN)

    def _bury(self, pidfd: int, control: socket.socket) -> None:
        pid, serial = self._alive.pop(pidfd)
        self._epoll.unregister(pidfd)
        os.close(pidfd)
        _tell(control, exit=serial, code=os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main()
