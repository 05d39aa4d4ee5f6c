"""The fork loop: what a zygote is once everything is imported."""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from sandbox.guest import chain, child, imports, lockdown, mappings, proof, shared, tmps
from sandbox.guest.tmps import Tmps
from sandbox.kernel import calls
from sandbox.policy import naming_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.guest.child import Home
    from sandbox.guest.lockdown import Plan
    from sandbox.guest.tmps import Tmp


ONCE = (__name__, child.__name__, lockdown.__name__, tmps.__name__, calls.__name__)
"""Modules with code that a child runs and the zygote cannot."""

ENDS_KEPT = 256
"""How many children ago one may have ended whose end is still known."""

REHEARSED = 8
"""Children forked to none but the loop's own use: bytecode is specialized by then."""


def prepare(orders: dict[str, Any], pids: int | None) -> Zygote:
    """Its own root (tier A), the plan of the lockdown, and the proof that it holds.

    Raises OSError with the step where this host does not allow the tier.
    """
    calls.open_many_files()
    readable, hidden = orders["readable"], orders["hidden"]
    maps, devices, namespaces = mappings.opened(), lockdown.folder("/dev"), lockdown.folder("/proc/self/ns")
    own = None
    if pids is None:
        bound = dict(zip(readable, readable, strict=True))
    else:
        bound, hidden = lockdown.enter_root(readable, hidden), []
        own = Tmps(namespaces, tmps.lower(bound))
    fork = functools.partial(_fork, pids)
    plan = lockdown.prepare(orders["tier"], bound, hidden, devices, named=proof.can_name(naming_filter(), fork))
    tmp = own.take() if own else None
    proof.prove(plan, fork, readable, tmp.mounts if tmp else -1)
    if own and tmp:
        own.give_back(tmp)
    if lost := [layer.name for layer in lockdown.LAYERS if layer.required and layer.name in plan.missing]:
        raise OSError(0, "; ".join(f"{name}: {plan.missing[name]}" for name in lost))
    imports.close_doors()
    home = child.furnish(plan, orders["elsewhere"])
    shared.share(functools.partial(child.drill, plan, home), ONCE, maps)
    zygote = Zygote(plan, pids, own, home)
    zygote.rehearse()
    mappings.merge(maps)
    mappings.collapse(maps)
    mappings.thicken(maps)
    mappings.let_go(maps)
    zygote.old = mappings.spans(maps)
    maps.close()
    return zygote


def _fork(pids: int | None) -> int:
    """Fork; where `pids` is this process's pid namespace, the child is pid 1 of a new one."""
    if pids is None:
        return calls.fork()
    calls.unshare(calls.CLONE_NEWPID)
    pid = -1
    try:
        pid = calls.fork()
    finally:
        if pid:
            calls.setns(pids, calls.CLONE_NEWPID)
    return pid


class Zygote:
    """Forks on request and says who ended how, if asked. One thread, no user code, no waiting on a child.

    What it writes between two forks is copied, page by page, and breaks huge pages that children
    share: its loop makes few objects.
    """

    def __init__(self, plan: Plan, pids: int | None, tmps: Tmps | None, home: Home) -> None:
        """In tier A, `pids` is this process's own pid namespace, where each child gets another, and each has one of
        `tmps`.
        """
        self.plan = plan
        self.old: Sequence[range] = ()  # addresses where nothing is written any more from when it serves
        self._pids = pids
        self._tmps = tmps
        self._home = home
        self._pid = os.getpid()
        self._epoll = select.epoll()
        self._begin()

    def _begin(self) -> None:
        """With lists, which are written in place where a dict moves as it grows."""
        self._alive: list[tuple[int, int, int, Tmp | None]]  # pidfd, pid, serial
        self._ended: list[tuple[int, int, float]]  # serial, waitstatus, seconds of CPU; where the serial belongs
        self._asked: list[int]  # serials whose end somebody waits for
        self._alive, self._ended, self._asked = [], [(0, 0, 0.0)] * ENDS_KEPT, []

    def rehearse(self) -> None:
        """Serve for children that find nobody at their channel, so that what happens once has happened."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            with ours:
                for serial in range(1, REHEARSED + 1):
                    channel, supervisor = socket.socketpair()
                    with channel, supervisor:
                        calls.send_fds(ours, b"%d" % serial, [channel.fileno()])
            self._loop(theirs)
            while self._alive:
                self._bury(self._alive[0][0], theirs)

    def serve(self, control: socket.socket) -> None:
        """Until end of file on `control`."""
        shared.clear(self.old)
        _kept = self._alive, self._ended, self._asked, self._tmps  # were it free, it would be used again, where it is
        self._begin()  # on fresh pages
        self._tmps = self._tmps and self._tmps.anew()
        self._home = self._home.anew()
        chain.forget()
        shared.immortalize()  # what came since
        shared.use_up_blocks(self.old)  # what went since
        self._loop(control)

    def _loop(self, control: socket.socket) -> None:
        listening = control.fileno()
        self._epoll.register(listening, select.EPOLLIN)
        while True:
            ((fd, _event),) = self._epoll.poll(-1, 1)
            if fd != listening:
                self._bury(fd, control)
                continue
            data, fds = calls.receive_fds(control, 64)
            if not data:
                return
            if fds:
                self._bear(int(data), fds[0], control)
                os.close(fds[0])
            else:
                self._asked.append(int(data))
                self._answer(int(data), control)

    def _bear(self, serial: int, channel: int, control: socket.socket) -> None:
        tmp: Tmp | None = None
        try:
            if self._tmps:
                tmp = self._tmps.take()
            pid = _fork(self._pids)
        except OSError as error:
            self._let_go(tmp)
            control.send(json.dumps({"unborn": serial, "why": f"fork: {error.strerror}"}).encode())
            return
        if pid == 0:
            parent, mounts = (0, tmp.mounts) if tmp else (self._pid, -1)
            child.live(lockdown.Seat(self.plan, serial, parent, mounts), channel, self._home)
        pidfd = os.pidfd_open(pid)
        self._alive.append((pidfd, pid, serial, tmp))
        self._epoll.register(pidfd, select.EPOLLIN)

    def _bury(self, pidfd: int, control: socket.socket) -> None:
        place = [fd for fd, *_ in self._alive].index(pidfd)
        _, pid, serial, tmp = self._alive.pop(place)
        self._epoll.unregister(pidfd)
        os.close(pidfd)
        cpu_s = time.clock_gettime(calls.cpu_clock(pid))
        self._ended[serial % ENDS_KEPT] = serial, os.waitpid(pid, 0)[1], cpu_s
        self._let_go(tmp)
        if self._asked:
            self._answer(serial, control)

    def _let_go(self, tmp: Tmp | None) -> None:
        if self._tmps and tmp:
            self._tmps.give_back(tmp)

    def _answer(self, serial: int, control: socket.socket) -> None:
        ended, waitstatus, cpu_s = self._ended[serial % ENDS_KEPT]
        if ended == serial and serial in self._asked:
            self._asked.remove(serial)
            control.send(json.dumps({"exit": serial, "code": waitstatus, "cpu_s": cpu_s}).encode())
