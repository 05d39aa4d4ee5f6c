"""A file of pytest tests, run by pytest inside the sandbox: which tests it has, or one of them.

Theory. pytest works on files and keeps a lot on disk; here nothing is on disk and often nothing can be
written. So the one thing that is replaced is the collector: a module whose source comes with the job,
with its assertions rewritten as pytest does it. All the rest is pytest's own: fixtures, marks,
parameters, unittest classes, and the text of a failure. The configuration is made once in the zygote
(`prepare`), where files can still be read, and used once in each child.

The code beside the tests is importable under its file's name (`from python_code import ...`), with the
runtime's names in it, and is executed when it is imported, so an error in it is an error of the import.

What a test says of itself can be forged by the code it tests, which runs in the same process and may
take pytest apart. It cannot be forged for another test: each runs in a sandbox of its own, and its
name is the question, not the answer. Code can hide a test by not letting it be collected.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.util
import io
import logging
import os
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import _pytest.logging
import pytest
from _pytest.assertion.rewrite import rewrite_asserts
from _pytest.config import _prepareconfig

from sandbox.guest import imports, source
from sandbox.guest.blame import MESSAGE_CHARS, TRACEBACK_CHARS, NoTests, TestFailed, cap
from sandbox.invocation import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from sandbox.hooks import FidelityRow
    from sandbox.invocation import Source

PACKAGES = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"})
"""What is importable in a run of tests, beside what always is."""

# Plugins that want files or descriptors of the process, or cost time for nothing here.
_WITHOUT = """
    cacheprovider doctest faulthandler junitxml legacypath pastebin setuponly setupplan stepwise
    threadexception unraisableexception
""".split()
_ARGUMENTS = (
    "--rootdir=/ --noconftest --capture=no --assert=plain --color=no --tb=short -q -o addopts= -o verbosity_assertions=2".split()
    + [word for name in _WITHOUT for word in ("-p", f"no:{name}")]
)
_WARM = "import pytest\n@pytest.fixture\ndef one():\n    return 1\ndef test_{0}(one, capsys):\n    assert one == {0}\n"

_configured: list[pytest.Config] = []
_modules: dict[str, ModuleType] = {}


class _Nowhere(logging.NullHandler):
    """In place of a log file on /dev/null, which pytest opens even where it has none, and here is not there."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


_pytest.logging._FileHandler = _Nowhere  # type: ignore[assignment,misc]


def prepare() -> None:
    """In the zygote: import all that pytest imports late, and make the configuration the children use."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for turn in (1, 2):  # one test that passes and one that fails: both ways are warm
        text = _WARM.format(turn)
        _configured.append(_prepareconfig(list(_ARGUMENTS)))
        config = _configured[-1]
        _session(_source("warm.py", text), f"test_{turn}")
        config._ensure_unconfigure()
    _configured.append(_prepareconfig(list(_ARGUMENTS)))
    del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
    import unittest.mock  # noqa: F401  # tests use it, and in tier C nothing can be opened later

    _modules.update({name: module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES})
    source.forget()


def _source(name: str, text: str) -> Source:
    from sandbox.invocation import Source

    return Source(name=name, text=text)


def run(sources: Sequence[Source], names: Mapping[str, Any], row: FidelityRow, wanted: str | None) -> dict[str, Any]:
    """The tests in the last of `sources`, or how the one called `wanted` ended. Raises TestFailed."""
    *code, tests = sources
    try:
        Path("/").stat()
    except PermissionError:
        why = "pytest looks at files, and in tier C there is no looking at any; tests need a worker of tier B or A"
        raise NoTests(why, tests.name) from None
    sys.modules.update(_modules)
    sys.meta_path[:] = [_Beside(code, names), *imports.wider(sys.meta_path, PACKAGES)]
    with imports.offered(row, names):
        seen = _session(tests, wanted)
    if seen.failure is not None:
        raise TestFailed(seen.failure)
    if seen.skipped is not None and not seen.passed:
        return {"outcome": "skipped", "reason": cap(seen.skipped, MESSAGE_CHARS), "tests": []}
    if wanted is None:
        return {"tests": seen.tests}
    if not seen.passed:
        there = ", ".join(test["name"] for test in seen.tests) or "none"
        why = "pytest says nothing of it" if seen.chosen else f"{wanted}: no such test; there are: {there}"
        raise TestFailed(ErrorInfo(type="NoResult", message=cap(why, MESSAGE_CHARS), file=tests.name))
    return {"outcome": "xfailed" if seen.expected_failure else "passed"}


def _session(tests: Source, wanted: str | None) -> Seen:
    """What pytest's own `main` does with a session, but nothing that looks at the disk."""
    config = _configured.pop()
    seen = Seen(tests, wanted)
    config.pluginmanager.register(seen)
    config._do_configure()
    config.get_terminal_writer()._file = io.StringIO()  # what pytest prints itself; tests print to our streams
    session = pytest.Session.from_config(config)
    with contextlib.suppress(pytest.exit.Exception, session.Interrupted, session.Failed):
        config.hook.pytest_sessionstart(session=session)
        config.hook.pytest_collection(session=session)
        config.hook.pytest_runtestloop(session=session)
    return seen


class Seen:
    """A plugin: it collects from the source at hand, and keeps what was reported."""

    def __init__(self, tests: Source, wanted: str | None) -> None:
        self._tests = tests
        self._wanted = wanted
        self.tests: list[dict[str, Any]] = []
        self.chosen = self.passed = self.expected_failure = False
        self.skipped: str | None = None
        self._failed: pytest.CollectReport | pytest.TestReport | None = None  # the first that did
        self._kind = "Failed"

    def pytest_collection(self, session: pytest.Session) -> bool:
        module = _Module.from_parent(session, path=Path("/") / self._tests.name)
        module.source = self._tests
        items = [(_name(item), item) for item in session.genitems(module)]
        self.tests = [{"name": name, "line": (item.location[1] or 0) + 1} for name, item in items]
        session.items = [item for name, item in items if name == self._wanted][:1]
        self.chosen = bool(session.items)
        session.testscollected = len(session.items)
        return True

    @property
    def failure(self) -> ErrorInfo | None:
        return None if self._failed is None else _error(self._failed, self._kind, self._tests.name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_exception_interact(self, call: pytest.CallInfo[Any], report: object) -> None:
        if report is self._failed and call.excinfo is not None:
            self._kind = call.excinfo.typename

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)
        if report.when == "call" and report.outcome == "passed":
            self.passed = True
        if report.outcome == "skipped" and hasattr(report, "wasxfail"):
            self.passed = self.expected_failure = True

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.outcome == "failed":
            self._failed = self._failed or report
        elif report.outcome == "skipped":
            why = report.longrepr
            self.skipped = str(why[2] if isinstance(why, tuple) else why or "").removeprefix("Skipped: ")


def _name(item: pytest.Item) -> str:
    """A test's name in its file: `TestClass::test_it[parameters]`."""
    return item.nodeid.partition("::")[2]


def _error(report: pytest.CollectReport | pytest.TestReport, kind: str, file: str) -> ErrorInfo:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:  # of an import: its text is all there is
        lines = report.longreprtext.splitlines() or [""]
        shown = next((line[1:].strip() for line in lines if line.startswith("E  ")), lines[-1])
        kind, _, message = shown.partition(": ")
    else:
        message = str(crash.message).removeprefix(f"{kind}: ")
    at, line = (str(crash.path), int(crash.lineno)) if crash else (file, None)
    where = report.nodeid.partition("::")[2]
    when = "" if report.when in {"call", "collect"} else f" ({report.when} of {where})"
    return ErrorInfo(
        type=cap(kind, MESSAGE_CHARS),
        message=cap(message, MESSAGE_CHARS) + when,
        traceback=cap(report.longreprtext, TRACEBACK_CHARS) + "\n",
        file=at,
        line=line,
    )


class _Module(pytest.Module):
    """A module whose source is no file."""

    source: Source

    def _getobj(self) -> ModuleType:
        text, name = self.source.text, self.source.name
        source.show_lines(self.source)
        module = source.module_for(self.source, 0, {})
        module.__name__ = PurePosixPath(name).stem
        sys.modules[module.__name__] = module
        try:
            tree = ast.parse(text, name)
            rewrite_asserts(tree, text.encode(), name, self.config)
            exec(compile(tree, name, "exec", dont_inherit=True), module.__dict__)
        except pytest.skip.Exception:
            raise
        except Exception as error:
            raise self.CollectError(self._repr(error)) from error
        return module

    def _repr(self, error: Exception) -> str:
        """The error of an import, from the user's own frames."""
        whole = pytest.ExceptionInfo.from_exception(error)
        own = {self.source.name, *_Beside.files}
        whole.traceback = whole.traceback.filter(lambda entry: str(entry.path) in own)
        return str(whole.getrepr(style="short")) if whole.traceback else whole.exconly()


class _Beside(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the code beside the tests, by its file's name."""

    files: frozenset[str] = frozenset()

    def __init__(self, code: Sequence[Source], names: Mapping[str, Any]) -> None:
        self._code = {PurePosixPath(one.name).stem: one for one in code}
        self._names = names
        _Beside.files = frozenset(one.name for one in code)

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if fullname not in self._code:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=self._code[fullname].name)

    def exec_module(self, module: ModuleType) -> None:
        one = self._code[module.__name__]
        source.show_lines(one)
        module.__dict__.update(source.module_for(one, 0, self._names).__dict__ | {"__name__": module.__name__})
        source.warn(one)
        source.execute(one, module)
