"""The host: its processes, files, devices and kernel interfaces are out of reach."""

from __future__ import annotations

import pytest

import sandbox.jail

from .cells import NOT_THERE, REFUSED, Attempt, Cell, gets_through, named, promises

# Everybody a sandbox could know of: its parent, the first process, itself, and those born around it.
_OTHERS = "[os.getppid(), 1, os.getpid(), *range(max(2, os.getpid() - 8), os.getpid() + 8)]"


def _read_of_others(name: str, read: str, others: str = _OTHERS) -> Attempt:
    body = f"""
    import contextlib, os
    got = []
    for pid in {others}:
        with contextlib.suppress(OSError, ValueError):
            path = f'/proc/{{pid}}/{name}'
            got.append({read})
    v['got'] = [str(found)[:20] for found in got if found]
    """
    return Attempt(body, "ok")


PROCESSES = {
    "the environment of any process is not read": _read_of_others("environ", "open(path, 'rb').read()"),
    "the memory of any process is not opened": _read_of_others("mem", "open(path, 'rb')"),
    "the memory map of any process is not read": _read_of_others("maps", "open(path).read()"),
    "the command line of any process is not read": _read_of_others("cmdline", "open(path).read()"),
    "the descriptors of any process are not listed": _read_of_others("fd", "os.listdir(path)"),
    "the descriptors of any process are not opened": _read_of_others("fd/0", "os.open(path, os.O_RDONLY) + 1"),
    "the root of any process is not entered": _read_of_others("root/etc", "os.listdir(path)"),
    "the working directory of any process is not listed": _read_of_others("cwd", "os.listdir(path)"),
    "the namespaces of other processes are not opened": _read_of_others(
        # its own can be in tier B: landlock does not cover that file system, and entering is fatal anyway
        "ns/net",
        "os.open(path, os.O_RDONLY)",
        f"set({_OTHERS}) - {{os.getpid()}}",
    ),
    "the score of any process with the memory killer is not changed": _read_of_others(
        "oom_score_adj", "os.open(path, os.O_WRONLY)"
    ),
    "processes are not even listed": Attempt("import os\nv['got'] = os.listdir('/proc')", (NOT_THERE, REFUSED)),
    "ptrace is fatal and named": Attempt(
        "import os\nv['got'] = call('ptrace', 0x4206, os.getppid(), 0, 0) == 0", named("ptrace")
    ),
    "being traced is fatal and named": Attempt("v['got'] = call('ptrace', 0, 0, 0, 0) == 0", named("ptrace")),
    "reading another's memory in one call is fatal and named": Attempt(
        """
        import ctypes, os
        here = ctypes.create_string_buffer(b'memory', 6)
        there = ctypes.create_string_buffer(6)
        local = (ctypes.c_uint64 * 2)(ctypes.addressof(there), 6)
        remote = (ctypes.c_uint64 * 2)(ctypes.addressof(here), 6)
        v['got'] = call('process_vm_readv', os.getpid(), local, 1, remote, 1, 0)
        """,
        named("process_vm_readv"),
    ),
    "writing another's memory in one call is fatal and named": Attempt(
        """
        import ctypes, os
        here, there = ctypes.create_string_buffer(b'memory', 6), ctypes.create_string_buffer(6)
        local = (ctypes.c_uint64 * 2)(ctypes.addressof(here), 6)
        remote = (ctypes.c_uint64 * 2)(ctypes.addressof(there), 6)
        v['got'] = call('process_vm_writev', os.getpid(), local, 1, remote, 1, 0)
        """,
        named("process_vm_writev"),
    ),
    "comparing processes is fatal and named": Attempt(
        "import os\nv['got'] = call('kcmp', os.getpid(), os.getpid(), 1, 0, 0) == 0", named("kcmp")
    ),
    "a handle on a process is refused": Attempt("import os\nv['got'] = os.pidfd_open(os.getpid()) > 0", REFUSED),
    "taking a descriptor of another process is fatal and named": Attempt(
        "import os\ntry: fd = os.pidfd_open(os.getpid())\nexcept OSError: fd = 0\nv['got'] = call('pidfd_getfd', fd, 0, 0) > 0",
        named("pidfd_getfd"),
    ),
    "a signal to everybody is refused": Attempt(
        "import os\nos.kill(-1, 9)\nv['got'] = 1",
        REFUSED,
        control="import os, time\nos.fork() or time.sleep(9)\nos.kill(-1, 9)\nv['got'] = 1",
    ),
    "a signal to its group is refused": Attempt("import os\nos.kill(0, 0)\nv['got'] = 1", REFUSED),
    "a signal to its parent is refused": Attempt("import os\nos.kill(os.getppid(), 0)\nv['got'] = 1", REFUSED),
    "a signal to any of its neighbours is refused": Attempt(
        f"""
        import os
        got = []
        for pid in {_OTHERS}:
            try: os.kill(pid, 0)
            except OSError: continue
            if pid != os.getpid(): got.append(pid)
        v['got'] = got
        """,
        "ok",
    ),
    "a signal to another's thread is refused": Attempt(
        "import os\nv['got'] = call('tkill', os.getppid(), 0) == 0", REFUSED
    ),
    "a signal with a forged sender is refused": Attempt(
        "import ctypes, os\ninfo = (ctypes.c_int * 32)(10, 0, -1)\n"
        "v['got'] = call('rt_sigqueueinfo', os.getpid(), 0, info) == 0",
        REFUSED,
    ),
    "signals are not made when a descriptor is ready (F_SETOWN)": Attempt(
        "import fcntl, os\nfcntl.fcntl(3, fcntl.F_SETOWN, os.getpid())\nv['got'] = 1", REFUSED
    ),
    "the death of its parent stays its own": Attempt(
        "import os\nv['got'] = call('prctl', 1, 0, 0, 0, 0) == 0", REFUSED
    ),
    "it does not become dumpable again": Attempt("v['got'] = call('prctl', 4, 1, 0, 0, 0) == 0", REFUSED),
    "it does not take in orphans": Attempt("v['got'] = call('prctl', 36, 1, 0, 0, 0) == 0", REFUSED),
    "a second filter with a listener of its own is refused": Attempt(
        "import ctypes\nallow = ctypes.create_string_buffer((6).to_bytes(4, 'little') + (0x7FFF0000).to_bytes(4, 'little'), 8)\n"
        "head = (ctypes.c_uint64 * 2)(1, ctypes.addressof(allow))\nv['got'] = call('seccomp', 1, 8, head)",
        REFUSED,
    ),
}


def _opens(*paths: str, flags: str = "os.O_RDONLY", ends=(NOT_THERE, REFUSED)) -> Attempt:
    """Any of the paths will do for the attacker; the error is that of the last."""
    return Attempt(
        f"""
        import os
        for path in {paths!r}:
            try: fd = os.open(path, {flags})
            except OSError as error: problem = error
            else: break
        else: raise problem
        v['got'] = path
        """,
        ends,
    )


FILES = {
    "passwords are not read": _opens("/etc/shadow"),
    "users are not read": _opens("/etc/passwd"),
    "the worker's own source is not read": _opens(sandbox.jail.__file__),
    "the settings with the queue's address are not read": Attempt(
        "v['got'] = open(SECRETS).read()", (NOT_THERE, REFUSED)
    ),
    "the settings are not read by way of the standard library": Attempt(
        "import os\nv['got'] = open(os.path.dirname(os.__file__) + '/..' * 9 + SECRETS).read()", (NOT_THERE, REFUSED)
    ),
    "the settings are not read by way of a link": Attempt(
        "import os\nos.symlink(SECRETS, '/tmp/link')\nv['got'] = open('/tmp/link').read()",
        {"A": NOT_THERE, "BC": REFUSED},
    ),
    "the settings are not read by way of a hard link": Attempt(
        "import os\ntry: os.link(SECRETS, '/run/link')\nexcept FileExistsError: pass\nv['got'] = open('/run/link').read()",
        {"A": NOT_THERE, "BC": REFUSED},
    ),
    "the settings are not read by way of a path descriptor": Attempt(
        "import os\nfd = os.open(SECRETS, os.O_PATH)\nv['got'] = open(f'/proc/self/fd/{fd}').read()",
        {"A": NOT_THERE, "B": REFUSED, "C": REFUSED},
    ),
    "the settings are not read by way of the channel's own process": Attempt(
        "import os\nv['got'] = open('/proc/self/root' + SECRETS).read()", (NOT_THERE, REFUSED)
    ),
    "the settings are not read with a newer open": Attempt(
        "import ctypes\nhow = (ctypes.c_uint64 * 3)(0, 0, 0)\nv['got'] = call('openat2', -100, SECRETS.encode(), how, 24) >= 0",
        REFUSED,
    ),
    "the root is not listed": Attempt("import os\nv['got'] = 'etc' in os.listdir('/')", ("ok", REFUSED)),
    "nothing beside a private tmp is written": _opens(
        "/hookpool-probe",
        "/etc/hookpool-probe",
        "/run/hookpool-probe",
        "/dev/shm/hookpool-probe",
        flags="os.O_CREAT | os.O_WRONLY",
        ends=("callback_error OSError: [Errno 30]", NOT_THERE, REFUSED),
    ),
    "a file without a name is not made": Attempt(
        "import os\nfor folder in ('/run', os.path.dirname(os.__file__)):\n"
        "    try: v['got'] = os.open(folder, os.O_TMPFILE | os.O_RDWR)\n    except OSError as error: problem = error\n    else: break\n"
        "else: raise problem",
        {"A": "callback_error OSError: [Errno 30]", "BC": REFUSED},
    ),
    "the standard library is not written": Attempt(
        "import os\npath = '/tmp/host' if os.path.exists('/tmp/host.sock') else os.__file__\n"
        "v['got'] = os.open(path, os.O_WRONLY | os.O_CREAT)",
        {"A": ("callback_error OSError: [Errno 30]", REFUSED), "BC": REFUSED},
    ),
    "the rights of a file outside are not changed": Attempt(
        "import os\nos.chmod(SECRETS, 0o777)\nv['got'] = 1", {"A": NOT_THERE, "BC": REFUSED}
    ),
    "a file outside is not removed": Attempt(
        "import os\nos.unlink(SECRETS)\nv['got'] = 1", {"A": NOT_THERE, "BC": REFUSED}
    ),
    "a file outside is not renamed": Attempt(
        "import os\nos.rename(SECRETS, SECRETS + '.gone')\nv['got'] = 1", {"A": NOT_THERE, "BC": REFUSED}
    ),
    "a file outside is not cut": Attempt(
        "import os\nos.truncate(SECRETS, 0)\nv['got'] = 1", {"A": NOT_THERE, "BC": REFUSED}
    ),
    "a file outside is not watched": Attempt("import ctypes\nv['got'] = call('inotify_init1', 0) >= 0", REFUSED),
    "an attribute is not set": Attempt(
        "import os\nos.setxattr('/run/settings.env' if os.path.exists('/run/settings.env') else '/', 'user.trace', b'1')\nv['got'] = 1",
        REFUSED,
        control="import os\nos.setxattr('/run/settings.env', 'trusted.trace', b'1')\nv['got'] = 1",
    ),
    "raw devices are not opened": _opens("/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/loop0", "/dev/kmsg", "/dev/mem"),
    "terminals are not opened": _opens("/dev/tty", "/dev/ptmx", "/dev/console"),
    "a core pattern is not opened for writing": _opens("/proc/sys/kernel/core_pattern", flags="os.O_WRONLY"),
    "the system's keys are not opened for writing": _opens(
        "/proc/sysrq-trigger", "/proc/sys/kernel/sysrq", "/proc/sys/kernel/panic", flags="os.O_WRONLY"
    ),
    "kernel settings are not opened for writing": _opens(
        "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", flags="os.O_WRONLY"
    ),
    "kernel settings are not read": _opens("/proc/sys/kernel/hostname", "/proc/version"),
    "control groups are not opened": _opens(
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/cgroup.procs",
        "/sys/fs/cgroup/unified/cgroup.procs",
        flags="os.O_WRONLY",
    ),
    "hardware is not listed": Attempt("import os\nv['got'] = os.listdir('/sys/class')", (NOT_THERE, REFUSED)),
    "sockets of the host's own programs are not there to be found": Attempt(
        "import os\nv['got'] = [p for p in ('/var/run/docker.sock', '/run/settings.env') if os.path.exists(p)]",
        "ok",
    ),
}

_CAPABILITIES = "(ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*(0xFFFFFFFF,) * 2, 0, *(0x1FF,) * 2, 0)"
KERNEL = {
    "a setuid program is not started": Attempt(
        "import os\nos.execv('/bin/su', ['su', '--version'])", named("execve"), end_of_control="exit 0"
    ),
    "a setuid bit of its own is worth nothing": Attempt(
        "import os\nopen('/tmp/mine', 'w').close()\nos.chmod('/tmp/mine', 0o4755)\nos.execv('/tmp/mine', ['mine'])",
        {"A": named("execve"), "BC": REFUSED},
        control="import os\nopen('/tmp/mine', 'w').write('#!/bin/true')\nos.chmod('/tmp/mine', 0o4755)\nos.execv('/tmp/mine', ['mine'])",
        end_of_control="exit 0",
    ),
    "it does not become root": Attempt("import os\nos.setuid(0)\nv['got'] = 1", REFUSED),
    "it does not become root in three ways at once": Attempt("import os\nos.setresuid(0, 0, 0)\nv['got'] = 1", REFUSED),
    "it does not change its groups": Attempt("import os\nos.setgroups([0])\nv['got'] = 1", REFUSED),
    "it does not change its file identity": Attempt("v['got'] = call('setfsuid', 0) + 1", REFUSED),
    "it takes no capabilities": Attempt(
        f"import ctypes\nhead, caps = {_CAPABILITIES}\nv['got'] = call('capset', head, caps) == 0",
        REFUSED,
        control="import ctypes\nhead, caps = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()\n"
        "v['got'] = call('capset', head, caps) == 0",
    ),
    **{
        f"unshare of {what} is fatal and named": Attempt(f"v['got'] = call('unshare', {flag}) == 0", named("unshare"))
        for what, flag in {
            "users": 0x10000000,
            "mounts": 0x20000,
            "the network": 0x40000000,
            "pids": 0x20000000,
            "time": 0x80,
        }.items()
    },
    "a clone into a user namespace is refused": Attempt(
        "import os\npid = call('clone', 0x10000011, 0, 0, 0, 0)\npid or os._exit(0)\nv['got'] = pid", REFUSED
    ),
    "a thread in a namespace of its own is refused": Attempt(
        "v['got'] = call('clone', 0x10D00 | 0x40000000, 0, 0, 0, 0)",
        REFUSED,
        control="v['got'] = call('unshare', 0x40000000) == 0",
    ),
    "setns is fatal and named": Attempt(
        "import os\nfd = os.open('/proc/self/ns/uts', 0) if os.path.exists('/proc/self/ns/uts') and os.getuid() == 0 else 0\n"
        "v['got'] = call('setns', fd, 0) == 0",
        {"A": named("setns"), "B": (named("setns"), REFUSED), "C": named("setns")},
    ),
    "mount is fatal and named": Attempt(
        "v['got'] = call('mount', b'none', b'/tmp', b'tmpfs', 0, 0) == 0", named("mount")
    ),
    "a bind mount is fatal and named": Attempt(
        "v['got'] = call('mount', b'/', b'/tmp', 0, 0x1000, 0) == 0", named("mount")
    ),
    "a remount for writing is fatal and named": Attempt(
        "v['got'] = call('mount', b'none', b'/tmp', b'tmpfs', 0x20, 0) == 0", named("mount")
    ),
    "umount is fatal and named": Attempt("v['got'] = call('umount2', b'/tmp/mnt', 2) == 0", named("umount2")),
    "a mount of the new kind is fatal and named": Attempt(
        "v['got'] = call('fsopen', b'tmpfs', 0) > 0", named("fsopen")
    ),
    "a copy of a mount is fatal and named": Attempt(
        "v['got'] = call('open_tree', -100, b'/', 1) > 0", named("open_tree")
    ),
    "pivot_root is fatal and named": Attempt(
        "v['got'] = call('pivot_root', b'/tmp/mnt', b'/tmp/mnt') == 0", named("pivot_root")
    ),
    "chroot is fatal and named": Attempt("v['got'] = call('chroot', b'/tmp') == 0", named("chroot")),
    "mknod is fatal and named": Attempt(
        "v['got'] = call('mknodat', -100, b'/tmp/null', 0o20666, 0x103) == 0", named("mknodat")
    ),
    "a pipe with a name is fatal and named": Attempt(
        "import os\nos.mkfifo('/tmp/pipe')\nv['got'] = 1", ("policy_violation forbidden system call mknod",)
    ),
    "a host name is not set": Attempt("v['got'] = call('sethostname', b'mine', 4) == 0", named("sethostname")),
    "the kernel's log is not read": Attempt("v['got'] = call('syslog', 10, 0, 0) >= 0", named("syslog")),
    "io_uring is fatal and named": Attempt(
        "import ctypes\nv['got'] = call('io_uring_setup', 4, ctypes.create_string_buffer(120)) > 0",
        named("io_uring_setup"),
    ),
    "bpf is fatal and named": Attempt(
        "import ctypes\nv['got'] = call('bpf', 0, (ctypes.c_uint32 * 32)(2, 4, 4, 1), 128) > 0", named("bpf")
    ),
    "userfaultfd is fatal and named": Attempt("v['got'] = call('userfaultfd', 0) > 0", named("userfaultfd")),
    "perf is fatal and named": Attempt(
        "import ctypes\nattributes = (ctypes.c_uint32 * 32)(1, 128)\n"
        "v['got'] = call('perf_event_open', attributes, 0, -1, -1, 0) > 0",
        named("perf_event_open"),
    ),
    "keyctl is fatal and named": Attempt("v['got'] = call('keyctl', 0, -2, 1, 0, 0) > 0", named("keyctl")),
    "a file by its handle is fatal and named": Attempt(
        """
        import ctypes, os
        handle, mount = ctypes.create_string_buffer((128).to_bytes(4, 'little'), 136), ctypes.c_int()
        try: call('name_to_handle_at', -100, b'/run/settings.env', handle, ctypes.byref(mount), 0)
        except OSError: fd = 0
        else: fd = os.open('/run', os.O_RDONLY)
        v['got'] = call('open_by_handle_at', fd, handle, 0) > 0
        """,
        named("open_by_handle_at"),
    ),
    "a file's handle is not asked for": Attempt(
        "import ctypes\nhandle, mount = ctypes.create_string_buffer((128).to_bytes(4, 'little'), 136), ctypes.c_int()\n"
        "v['got'] = call('name_to_handle_at', -100, b'/run', handle, ctypes.byref(mount), 0) == 0",
        REFUSED,
    ),
    "its own limits are not raised by the raw call": Attempt(
        "import ctypes\nv['got'] = call('prlimit64', 0, 9, (ctypes.c_uint64 * 2)(2**64 - 1, 2**64 - 1), 0) == 0",
        REFUSED,
    ),
    "its own limits are not raised by the old call": Attempt(
        "import ctypes\nv['got'] = call('setrlimit', 9, (ctypes.c_uint64 * 2)(2**64 - 1, 2**64 - 1)) == 0", REFUSED
    ),
    "its parent's limits are not changed": Attempt(
        "import ctypes, os\nv['got'] = call('prlimit64', os.getppid() or 1, 7, (ctypes.c_uint64 * 2)(9, 9), 0) == 0",
        REFUSED,
    ),
    "descriptors are not sent (SCM_RIGHTS)": Attempt(
        "import socket\nours, theirs = socket.socketpair()\nsocket.send_fds(ours, [b'x'], [0])\n"
        "v['got'] = socket.recv_fds(theirs, 1, 1)[1]",
        REFUSED,
    ),
    "descriptors are not received on the channel": Attempt(
        "import socket\nchannel = socket.socket(fileno=3)\nv['got'] = 1",
        REFUSED,
        control="import socket\nv['got'] = socket.socket(fileno=3).family == socket.AF_UNIX",
    ),
    "input is not pushed into a terminal": Attempt(
        "import fcntl\nfcntl.ioctl(0, 0x5412, b'x')\nv['got'] = 1",
        REFUSED,
        control="import fcntl, os, pty\nours, theirs = pty.openpty()\nos.setsid()\nfcntl.ioctl(theirs, 0x540E, 0)\n"
        "fcntl.ioctl(theirs, 0x5412, b'x')\nv['got'] = 1",
    ),
    "the clock is not set": Attempt(
        "import ctypes\nv['got'] = call('clock_settime', 99, (ctypes.c_int64 * 2)()) == 0",
        named("clock_settime"),
        control="import time\nv['got'] = time.time() > 0",  # nobody sets a clock to show that one can
    ),
}
_RAISE = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_{kind})
if soft == resource.RLIM_INFINITY:
    soft = 1 << 40
    resource.setrlimit(resource.RLIMIT_{kind}, (soft, hard))
resource.setrlimit(resource.RLIMIT_{kind}, (soft + 1, hard if hard < 0 else max(hard, soft + 1)))
v['got'] = 1
"""
LIMITS = {
    f"its own limit {kind} is not raised": Attempt(
        _RAISE.format(kind=kind),
        "callback_error ValueError: not allowed to raise maximum limit",  # Python's words
    )
    for kind in ("AS", "CPU", "NOFILE", "FSIZE")
}
ATTEMPTS = PROCESSES | FILES | KERNEL | LIMITS


@pytest.mark.parametrize("promise", promises(ATTEMPTS))
def test_it_is_contained(cell: Cell, promise):
    cell.contains(ATTEMPTS[promise])


@pytest.mark.parametrize("promise", promises(ATTEMPTS))
def test_unprotected_the_same_act_gets_through(promise):
    gets_through(ATTEMPTS[promise])
