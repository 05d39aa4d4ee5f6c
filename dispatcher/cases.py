"""Case files: what to run, with what, and what is expected of it.

A case file is a list of cases (or `{cases: [...]}`), in YAML or JSON, or one case a line, in JSONL. A
case says one of `hook` (the callbacks of an agent's hook, all enabled ones in order unless
`callbacks` names some, or `code` has them in the case itself), `tool` (a Python tool) or `turns` (a
conversation with a scripted model, see `scripts`).

    - name: a free bag is counted once
      agent: Booking Desk
      hook: after_tool_callback
      context: {variables: {booking: {bags: 1}}}
      arguments: {tool: {name: add_bag}, input: {}, tool_response: {result: ok}}
      tools: {lookup_fare: {returns: {price: 30}}}
      expect: {variables: {booking: {bags: 2}}, stdout: {matches: "bag"}}

    - name: a case that needs no app
      hook: before_agent_callback
      code: |
        def before_agent_callback(callback_context):
          callback_context.variables["seen"] = True
      expect: {variables: {seen: true}}

Read strictly, because a misspelt `expct` that is ignored is a case that always passes: an unknown
key, agent, argument, callback or limit is an InputError with file and line before anything runs.
How `expect` is held against a verdict is in `expect.py`; where it says nothing of the status, the
status must be ok (or, when it says something of the error, callback_error).

A case is known by its `id`, `FILE::NAME`, and by a digest of all that decides what it does and what is
expected; a case without a name is called by its number in the file.

Tests beside the code (`test.py` beside a `python_code.py`) are cases too: one that asks, in the
sandbox, which tests there are (`collects`), and then one for each of those (`collected`).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from dispatcher import apps, code, documents, inputs, scripts, strangers
from dispatcher.canned import Answer, Canned
from dispatcher.documents import Document
from dispatcher.entries import SUFFIXES, entries
from dispatcher.expect import check_patterns
from dispatcher.scripts import Script
from dispatcher.session import Session
from dispatcher.tree import Tree, open_tree
from dispatcher.verdict import Verdict
from sandbox.contract import Limits, Status
from sandbox.errors import InputError, SettingsError
from sandbox.hooks import HOOKS, parse
from sandbox.host import Closed, Host
from sandbox.invocation import Dialect, Fidelity, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dispatcher.apps import Agent, App

FOLDERS = ("evaluations", "cases")
"""Where an app keeps its case files; a bare folder may have them as `cases.yaml` or `<any>.cases.yaml`."""

EXPECTABLE = tuple(name for name in Verdict.model_fields if name not in {"usage", "layers", "tier"})
"""What a case may expect: all of a verdict but what differs from run to run and host to host."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case, ready to run: everything in it was checked."""

    name: str
    agent: str
    hook: str
    sources: tuple[Source, ...]
    session: Session
    expect: Mapping[str, Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    entry: str = ""
    dialect: Dialect = "ces"
    fidelity: Fidelity = "documented"
    limits: Limits = field(default_factory=Limits)
    tools: Mapping[str, list[Answer]] = field(default_factory=dict)
    script: Script | None = None  # of a conversation
    file: str = ""  # as people can open it
    line: int | None = None
    run: int = 1  # which of several runs of the same case

    @property
    def id(self) -> str:
        """What tells it from every other case, wherever that is."""
        return f"{self.file}::{self.name}"

    @property
    def where(self) -> str:
        """File and line of the case."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    @property
    def digest(self) -> str:
        """Of its code, its input and what it expects: another digest is another case under the same name."""
        content = (
            self.hook,
            [(source.name, source.text) for source in self.sources],
            self.session.model_dump(),
            dict(self.arguments),
            self.entry,
            self.dialect,
            self.fidelity,
            asdict(self.limits),
            {name: [answer.model_dump(exclude_unset=True) for answer in given] for name, given in self.tools.items()},
            dict(self.expect),
            *(self.script.digest() if self.script else ()),
        )
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def check_deadline(self, deadline_s: float) -> None:
        """Raises InputError for a case that would be given up before its own limit."""
        if self.limits.wall_s > deadline_s:
            why = f"limit wall_s, {self.limits.wall_s:g}, is above the deadline, {deadline_s:g} (setting HOOKPOOL_DEADLINE_S)"
            raise InputError(self.file, why, line=self.line)

    def as_run(self, run: int) -> Case:
        """The same case, run once more."""
        return replace(self, run=run)

    def host(self, beside: Host = Closed()) -> Host:
        """What answers this case's tool calls, fresh for each run; `beside` those it says nothing of."""
        return Canned(self.tools, beside) if self.tools else beside


@dataclass(frozen=True, slots=True)
class Suite:
    """An app and its cases, in the order of their files."""

    app: App
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """An app and its case files, not read yet: each iteration reads them anew, one file at a time."""

    app: App
    tree: Tree
    files: tuple[str, ...]

    def __iter__(self) -> Iterator[Case]:
        """Every case in the order of the files. Raises InputError at the first mistake."""
        for name in self.files:
            shown = _shown(self.tree.at(name))
            if name.endswith(".py"):
                yield _tests(self, name, shown)
            else:
                yield from _Reader(self.tree, self.app, shown, name).cases()


type _Several[T] = Annotated[list[T], BeforeValidator(lambda given: given if isinstance(given, list) else [given])]
"""A list, or the one thing that would be in it."""


class _Spec(BaseModel):
    """A case as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    description: str = ""
    agent: str = ""
    hook: str = ""
    tool: str = ""
    callbacks: list[str] | None = None
    code: _Several[str] = []
    entry: str = ""  # the function of a python_tool whose code is here
    context: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    dialect: Dialect = "ces"
    fidelity: Fidelity = "documented"
    limits: dict[str, float] = {}
    tools: dict[str, _Several[Answer]] = {}
    turns: list[Any] | None = None
    on_error: scripts.OnError | None = None
    expect: dict[str, Any] | None = None


def load(path: Path) -> Suite:
    """The app at `path` (folder or zip) with its cases; or, given a case file, those of that file.

    Raises InputError, with file and line, for anything that is not as it should be, and when there
    are no cases.
    """
    found = find(path)
    cases = tuple(found)
    if not cases:
        raise none_in([path])
    return Suite(found.app, cases)


def find(path: Path) -> Found:
    """The app at `path` and the names of its case files; or that case file, with the app around it.

    Raises InputError where there is nothing.
    """
    tree, files = _locate(path)
    try:
        app = apps.of(tree)
    except InputError:
        if not files:
            raise
        app = apps.App("", tree.root)  # cases that bring their code along need none
    return Found(app, tree, tuple(files))


TEST_HOOK = "python_test"
TEST_FILE, TESTED = "test.py", "python_code.py"
COLLECT = "*"
"""The name of the case that asks which tests a file has. No test is called that."""


def _tests(found: Found, name: str, shown: str) -> Case:
    """The case that asks which tests are in the file `name`. Raises InputError."""
    beside = str(PurePosixPath(name).with_name(TESTED))
    sources = tuple(
        code.decode(one, found.tree.read(one)) for one in (beside, name) if one == name or one in found.tree.names
    )
    owners = [agent.name for agent in found.app.agents for c in agent.callbacks if c.source.name == beside]
    agent = owners[0] if owners else ""
    return Case(COLLECT, agent, TEST_HOOK, sources, Session(agent_name=agent), {"status": "ok"}, file=shown)


def collects(case: Case) -> bool:
    """Whether the case is the question which tests there are."""
    return case.hook == TEST_HOOK and not case.arguments


def collected(case: Case, verdict: Verdict) -> Iterator[Case]:
    """The tests of a file as its code names them: what `case` was told. An answer of another form has none."""
    there = verdict.returned.get("tests") if isinstance(verdict.returned, dict) else None
    seen: set[str] = set()
    for test in there if isinstance(there, list) else ():
        match test:
            case {"name": str(name), "line": int(line)} if name != COLLECT and name not in seen:
                seen.add(name)
                yield one_test(case, name, line)


def one_test(case: Case, name: str, line: int | None) -> Case:
    """One test of the file that `case` asks about."""
    return replace(case, name=name, line=line, arguments={"input": {"test": name}})


def none_in(paths: Sequence[Path]) -> InputError:
    """What to say when there is no case anywhere in `paths`."""
    places = f"neither {FOLDERS[0]}/* nor {FOLDERS[1]}/* nor cases.yaml (.json, .jsonl) has any"
    return InputError(", ".join(map(str, paths)), f"no cases: {places}; hookpool eval --help shows one")


def of(app: App, tree: Tree, given: Iterable[Mapping[str, Any]], name: str = "cases", start: int = 1) -> Iterator[Case]:
    """Cases that are plain data already, in the format of a case file. Raises InputError."""
    reader = _Reader(tree, app, name, "")
    for number, value in enumerate(given, start):
        document = Document(name, dict(value))
        documents.check(document)
        yield reader.case(document, number)


def _locate(path: Path) -> tuple[Tree, list[str]]:
    """The app's files, and the names of its case files."""
    if path.suffix == ".py" and path.name != TEST_FILE and path.is_file():
        raise InputError(str(path), "is code; give its folder, with the cases for it in a cases.yaml there")
    if path.suffix.lower() not in SUFFIXES | {".py"} or path.is_dir():
        tree = open_tree(path)
        names = [PurePosixPath(name) for name in sorted(tree.names)]
        files = [name for name in names if _is_case_file(name)]
        tests = [name for name in names if name.name == TEST_FILE and str(name.with_name(TESTED)) in tree.names]
        return tree, [str(name) for name in (*files, *tests)]
    if not path.exists():
        raise InputError(str(path), "no such file")
    file = path.absolute()
    marks = ("app.json", "app.yaml", "app.yml", "agents")
    root = next(
        (folder for folder in list(file.parents)[:4] if any((folder / mark).exists() for mark in marks)), file.parent
    )
    for spelt in (path.parent, *path.parent.parents):  # the root as the user would write it
        if spelt.absolute() == root:
            root = spelt
            break
    return open_tree(root), [file.relative_to(root.absolute()).as_posix()]


def _is_case_file(path: PurePosixPath) -> bool:
    if path.suffix.lower() not in SUFFIXES:
        return False
    folder, stem = path.parts[:-1], path.stem
    return (len(folder) == 1 and folder[0] in FOLDERS) or (not folder and (stem == "cases" or stem.endswith(".cases")))


def _shown(path: str) -> str:
    """A file below the working directory by its way from there, however it was given; any other as it is."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


class _Reader:
    """Reads one case file against its app."""

    def __init__(self, tree: Tree, app: App, shown: str, name: str) -> None:
        self.tree = tree
        self.app = app
        self.shown = shown  # the file as people can open it
        self.name = name  # the file in the tree
        self.document = Document(shown, None)  # of the case at hand

    def cases(self) -> Iterator[Case]:
        first: dict[str, int | None] = {}
        for number, entry in enumerate(entries(self.shown, self.tree.read(self.name)), 1):
            case = self.case(entry, number)
            if case.name in first:
                raise entry.error(f"case {case.name!r} is there already, in line {first[case.name]}")
            first[case.name] = case.line
            yield case

    def case(self, entry: Document, number: int) -> Case:
        """One case; `number` is what it is called by where it has no name. Raises InputError."""
        self.document = entry
        case = self._case(entry.value, ())
        return replace(
            case, name=case.name or f"#{number}", file=entry.name, line=entry.above + 1 if entry.text else None
        )

    def _case(self, value: Any, path: inputs.Path) -> Case:  # plain data
        spec = inputs.validate(_Spec, value, self.document, path, "case")
        kinds = [kind for kind in KINDS if getattr(spec, kind) or kind in spec.model_fields_set]
        if spec.entry and not (spec.code and spec.hook == "python_tool"):
            raise self.document.error("`entry` names the function of a python_tool with `code`", *path, "entry")
        if len(kinds) != 1:
            raise self.document.error(f"case {spec.name!r} needs one of: {', '.join(KINDS)}", *path)
        hook, agent, sources, entry = KINDS[kinds[0]](self, spec, path)
        script, expect = self._expectation(spec, path)
        self._refuse_strangers(spec, hook)
        return Case(
            name=spec.name,
            agent=agent,
            hook=hook,
            sources=sources,
            entry=entry,
            session=inputs.session(
                self.document, (*path, "context"), agent_name=agent, variables=dict(self.app.variables)
            ),
            arguments=self._arguments(spec, hook, path),
            dialect=spec.dialect,
            fidelity=spec.fidelity,
            limits=self._limits(spec, path),
            tools=spec.tools,
            script=script,
            expect=expect,
        )

    # -- the kinds of case ---------------------------------------------------------------------

    def of_hook(self, spec: _Spec, path: inputs.Path) -> _Target:
        asked = (spec.arguments or {}).get("input")
        if spec.hook == TEST_HOOK and not (isinstance(asked, dict) and asked.get("test")):
            raise self.document.error(f"a case of {TEST_HOOK} says which: arguments {{input: {{test: NAME}}}}", *path)
        if spec.hook not in HOOKS:
            raise self.document.error(f"hook {spec.hook!r} is none of {', '.join(HOOKS)}", *path, "hook")
        if spec.code:
            return spec.hook, spec.agent, self._here(spec, path), spec.entry
        if spec.callbacks == []:
            raise self.document.error(f"case {spec.name!r} names no callback", *path, "callbacks")
        if spec.callbacks is not None and not spec.agent and not self.app.agents:
            return spec.hook, "", tuple(self._named(name, (), path) for name in spec.callbacks), ""
        agent = self._agent(spec, path)
        if spec.callbacks is not None:
            there = tuple(callback for callback in agent.callbacks if callback.hook == spec.hook)
            return spec.hook, agent.name, tuple(self._named(name, there, path) for name in spec.callbacks), ""
        chain = agent.chain(spec.hook)
        if not chain:
            raise self.document.error(f"agent {agent.name!r} has no enabled {spec.hook}", *path, "hook")
        return spec.hook, agent.name, tuple(callback.source for callback in chain), ""

    def of_tool(self, spec: _Spec, path: inputs.Path) -> _Target:
        try:
            tool = self.app.tool(spec.tool)
        except InputError as problem:
            raise self.document.error(str(problem), *path, "tool") from problem
        if tool.source is None:
            raise self.document.error(
                f"tool {tool.name!r} has no Python code, only the platform runs it", *path, "tool"
            )
        return "python_tool", self._agent(spec, path).name if spec.agent else "", (tool.source,), tool.entry

    def of_turns(self, spec: _Spec, path: inputs.Path) -> _Target:
        for name in ("callbacks", "code", "arguments", "expect"):
            if name in spec.model_fields_set:
                why = f"a conversation has no `{name}`" + ("; each of its turns has" if name == "expect" else "")
                raise self.document.error(why, *path, name)
        return scripts.HOOK, self._agent(spec, path).name if spec.agent else "", (), ""

    def _here(self, spec: _Spec, path: inputs.Path) -> tuple[Source, ...]:
        """The code a case brings along, as files `code.py`, `code_2.py`, ..."""
        if spec.callbacks is not None:
            raise self.document.error(f"case {spec.name!r} has both `code` and `callbacks`", *path, "code")
        names = ["code.py", *(f"code_{number}.py" for number in range(2, len(spec.code) + 1))]
        if spec.hook == TEST_HOOK:
            names = [*(TESTED, *names)[: len(spec.code) - 1], TEST_FILE]
        return tuple(code.decode(name, text.encode()) for name, text in zip(names, spec.code, strict=True))

    def _agent(self, spec: _Spec, path: inputs.Path) -> Agent:
        if not spec.agent and len(self.app.agents) == 1:
            return self.app.agents[0]
        if not spec.agent:
            if not self.app.agents:
                why = f"case {spec.name!r} must say what to run: `callbacks: [FILE.py]`, or `code`"
                raise self.document.error(why, *path)
            names = ", ".join(agent.name for agent in self.app.agents)
            raise self.document.error(f"case {spec.name!r} must say which agent; there are: {names}", *path)
        try:
            return self.app.agent(spec.agent)
        except InputError as problem:
            raise self.document.error(str(problem), *path, "agent") from problem

    def _named(self, name: str, there: tuple[apps.Callback, ...], path: inputs.Path) -> Source:
        """The callback a case names: one of the agent's by its name, or any file of the app."""
        for callback in there:
            if name in {callback.name, callback.source.name}:
                return callback.source
        if name in self.tree.names:
            return code.decode(name, self.tree.read(name))
        names = ", ".join(callback.name for callback in there)
        why = f"callback {name!r}: no such file in the app" + (f"; the agent has: {names}" if names else "")
        raise self.document.error(why, *path, "callbacks")

    # -- the parts of a case -------------------------------------------------------------------

    def _refuse_strangers(self, spec: _Spec, hook: str) -> None:
        found = [("context", *steps) for steps in strangers.in_context(spec.context or {})]
        if hook in HOOKS and not spec.tool:
            found += [("arguments", *steps) for steps in strangers.in_arguments(spec.arguments, hook, spec.dialect)]
        if found:
            raise self.document.error(f"unknown key {documents.spell(found[0])}", *found[0])

    def _arguments(self, spec: _Spec, hook: str, path: inputs.Path) -> Mapping[str, Any]:
        if spec.turns is not None:
            return {}
        if spec.tool:  # a tool's arguments are the tool's own
            return parse(HOOKS[hook], {"input": spec.arguments or {}}, spec.dialect)
        return inputs.arguments(self.document, hook, spec.dialect, (*path, "arguments"))

    def _limits(self, spec: _Spec, path: inputs.Path) -> Limits:
        try:
            return Limits.of(**spec.limits)
        except SettingsError as problem:
            raise self.document.error(str(problem), *path, "limits") from problem

    def _expectation(self, spec: _Spec, path: inputs.Path) -> tuple[Script | None, Mapping[str, Any]]:
        """The script of a conversation with what is expected of it; of any other case, what is expected."""
        if spec.turns is not None:
            turns, expected = scripts.read(self.document, path, spec.turns)
            return Script(self.app, tuple(turns), spec.on_error or "fallback"), {"turns": expected}
        if spec.on_error is not None:
            raise self.document.error("`on_error` is of a conversation", *path, "on_error")
        if spec.expect is None:
            raise self.document.error("case needs 'expect'", *path)
        return None, self._expect(spec.expect, path)

    def _expect(self, expect: Mapping[str, Any], path: inputs.Path) -> Mapping[str, Any]:
        for key in expect:
            if key not in EXPECTABLE:
                why = f"unknown key {key!r} in expect; there are: {', '.join(EXPECTABLE)}"
                raise self.document.error(why, *path, "expect", key)
        if (status := expect.get("status")) is not None and status not in set(Status):
            raise self.document.error(f"status {status!r} is none of {', '.join(Status)}", *path, "expect", "status")
        check_patterns(self.document, expect, (*path, "expect"))
        implied = Status.CALLBACK_ERROR if expect.get("error") else Status.OK
        return {"status": implied.value, **expect}


type _Target = tuple[str, str, tuple[Source, ...], str]
"""What a kind of case resolves to: hook, agent's name, sources, entry."""

KINDS: dict[str, Callable[[_Reader, _Spec, inputs.Path], _Target]] = {
    "hook": _Reader.of_hook,
    "tool": _Reader.of_tool,
    "turns": _Reader.of_turns,
}
"""The key that makes a case what it is, and how that is resolved."""
