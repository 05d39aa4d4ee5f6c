"""The positive control: runs a body with no protection, in a place where it can do no harm.

    unprotected.py < program        prints, as JSON, "got" or how it ended

Mounts, network, IPC, host name and pids are its own and end with it; the root is read-only. Started by file name with the
bare interpreter: the attempts are about Python and the kernel, and need nothing of ours.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading

NEW = os.CLONE_NEWNS | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWPID
TMPS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
PATIENCE_S = 20
LISTENERS = (
    (socket.AF_INET, ("127.0.0.1", 6379)),
    (socket.AF_UNIX, "/tmp/host.sock"),
    (socket.AF_UNIX, "\0hookpool-escape"),
)
libc = ctypes.CDLL(None, use_errno=True)


def mount(kind, target, flags=0, source="none"):
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def settle():
    """A machine of its own: what is written, sent and killed from here on stays here. Its listeners."""
    project = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    needed = {path: os.open(path, os.O_PATH) for path in (sys.base_prefix, project)}
    mount("none", "/", 0x44000)  # MS_REC | MS_PRIVATE
    mount("none", "/", 0x1021)  # MS_REMOUNT | MS_BIND | MS_RDONLY: of the machine's own disk nothing is changed
    mount("proc", "/proc")
    for path in filter(os.path.isdir, TMPS):
        mount("tmpfs", path)
    for path, fd in needed.items():
        if not os.path.exists(path):  # it lay below one of those
            os.makedirs(path)
            mount("none", path, 0x5000, f"/proc/self/fd/{fd}")  # MS_REC | MS_BIND
        os.close(fd)
    os.chdir("/tmp")
    os.mkdir("/tmp/mnt")
    mount("tmpfs", "/tmp/mnt")
    with socket.socket() as any_socket:  # SIOCSIFFLAGS, IFF_UP
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
    with open("/run/settings.env", "w") as settings:
        settings.write("HOOKPOOL_POOL=redis://:hunter2@queue/0\n")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    for family, address in LISTENERS:
        listener = socket.socket(family)
        listener.bind(address)
        listener.listen()
        yield listener


def answer(listener):
    while True:
        with listener.accept()[0] as connection:
            connection.sendall(b"+PONG\r\n")


def swallow(channel):
    while channel.recv(65536):
        pass


class Context:
    def __init__(self):
        self.variables = {}


def attempt(program, channel, report):
    """In a process of its own, with descriptor 3 as in a sandbox: the body, and what it got."""
    os.dup2(channel.fileno(), 3)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    context, globals_ = Context(), {}
    try:
        exec(compile(program, "attempt.py", "exec"), globals_)
        globals_["before_agent_callback"](context)
        got = context.variables.get("got") if isinstance(context.variables, dict) else context.variables
        said = "got" if got else f"got {got!r}"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    os.write(report, said.encode())
    os._exit(0)


def watch(program):
    """As pid 1: start the attempt, and say how it ended."""
    listeners = [*settle()]
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        attempt(program, theirs, fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, 64))
    os.close(write)
    theirs.close()
    for work, what in ((swallow, ours), *((answer, listener) for listener in listeners)):
        threading.Thread(target=work, args=(what,), daemon=True).start()
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(PATIENCE_S)
    status = os.waitpid(child, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status):
        return signal.Signals(os.WSTOPSIG(status)).name
    os.set_blocking(read, False)
    with contextlib.suppress(BlockingIOError):
        if said := os.read(read, 4096).decode():
            return said
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


def main():
    program = sys.stdin.read()
    os.unshare(NEW)
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            said = watch(program)
        except BaseException as error:
            said = f"the control could not be made: {error!r}"
        os.write(write, json.dumps(said).encode())
        os._exit(0)  # and with pid 1 goes everything in there
    os.close(write)
    os.waitpid(first, 0)
    sys.stdout.write(os.read(read, 65536).decode())


main()
