"""The proof that the lockdown holds: per layer, the act it must stop, attempted in a throw-away fork.

Run by the zygote before its first child. Each fork applies the list up to the layer in question and
then tries; what gets through is text, and a required layer with text is a tier not reached. The
attempts here are the ones that can be made safely on any host; `tests/escape` has the long list.
"""

from __future__ import annotations

import os
import resource
import socket
from typing import TYPE_CHECKING

from sandbox.guest.lockdown import CHANNEL, LOCKED, OPEN_FILES, RULESET, Plan, Seat
from sandbox.kernel import calls, seccomp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandbox.guest.lockdown import Layer

type Fork = Callable[[], int]
_PR_GET_DUMPABLE = 3


def prove(plan: Plan, fork: Fork, readable: Sequence[str], mounts: int = -1) -> None:
    """Take the layers that do not hold out of `plan.layers` and say why in `plan.missing`. `mounts`: as of a Seat."""
    held: list[Layer] = []
    for layer in plan.layers:
        got = _try(plan, [*held, layer], fork, readable, mounts)
        if got:
            plan.missing[layer.name] = got
        else:
            held.append(layer)
    plan.layers = tuple(held)


def can_name(naming: bytes, fork: Fork) -> bool:
    """Whether this kernel gives a seccomp listener; in a fork, since a filter cannot be taken off."""

    def install() -> str:
        calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install_listener(naming)
        return ""

    return not _in_fork(fork, install)


def _try(plan: Plan, layers: Sequence[Layer], fork: Fork, readable: Sequence[str], mounts: int) -> str:
    zygote = os.getpid()

    def act() -> str:
        seat = Seat(plan, serial=0, parent=0 if plan.tier == "A" else zygote, mounts=mounts)
        for layer in layers:
            layer.apply(seat)
        return ATTEMPTS[layers[-1].name](readable)

    return _in_fork(fork, act)


def _in_fork(fork: Fork, act: Callable[[], str]) -> str:
    """`act`'s text, or the OSError it ended in, or the signal."""
    ours, theirs = socket.socketpair()
    pid = fork()
    if pid == 0:
        ours.close()
        try:
            os.dup2(theirs.fileno(), CHANNEL)
            text = act()
        except OSError as error:
            text = f"{type(error).__name__}: {error.strerror or error}"
        os.write(CHANNEL, text.encode())
        os._exit(0)
    theirs.close()
    with ours, ours.makefile("rb") as answer:
        text = answer.read().removeprefix(LOCKED).decode()  # as one of the layers announces itself
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return text or ("" if code == 0 else f"the attempt ended with {code}")


def _refused(act: Callable[[], object], what: str) -> str:
    try:
        act()
    except OSError:
        return ""
    return what


def _loopback(_: Sequence[str]) -> str:
    with socket.socket() as here:
        here.settimeout(1)
        here.bind(("127.0.0.1", 0))
        here.listen()
        return _refused(lambda: socket.create_connection(here.getsockname(), 1), "connected to 127.0.0.1")


def _own_pid(_: Sequence[str]) -> str:
    return "" if os.getpid() == 1 else f"sees itself as pid {os.getpid()}"


def _host_file(_: Sequence[str]) -> str:
    return _refused(lambda: os.open("/etc/passwd", os.O_RDONLY), "opened /etc/passwd")


def _write_outside(readable: Sequence[str]) -> str:
    if text := _refused(lambda: os.open(f"{readable[0]}/probe", os.O_CREAT | os.O_WRONLY), "wrote beside the library"):
        return text
    os.close(os.open("/tmp/probe", os.O_CREAT | os.O_WRONLY | os.O_EXCL))
    return ""


def _descriptors(_: Sequence[str]) -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for fd in range(RULESET + 1, min(limit, 4096)):
        try:
            os.fstat(fd)
        except OSError:
            continue
        return f"descriptor {fd} is open"
    return ""


def _many_files(_: Sequence[str]) -> str:
    return _refused(lambda: [os.dup(CHANNEL) for _ in range(OPEN_FILES)], f"opened {OPEN_FILES} more files")


def _become_root(readable: Sequence[str]) -> str:
    if unreadable := next((path for path in readable if not os.access(path, os.R_OK)), ""):
        return f"{_closed_ancestor(unreadable)} is closed to other users, the interpreter below it could not be read"
    return _refused(lambda: os.setresuid(0, 0, 0), "became uid 0 again")


def _closed_ancestor(path: str) -> str:
    while not os.access(os.path.dirname(path), os.X_OK):
        path = os.path.dirname(path)
    return path


def _mount(_: Sequence[str]) -> str:
    return _refused(lambda: calls.mount("probe", "/", "tmpfs", 0), "mounted over its own root")


def _privileges(_: Sequence[str]) -> str:
    return "" if calls.prctl(calls.PR_GET_NO_NEW_PRIVS) == 1 else "no_new_privs is off"


def _dumpable(_: Sequence[str]) -> str:
    return "" if calls.prctl(_PR_GET_DUMPABLE) == 0 else "can be read by others of its uid"


def _listing(_: Sequence[str]) -> str:
    return _refused(lambda: os.listdir("/"), "listed /")


def _socket_or_fork(_: Sequence[str]) -> str:
    return _refused(socket.socket, "opened a socket") or _refused(os.fork, "forked")


def _nothing(_: Sequence[str]) -> str:
    return ""


ATTEMPTS: dict[str, Callable[[Sequence[str]], str]] = {
    "pid_namespace": _own_pid,
    "network_namespace": _loopback,
    "private_root": _host_file,
    "private_tmp": _write_outside,
    "closed_fds": _descriptors,
    "rlimits": _many_files,
    "own_uid": _become_root,
    "no_capabilities": _mount,
    "no_new_privs": _privileges,
    "not_dumpable": _dumpable,
    "parent_death": _nothing,  # that a child outlives nothing is a test's business, not a start-up's
    "landlock": _listing,
    "named_violations": _nothing,  # `can_name` tried it
    "seccomp": _socket_or_fork,
}
