"""The command line: `hookpool run | eval | chat | doctor | egress | worker | serve | queue | bench`.

Each command is a module of its own and is imported when it is asked for: `hookpool --help` imports
click and nothing of ours that is heavy. `main` is the one place where an exception becomes an exit
code and a line:

    0    what was asked for holds (status ok, every case as expected)
    1    it does not
    2    wrong usage, or input that cannot be used: one line that says which file and where
    3    the pool failed, or we did
    130  Ctrl-C, after everything was put away; 143 for SIGTERM, 141 when nobody reads our output
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from typing import NoReturn

import click

from sandbox.errors import HookpoolError, InputError

OK, FAILED, USAGE, POOL = 0, 1, 2, 3
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143

COMMANDS = {
    "run": "Run one hook over its callbacks and show the verdict.",
    "eval": "Run the cases of an app over the pool.",
    "chat": "Talk to an app in the terminal.",
    "doctor": "Attempt every layer of the sandbox on this host.",
    "egress": "Ask what HTTP from callbacks may reach.",
    "worker": "Start a worker that takes jobs from a queue.",
    "serve": "Offer a pool over HTTP, as JSON.",
    "queue": "Show a pool's queue and dead letters; try those again.",
    "bench": "Measure what a sandbox, the queue or a hook of an agent costs on this host.",
}


class _Lazy(click.Group):
    """A group whose commands are modules beside this one, each with a `command`."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"dispatcher.cli.{name}").command
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version

        with contextlib.suppress(PackageNotFoundError):
            click.echo(f"hookpool {version('hookpool')}")
            ctx.exit()
        click.echo("hookpool (from a source tree)")
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def cli() -> None:
    """Run untrusted agent callbacks in a pool of one-shot sandboxes.

    \b
    Examples:
      hookpool eval examples/airline
      hookpool run --hook before_agent_callback --code greet.py --context session.json
      hookpool doctor
      hookpool worker --pool redis://localhost:6379/0

    Settings come from HOOKPOOL_... variables; README.md lists them.
    """  # noqa: D301  # click reads the backslash


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script. Ends the process with one of the codes at the top."""
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _terminated)
    if sys.stdout is None:  # closed before we were started
        sys.exit(_say(USAGE, "hookpool: standard output is closed"))
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except OSError as problem:
        code = _unwritten(problem)
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    """What click's own `main` does, but its way with Ctrl-C (a line) and a broken pipe (exit 1)."""
    try:
        with cli.make_context("hookpool", sys.argv[1:] if arguments is None else arguments) as ctx:
            code = cli.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as problem:
        print(problem.format_message(), file=sys.stderr)
        return USAGE
    except click.UsageError as problem:
        path = problem.ctx.command_path if problem.ctx else "hookpool"
        return _say(USAGE, f"{path}: {_one_line(problem.format_message()).rstrip('.')} (see {path} --help)")
    except InputError as problem:
        return _say(USAGE, f"hookpool: {problem}")
    except HookpoolError as problem:
        return _say(POOL, f"hookpool: {problem}")
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except OSError as problem:  # the rest of what the system refuses is an error of ours by now
        return _unwritten(problem)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED
    except Exception:  # a fault of ours must not look like a failed case
        import traceback

        traceback.print_exc()
        return POOL
    return code if isinstance(code, int) else OK


def _say(code: int, line: str) -> int:
    with contextlib.suppress(BrokenPipeError):
        print(_one_line(line), file=sys.stderr)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _unwritten(problem: OSError) -> int:
    """Our output cannot be written: one line, and not another word of it while Python ends."""
    _say(USAGE, f"hookpool: {problem.filename or 'standard output'}: {problem.strerror or problem}")
    if problem.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE if isinstance(problem, BrokenPipeError) else USAGE


def _interrupted(_number: int, _frame: object) -> NoReturn:
    """The first Ctrl-C starts the cleaning up; a second one must not stop it half way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _terminated(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(TERMINATED)
