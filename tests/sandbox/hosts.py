"""Jails on other hosts than this one: as an ordinary user, under a container's profile, without a layer, without a
virtual environment.

Each is this machine with something really taken away before a fresh interpreter starts: the uid is
dropped, or a seccomp filter that outlives exec answers the calls as such a host would. The process
runs `python -m tests.sandbox.hosts RESTRICTIONS TIER` and serves jobs on its standard streams: u32
length, then a Job; back comes an Outcome.

Everything happens in a mount namespace of its own; the interpreter, this project and its packages
are bound to paths that any user can reach, since their own may lie below a closed home.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sandbox.contract import Job, Outcome
from sandbox.kernel import calls, seccomp
from sandbox.kernel.seccomp import ALLOW, DENY, NO_SUCH_CALL, Is, Rule

ROOT = Path(__file__).resolve().parents[2]
USER = 65533
NAMESPACES = 0x7E020000

# What a container's default profile denies, as far as it matters here.
CONTAINER: dict[str, Rule] = {
    **dict.fromkeys(
        "unshare setns mount umount2 pivot_root move_mount open_tree fsopen mount_setattr ptrace bpf keyctl".split(),
        DENY,
    ),
    "clone": (Is(0, (0,), mask=NAMESPACES),),
    "clone3": NO_SUCH_CALL,
}
NO_LANDLOCK: dict[str, Rule] = dict.fromkeys(
    ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"), NO_SUCH_CALL
)
NO_SECCOMP: dict[str, Rule] = {"seccomp": NO_SUCH_CALL}
NO_NAMESPACES: dict[str, Rule] = {"unshare": DENY}

FILTERS = {"container": CONTAINER, "no-landlock": NO_LANDLOCK, "no-seccomp": NO_SECCOMP, "no-namespaces": NO_NAMESPACES}


class Host:
    """A Python process under restrictions. `kinds`: any of FILTERS' names, 'user', 'readable': root, but
    the interpreter is where any user may read it, and 'installed': all packages are where `pip install` puts them
    for the interpreter itself.
    """

    def __init__(self, *kinds: str, arguments: tuple[str, ...]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hookpool-test-")
        Path(self._folder.name).chmod(0o755)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sandbox.hosts", json.dumps([self._folder.name, *kinds]), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )

    def close(self) -> None:
        self.process.communicate(timeout=20)
        self._folder.cleanup()


class ServedJail:
    """`Jail.run` on such a host. `calls` are answered by nobody there."""

    def __init__(self, tier: str, *kinds: str) -> None:
        self._host = Host(*kinds, arguments=("serve", tier))
        head = self._host.process.stdout.readline()
        if not head:
            raise RuntimeError(self._host.process.stderr.read().decode())
        self.started = json.loads(head)
        self.tier, self.layers, self.missing, self.pid = (self.started[k] for k in ("tier", "layers", "missing", "pid"))

    def run(self, job: Job, _host=None) -> Outcome:
        data = job.encode()
        stdin, stdout = self._host.process.stdin, self._host.process.stdout
        stdin.write(len(data).to_bytes(4, "big") + data)
        stdin.flush()
        return Outcome.decode(stdout.read(int.from_bytes(stdout.read(4), "big")))

    def close(self) -> None:
        self._host.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def doctor(*kinds: str, environ: dict[str, str] | None = None) -> tuple[int, dict]:
    """`hookpool doctor --json` on such a host: its exit code and report."""
    host = Host(*kinds, arguments=("doctor", json.dumps(environ or {})))
    out, err = host.process.communicate(timeout=60)
    host.close()
    assert host.process.returncode in {0, 1}, err.decode()
    return host.process.returncode, json.loads(out)


def restrict(folder: str, kinds: list[str]) -> tuple[str, str, str]:
    """Take things away from this process, for good. Interpreter, project and packages to go on with."""
    python, project = os.path.realpath(sys.executable), str(ROOT)
    packages = os.path.dirname(os.path.dirname(__import__("msgpack").__file__))
    if {"user", "readable", "installed"} & {*kinds}:
        os.unshare(os.CLONE_NEWNS)
        calls.mount(None, "/", None, calls.MS_REC | calls.MS_PRIVATE)
    if "installed" in kinds:
        here = f"{os.path.dirname(os.__file__)}/site-packages"
        calls.mount(packages, here, None, calls.MS_BIND | calls.MS_REC)
        packages = here
    if {"user", "readable"} & {*kinds}:
        python = _show(sys.base_prefix, f"{folder}/python") + python.removeprefix(os.path.realpath(sys.base_prefix))
        project = _show(project, f"{folder}/project")
        if "installed" in kinds:
            packages = f"{folder}/python{packages.removeprefix(sys.base_prefix)}"
        else:
            packages = _show(packages, f"{folder}/packages")
        os.chdir(project)
    if "user" in kinds:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
    rules: dict[str, Rule] = {}
    for kind in kinds:
        rules |= FILTERS.get(kind, {})
    if rules:
        calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install(seccomp.program(rules, ALLOW))
    return python, project, packages


def _show(path: str, there: str) -> str:
    os.mkdir(there)
    calls.mount(path, there, None, calls.MS_BIND | calls.MS_REC)
    return there


def serve(tier: str) -> None:
    from sandbox.host import Closed
    from sandbox.jail import Jail
    from sandbox.settings import Settings

    with Jail(Settings(force_tier=None if tier == "best" else tier, min_tier="C")) as jail:
        print(
            json.dumps({"tier": jail.tier, "layers": jail.layers, "missing": jail.missing, "pid": os.getpid()}),
            flush=True,
        )
        while head := sys.stdin.buffer.read(4):
            outcome = jail.run(Job.decode(sys.stdin.buffer.read(int.from_bytes(head, "big"))), Closed()).encode()
            sys.stdout.buffer.write(len(outcome).to_bytes(4, "big") + outcome)
            sys.stdout.buffer.flush()


def main() -> None:
    first, action, argument = sys.argv[1:]
    if first == "there":
        if action == "serve":
            serve(argument)
        else:
            from dispatcher.cli import main as hookpool

            os.environ.update(json.loads(argument))
            sys.argv = ["hookpool", "doctor", "--json"]
            hookpool()
        return
    folder, *kinds = json.loads(first)
    python, project, packages = restrict(folder, kinds)
    environ = {
        "LD_LIBRARY_PATH": os.path.dirname(os.path.dirname(python)) + "/lib",  # it may be built to look elsewhere
        "PYTHONPATH": f"{project}:{packages}",
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    os.execve(python, [python, "-m", "tests.sandbox.hosts", "there", action, argument], environ)


if __name__ == "__main__":
    main()
