"""The command as a whole: help, version, laziness."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from command import ENVIRON, ROOT, hookpool, inside

from dispatcher.cli import COMMANDS, cli


def test_help_names_every_command() -> None:
    ended = hookpool("--help")
    assert ended.code == 0
    for name, text in COMMANDS.items():
        assert f"{name} " in ended.out
        assert text in ended.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_with_an_example_of_itself(name: str) -> None:
    shown = CliRunner().invoke(cli, [name, "--help"])
    assert shown.exit_code == 0
    assert f"  hookpool {name}" in shown.output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    command: click.Command = importlib.import_module(f"dispatcher.cli.{name}").command
    assert command.short_help == COMMANDS[name]


def test_without_a_command_the_help_is_shown_and_it_is_wrong_usage() -> None:
    ended = inside()
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Usage: hookpool")


def test_an_unknown_command_is_one_line() -> None:
    ended = inside("deploy")
    assert ended.code == 2
    assert ended.err == "hookpool: No such command 'deploy' (see hookpool --help)\n"


def test_ctrl_c_while_the_command_line_is_imported_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    ended = subprocess.run(
        [sys.executable, "-c", "from dispatcher.console import main; main()"],
        env={**ENVIRON, "PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_version() -> None:
    ended = hookpool("--version")
    assert ended.code == 0
    assert ended.out.startswith("hookpool ")


@pytest.mark.parametrize(
    ("arguments", "foreign"),
    [
        (["--help"], {"celery", "redis", "rich", "yaml", "pydantic", "kombu"}),
        (["run", "--help"], {"celery", "redis", "rich", "kombu"}),
        (["eval", "--help"], {"celery", "redis", "rich", "kombu"}),
        (["worker", "--help"], {"celery", "redis", "rich", "kombu"}),
    ],
)
def test_what_is_not_needed_is_not_imported(arguments: list[str], foreign: set[str]) -> None:
    code = (
        "import sys; from dispatcher.cli import cli\n"
        f"cli.main({arguments!r}, standalone_mode=False)\n"
        "print('|'.join(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True
    )
    assert foreign & set(ended.stderr.strip().split("|")) == set()


def test_a_worker_is_started_as_a_process_of_its_own_package() -> None:
    """The dispatcher imports no worker: the command becomes `python -m worker`."""
    code = (
        "import os, sys; from dispatcher.cli import cli\n"
        "os.execv = lambda path, arguments: print(arguments[1:])\n"
        "cli.main(['worker', '--pool', 'redis://h/0', '--concurrency', '3'], standalone_mode=False)\n"
        "assert 'worker' not in sys.modules"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "['-m', 'worker', '--pool', 'redis://h/0', '--concurrency', '3']\n"


def test_doctor_says_the_tier_and_exits_by_it() -> None:
    import json

    ended = hookpool("doctor", "--json")
    report = json.loads(ended.out)
    assert ended.code == (0 if report["ok"] else 1)
    assert report["layers"]
    assert {"tier", "python", "kernel", "cgroup", "memory", "redis", "attacks"} <= set(report)
