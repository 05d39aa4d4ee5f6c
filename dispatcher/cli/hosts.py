"""Who answers tools on the command line: `--tools KIND:WHERE`, as often as there are hosts.

    python:FILE                    the functions of a Python file, in this process
    http:SCHEMA@URL                the operations of an OpenAPI schema, on the server at URL
    mcp:COMMAND  or  mcp:URL       the tools of an MCP server, as a program or over HTTP (hookpool[mcp])

These run with the rights of whoever types the command, not in a sandbox.
"""

from __future__ import annotations

import importlib.util
import inspect
import shlex
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher import documents
from sandbox.errors import InputError
from sandbox.host import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sandbox.host import Host

KINDS = ("python", "http", "mcp")


def option[F: Callable[..., Any]](command: F) -> F:
    """`--tools`, for a command that takes `hosts`."""
    return click.option(
        "--tools",
        "hosts",
        multiple=True,
        type=HostName(),
        metavar="KIND:WHERE",
        help="Who answers tools: python:FILE, http:SCHEMA@URL, mcp:COMMAND or mcp:URL. Repeatable.",
    )(command)


class HostName(click.ParamType[tuple[str, str]]):
    """A host as it is written, checked before anything is started."""

    name = "tools"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        kind, colon, where = str(value).partition(":")
        if kind not in KINDS or not colon or not where.strip():
            self.fail(f"{value!r} is none of python:FILE, http:SCHEMA@URL, mcp:COMMAND, mcp:URL", param, ctx)
        if kind == "http" and "@" not in where:
            self.fail(f"{value!r} has no @URL: http:SCHEMA@URL", param, ctx)
        return kind, where


@contextmanager
def open_hosts(hosts: Sequence[tuple[str, str]]) -> Iterator[Host]:
    """The hosts as one, for the length of the block. Raises InputError for one that cannot be had."""
    if not hosts:
        yield Closed()
        return
    from dispatcher.tools import Toolbox

    with ExitStack() as stack:
        yield Toolbox(*(_OPEN[kind](where, stack) for kind, where in hosts))


def _python(where: str, _stack: ExitStack) -> Host:
    from dispatcher.tools import Functions

    path = Path(where)
    documents.read_bytes(path)  # says what is wrong with it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(where, "is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        line = problem.lineno if isinstance(problem, SyntaxError) else _line_in(path, problem)
        raise InputError(where, f"cannot be run: {type(problem).__name__}: {problem}", line=line) from problem
    functions = {
        name: one
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__ and not name.startswith("_")
    }
    if not functions:
        raise InputError(where, "defines no function: each one without a leading underscore is a tool")
    return Functions(functions)


def _line_in(path: Path, problem: BaseException) -> int | None:
    """The last line of the file that the exception came through."""
    line, frame = None, problem.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def _http(where: str, stack: ExitStack) -> Host:
    from dispatcher.tools import HttpTool

    schema, _, url = where.partition("@")
    tool = HttpTool(documents.decode(schema, documents.read_bytes(Path(schema))), url)
    stack.callback(tool.close)
    return tool


def _mcp(where: str, stack: ExitStack) -> Host:
    from dispatcher.tools import McpTools

    if where.startswith(("http://", "https://")):
        return stack.enter_context(McpTools.http(where))
    return stack.enter_context(McpTools.stdio(*shlex.split(where)))


_OPEN: dict[str, Callable[[str, ExitStack], Host]] = {"python": _python, "http": _http, "mcp": _mcp}
