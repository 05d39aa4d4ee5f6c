"""The broker's lockdown, as one visible list: what a process that speaks to the world can do without.

Less than a sandbox gives up (it needs sockets, and a file or two for look-ups), in the same order:
see `sandbox.guest.lockdown`. A layer that cannot be had is named, not assumed.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import resource
import signal
import threading
from typing import TYPE_CHECKING

import httpcore2

from sandbox.egress.bodies import CHARSETS
from sandbox.kernel import calls, landlock, seccomp
from sandbox.policy import broker_filter

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.egress.policy import Plan

READABLE = (
    *("/etc", "/lib", "/lib64", "/usr/lib", "/usr/lib64"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager"),
)
"""What the C library reads to look a name up: its configuration and its plug-ins, wherever a distribution has them.
All of it is readable by anybody; as a uid of its own the broker is anybody."""

DNS = 53
OPEN_FILES = 8192
BASE_BYTES = 1024 << 20  # of address space, beside the bodies
STACK_BYTES = 512 * 1024


def _uid(plan: Plan) -> None:
    if os.geteuid() != 0 or not plan.uid:
        return
    os.setgroups([])
    os.setresgid(plan.uid, plan.uid, plan.uid)
    os.setresuid(plan.uid, plan.uid, plan.uid)


def _no_capabilities(_: Plan) -> None:
    calls.drop_capabilities()


def _no_new_privs(_: Plan) -> None:
    calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)


def _not_dumpable(_: Plan) -> None:
    calls.prctl(calls.PR_SET_DUMPABLE, 0)


def _rlimits(plan: Plan) -> None:
    space = BASE_BYTES + 4 * (plan.memory_mb << 20)
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_AS, space),
    ):
        hard = resource.getrlimit(kind)[1]
        value_ = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value_, value_))


def _landlock(plan: Plan) -> None:
    readable = [] if plan.resolvers else [path for path in READABLE if os.path.isdir(path)]
    ports = {*plan.policy.ports, *((port for _, port in plan.resolvers) if plan.resolvers else (DNS,))}
    ruleset = landlock.ruleset(readable, connect=ports)
    landlock.enforce(ruleset)
    os.close(ruleset)


def _seccomp(_: Plan) -> None:
    seccomp.install(broker_filter())


LAYERS: tuple[tuple[str, Callable[[Plan], None], bool], ...] = (
    ("rlimits", _rlimits, True),
    ("own_uid", _uid, True),
    ("no_capabilities", _no_capabilities, True),
    ("no_new_privs", _no_new_privs, True),
    ("not_dumpable", _not_dumpable, True),
    ("landlock", _landlock, False),
    ("seccomp", _seccomp, False),
)
"""Name, step, and whether the broker does not start without it."""


def confine(plan: Plan, parent: int) -> tuple[list[str], dict[str, str]]:
    """Apply the list. The names of what holds, and of what does not with the reason. Raises OSError."""
    _preload()
    holds, missing = [], {}
    for name, apply, required in LAYERS:
        try:
            apply(plan)
        except OSError as problem:
            if required:
                setting = " (HOOKPOOL_EGRESS_UID)" if name == "own_uid" else ""
                raise OSError(problem.errno, f"{name}: {problem.strerror}{setting}") from problem
            missing[name] = str(problem.strerror)
        else:
            holds.append(name)
    calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the uid: changing that clears it
    if os.getppid() != parent:
        os._exit(0)
    return holds, missing


def _preload() -> None:
    """What would be imported at its first use, when there is no disk any more: codecs, and a request that goes nowhere."""
    import encodings.idna  # noqa: F401

    import idna
    import idna.uts46data  # noqa: F401

    for name in CHARSETS:
        codecs.lookup(name)
    asyncio.run(_rehearsal())
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:2"  # glibc's own: a look-up that nobody waits for ends soon
    threading.stack_size(STACK_BYTES)


async def _rehearsal() -> None:
    backend = httpcore2.AsyncMockBackend([b"HTTP/1.1 200 OK\r\n", b"Content-Length: 1\r\n\r\nx"])
    connection = httpcore2.AsyncHTTPConnection(
        httpcore2.Origin(b"http", b"x", 80), network_backend=backend, keepalive_expiry=1.0
    )
    request = httpcore2.Request(b"GET", "http://x/", headers=[(b"Host", b"x")])
    async with asyncio.timeout(5):
        answer = await connection.handle_async_request(request)
        await answer.aread()
        await answer.aclose()
    connection.has_expired()
    await connection.aclose()
