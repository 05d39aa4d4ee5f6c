"""The fork loop: what a zygote is once everything is imported."""

from __future__ import annotations

import functools
import json
import os
import select
from typing import TYPE_CHECKING, Any

from sandbox.guest import child, lockdown, mappings, proof, shared
from sandbox.kernel import calls
from sandbox.policy import naming_filter

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from sandbox.guest.lockdown import Plan


def prepare(orders: dict[str, Any], home: int | None) -> Zygote:
    """Its own root (tier A), the plan of the lockdown, and the proof that it holds.

    Raises OSError with the step where this host does not allow the tier.
    """
    readable = orders["readable"]
    maps = mappings.opened()
    bound = dict(zip(readable, readable, strict=True)) if home is None else lockdown.enter_root(readable)
    fork = functools.partial(_fork, home)
    plan = lockdown.prepare(orders["tier"], bound, named=proof.can_name(naming_filter(), fork))
    proof.prove(plan, fork, readable)
    if lost := [layer.name for layer in lockdown.LAYERS if layer.required and layer.name in plan.missing]:
        raise OSError(0, "; ".join(f"{name}: {plan.missing[name]}" for name in lost))
    shared.share(plan, once=(child.__name__, __name__))
    mappings.merge(maps)
    mappings.collapse(maps)
    mappings.let_go(maps)
    maps.close()
    zygote = Zygote(plan, fork, orders["elsewhere"])
    shared.clear_ground()
    return zygote


def _fork(home: int | None) -> int:
    """Fork; where `home` is this process's pid namespace, the child is pid 1 of a new one."""
    if home is None:
        return calls.fork()
    calls.unshare(calls.CLONE_NEWPID)
    pid = -1
    try:
        pid = calls.fork()
    finally:
        if pid:
            calls.setns(home, calls.CLONE_NEWPID)
    return pid


def tell(control: socket.socket, **message: object) -> None:
    """One message to the worker."""
    control.send(json.dumps(message).encode())


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
        self._epoll.register(control, select.EPOLLIN)
        while True:
            for fd, _event in self._epoll.poll():
                if fd != control.fileno():
                    self._bury(fd, control)
                    continue
                data, fds = calls.receive_fds(control, 64)
                if not data:
                    return
                self._bear(int(data), fds[0], control)
                os.close(fds[0])

    def _bear(self, serial: int, channel: int, control: socket.socket) -> None:
        try:
            pid = self._fork()
        except OSError as error:
            tell(control, unborn=serial, why=f"fork: {error.strerror}")
            return
        if pid == 0:
            seat = lockdown.Seat(self.plan, serial, 0 if self.plan.tier == "A" else self._pid)
            child.live(seat, channel, self._elsewhere)
        pidfd = os.pidfd_open(pid)
        self._alive[pidfd] = (pid, serial)
        self._epoll.register(pidfd, select.EPOLLIN)

    def _bury(self, pidfd: int, control: socket.socket) -> None:
        pid, serial = self._alive.pop(pidfd)
        self._epoll.unregister(pidfd)
        os.close(pidfd)
        tell(control, exit=serial, code=os.waitpid(pid, 0)[1])
