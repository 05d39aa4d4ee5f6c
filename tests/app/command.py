"""The command line as a real process, for the tests that promise something about it."""

import os
import subprocess
import sys
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
    """`hookpool ARGUMENTS`, in a session of its own so that everything it starts can be found."""
    return subprocess.Popen(
        [sys.executable, "-m", "dispatcher.cli", *arguments],
        cwd=cwd,
        env={**ENVIRON, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def hookpool(*arguments: str, cwd: Path = ROOT, **environ: str) -> Ended:
    with start(*arguments, cwd=cwd, **environ) as process:
        out, err = process.communicate(timeout=90)
    return Ended(process.returncode, out, err)


def living(session: int) -> list[str]:
    """The command lines of the processes of a session that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended while we looked
            continue
    return found
