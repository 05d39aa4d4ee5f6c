"""The command line as a real process, for the tests that promise something about it."""

import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
AIRLINE = ROOT / "examples" / "airline"
ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOOKPOOL_")},
    "PYTHONPATH": str(ROOT),
    "COLUMNS": "120",
}


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def start(*arguments: str, cwd: Path = ROOT, **environ: str) -> "subprocess.Popen[str]":
    """`hookpool ARGUMENTS`."""
    return subprocess.Popen(
        [sys.executable, "-m", "dispatcher.cli", *arguments],
        cwd=cwd,
        env={**ENVIRON, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def hookpool(*arguments: str, cwd: Path = ROOT, **environ: str) -> Ended:
    with start(*arguments, cwd=cwd, **environ) as process:
        out, err = process.communicate(timeout=240)
    return Ended(process.returncode, out, err)


def inside(*arguments: str, cwd: Path = ROOT) -> Ended:
    """The same in this process, where nothing of the promise needs another: for the many small mistakes."""
    from dispatcher import cli

    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        code = cli._run(list(arguments))
    return Ended(code, out.getvalue(), err.getvalue())


@contextmanager
def family(process: "subprocess.Popen[str]") -> Iterator[Callable[[], list[str]]]:
    """Watches what a process starts, directly or not; gives a function that lists those that stay alive."""
    seen: dict[tuple[int, str], str] = {}
    ended = threading.Event()

    def watch() -> None:
        known = {process.pid}
        while not ended.wait(0.02):
            for pid, (parent, started, command) in _processes().items():
                if parent in known or pid in known:
                    known.add(pid)
                    seen[pid, started] = command

    def alive() -> list[str]:
        until = time.monotonic() + 10
        while True:
            now = _processes()
            left = [command for (pid, started), command in seen.items() if pid in now and now[pid][1] == started]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield alive
    finally:
        ended.set()
        thread.join()


@contextmanager
def silence() -> "Iterator[tuple[str, dict[str, str], Callable[[], object]]]":
    """A site that never answers: its URL, the environment of a command whose code may ask it, and a function
    that waits until somebody did, so that code is then known to be running.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port = listener.getsockname()[1]
        allowed = {"HOOKPOOL_EGRESS_ALLOW": "127.0.0.1/32", "HOOKPOOL_EGRESS_PORTS": str(port)}
        asked: list[socket.socket] = []
        try:
            yield f"http://127.0.0.1:{port}/", allowed, lambda: asked.append(listener.accept()[0])
        finally:
            for connection in asked:
                connection.close()


def _processes() -> dict[int, tuple[int, str, str]]:
    """Every process that is no zombie: pid -> parent, start time, command line."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it ended while we looked
            continue
        if fields[0] != "Z":
            found[int(stat.parent.name)] = (int(fields[1]), fields[19], command)
    return found
