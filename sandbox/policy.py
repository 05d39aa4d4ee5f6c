"""Which system calls the code inside may make: the whole list, as data.

Three answers. A call on the list runs. A call that is merely not on it fails with EPERM, an
ordinary PermissionError for the author. A call that only an escape attempt makes ends the process,
and the verdict names it. `clone3` answers ENOSYS so that the C library falls back to `clone`, whose
flags a filter can see.

Nothing here trusts a path or a pointer: seccomp cannot look behind one. What may be opened is for
the mounts and landlock to say; this list says that without them (tier C) nothing is opened at all.

Two numbers pass every filter on x86_64, whatever it says: `uretprobe` and, on newer kernels, `uprobe`.
The kernel itself issues them from a probe's trampoline; anywhere else they fail (SIGILL, ENXIO).
"""

from __future__ import annotations

import fcntl
import os
import socket
import termios
from typing import TYPE_CHECKING

from sandbox.kernel.seccomp import ALLOW, DENY, KILL, NO_SUCH_CALL, NOTIFY, Is, Rule, program

if TYPE_CHECKING:
    from sandbox.contract import Tier

# An attempt at one of these is not a mistake in a callback.
FATAL = tuple(
    """
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
    keyctl add_key request_key
    mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
    open_tree_attr statmount listmount swapon swapoff quotactl quotactl_fd
    unshare setns execve execveat open_by_handle_at
    kexec_load kexec_file_load init_module finit_module delete_module reboot iopl ioperm modify_ldt
    acct settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname syslog
    mknod mknodat personality vhangup
""".split()
)

# Memory, time, identity, waiting, signals to itself, descriptors it has.
PLAIN = tuple(
    """
    read write readv writev pread64 pwrite64 preadv pwritev lseek close dup dup2 dup3 fstat
    munmap mremap brk madvise mincore
    futex futex_wait futex_wake futex_waitv set_robust_list get_robust_list rseq membarrier set_tid_address
    sched_yield sched_getaffinity sched_getparam sched_getscheduler
    exit exit_group restart_syscall
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause
    alarm getitimer setitimer nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times
    getpid gettid getppid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid
    getrlimit getrusage getpriority uname sysinfo getrandom getcpu arch_prctl
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    pipe pipe2 eventfd eventfd2 shutdown getcwd
""".split()
)

# Looking at files; what exists to be looked at is decided by mounts and landlock.
LOOKING = tuple(
    """
    stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents64 chdir fchdir
    statfs fstatfs
""".split()
)

# Changing files: only where there is a private tmp to change them in.
CHANGING = tuple(
    """
    truncate ftruncate fallocate fsync fdatasync rename renameat renameat2 mkdir mkdirat rmdir unlink unlinkat
    symlink symlinkat link linkat chmod fchmod fchmodat umask utimensat futimesat copy_file_range sendfile
""".split()
)

_PROT_EXEC = 4
_THREAD = 0x00010D00  # CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_FILES = 0x10D00
_THREAD_AND_NAMESPACES = _THREAD | 0x7E020000  # every CLONE_NEW... flag must be off
_WRITING = (
    os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000 | os.O_PATH
)  # O_TMPFILE's own bit
_FCNTL = (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL)
_IOCTL = (termios.TCGETS, termios.FIONREAD, termios.FIONBIO, termios.FIOCLEX, termios.FIONCLEX)
_PRCTL = (15, 16, 0x53564D41)  # thread names; PR_SET_VMA, by which allocators name their memory


def rules(tier: Tier, own_pid: int, *, named: bool) -> dict[str, Rule]:
    """The allow list for a child that sees itself as `own_pid`.

    `named`: a first filter notifies the supervisor of the FATAL calls (see `naming_filter`), so they
    pass here; without it they kill outright.
    """
    with_tmp = tier == "A"
    table: dict[str, Rule] = dict.fromkeys(PLAIN, ALLOW)
    table |= dict.fromkeys(FATAL, ALLOW if named else KILL)
    table |= {
        "mmap": (Is(2, (0,), mask=_PROT_EXEC),),
        "mprotect": (Is(2, (0,), mask=_PROT_EXEC),),
        "clone": (Is(0, (_THREAD,), mask=_THREAD_AND_NAMESPACES),),
        "clone3": NO_SUCH_CALL,
        "kill": (Is(0, (own_pid,)),),
        "tgkill": (Is(0, (own_pid,)),),
        "prlimit64": (Is(0, (0,)),),  # its own limits, which without a capability only ever fall
        "socketpair": (Is(0, (socket.AF_UNIX,)), Is(1, (socket.SOCK_STREAM,), mask=0xF)),
        "sendto": (Is(4, (0,), wide=True),),  # no address: only a connected pair of its own
        "recvfrom": (Is(4, (0,), wide=True),),
        "fcntl": (Is(1, _FCNTL),),
        "ioctl": (Is(1, _IOCTL),),
        "prctl": (Is(0, _PRCTL),),
    }
    if tier != "C":
        table |= dict.fromkeys(LOOKING, ALLOW)
        table |= {
            "open": ALLOW if with_tmp else (Is(1, (0,), mask=_WRITING),),
            "openat": ALLOW if with_tmp else (Is(2, (0,), mask=_WRITING),),
        }
    if with_tmp:
        table |= dict.fromkeys(CHANGING, ALLOW)
    return table


def allow_filter(tier: Tier, own_pid: int, *, named: bool) -> bytes:
    """The final filter: `rules`, and EPERM for everything else."""
    return program(rules(tier, own_pid, named=named), DENY)


def naming_filter() -> bytes:
    """The first filter: FATAL calls stop and the supervisor is told which."""
    return program(dict.fromkeys(FATAL, NOTIFY), ALLOW)


BROKER: dict[str, Rule] = {
    **dict.fromkeys(FATAL, KILL),
    **dict.fromkeys(("fork", "vfork", "kill", "listen", "accept", "accept4"), DENY),
    "clone": (Is(0, (_THREAD,), mask=_THREAD_AND_NAMESPACES),),
    "clone3": NO_SUCH_CALL,
    "socket": (Is(0, (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)),),
}
"""For the process that makes HTTP calls: it connects and reads, and never becomes or starts another program.
A list of what is refused, not of what is allowed: the C library's look-ups go their own ways. Netlink is
how it, and we, learn this host's addresses."""


def broker_filter() -> bytes:
    """The filter for BROKER, and everything else allowed."""
    return program(BROKER, ALLOW)
