"""An exported app, as it lies on disk: agents with their callbacks, and tools.

Theory. Only names and text are read; no code is compiled here, that is for the sandbox. One bad
resource never costs the others: what cannot be used is left out and said in `App.warnings`, one
line each with file and line. Only when nothing is there at all is that an InputError.

A resource comes from its manifest where there is one (`agents/<Dir>/<Dir>.json`, `tools/...`) and
from the folders where there is none, so a folder written by hand loads as well as an export:

    agents/<Dir>/<hook>s/<any>/python_code.py    agents/<Dir>/<hook>s/<any>.py    agents/<Dir>/<hook>.py
    <hook>s/...  <hook>.py                       (no agents/ at all: one agent, named like the folder)

People refer to a resource by display name, resource name or folder, with spaces and underscores
as they please; `_key` is what makes those the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dispatcher import code, documents
from dispatcher.manifest import Manifest, fill_in
from dispatcher.tree import Tree, leaves, open_tree
from sandbox.errors import CodeError, InputError
from sandbox.invocation import Source

if TYPE_CHECKING:
    from collections.abc import Callable as Function
    from collections.abc import Iterable, Iterator

CALLBACK_LISTS = {
    "before_agent_callback": "beforeAgentCallbacks",
    "after_agent_callback": "afterAgentCallbacks",
    "before_model_callback": "beforeModelCallbacks",
    "after_model_callback": "afterModelCallbacks",
    "before_tool_callback": "beforeToolCallbacks",
    "after_tool_callback": "afterToolCallbacks",
}
"""The hooks an app can have, and the list in an agent's manifest that holds them."""


@dataclass(frozen=True, slots=True)
class Callback:
    """One callback of an agent. `source.name` is its path in the app."""

    hook: str
    source: Source
    description: str = ""
    disabled: bool = False
    proactive: bool = False  # after_model: runs on partial outputs too

    @property
    def name(self) -> str:
        """What tells it from its neighbours: its folder, or its file where that has a name of its own."""
        path = PurePosixPath(self.source.name)
        return path.parent.name if path.stem == "python_code" else path.stem


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent; `name` is its display name. `tools` and `children` are names as the app has them."""

    name: str
    folder: str
    resource: str = ""
    instruction: str = ""
    callbacks: tuple[Callback, ...] = ()
    tools: tuple[str, ...] = ()
    children: tuple[str, ...] = ()

    def chain(self, hook: str) -> tuple[Callback, ...]:
        """The enabled callbacks of one hook, in order."""
        return tuple(callback for callback in self.callbacks if callback.hook == hook and not callback.disabled)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; `source` is its Python code, None for a kind that only the platform runs."""

    name: str
    folder: str
    resource: str = ""
    description: str = ""
    source: Source | None = None
    entry: str = ""  # its function; '' = the first one defined
    asynchronous: bool = False
    timeout_s: float | None = None
    fake: Source | None = None
    fake_mode: bool = False


@dataclass(frozen=True, slots=True)
class App:
    """An app. `variables` are the declared ones, with their defaults (None where there is none)."""

    name: str
    root: str
    agents: tuple[Agent, ...] = ()
    tools: tuple[Tool, ...] = ()
    root_agent: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    sequential: bool = False
    global_instruction: str = ""
    warnings: tuple[str, ...] = ()

    def agent(self, reference: str) -> Agent:
        """The agent of that display name, resource name or folder. Raises InputError that names those there are."""
        return _find("agent", reference, self.agents)

    def tool(self, reference: str) -> Tool:
        """The tool of that display name, resource name or folder. Raises InputError that names those there are."""
        return _find("tool", reference, self.tools)


def load(path: Path) -> App:
    """The app in a folder or zip. Raises InputError when there is none, or it is too large."""
    return of(open_tree(path))


def of(tree: Tree) -> App:
    """The app in a tree of files. Raises InputError when there is none."""
    return _Loader(tree).app()


def _key(name: str) -> str:
    return name.replace(" ", "_")


def _find[R: (Agent, Tool)](kind: str, reference: str, resources: tuple[R, ...]) -> R:
    for resource in resources:
        known_as = {resource.name, resource.folder, resource.resource, resource.resource.rpartition("/")[2]}
        if _key(reference) in {_key(name) for name in known_as if name}:
            return resource
    there = ", ".join(resource.name for resource in resources) or "none"
    raise InputError(f"{kind} {reference!r}", f"no such {kind}; there are: {there}")


class _Loader:
    """Reads one tree once. Everything it cannot use ends in `warnings`."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.warnings: list[str] = list(tree.refused)
        self.manifests: dict[str, Manifest] = {"": Manifest("")}  # an agent's folder -> its manifest
        self.environment = self._manifest("environment")

    def app(self) -> App:
        folder = Path(self.tree.root).resolve().stem
        manifest = self._manifest("app")

        def text(key: str) -> str:
            return self._try(manifest.text, key) or ""

        app = App(
            name=text("displayName") or folder,
            root=self.tree.root,
            agents=tuple(self._agents(folder)),
            tools=tuple(self._each("tools", self._tool)),
            root_agent=text("rootAgent"),
            variables=self._try(_variables, manifest) or {},
            sequential=text("toolExecutionMode") == "SEQUENTIAL",
            global_instruction=self._prose(text("globalInstruction") or "global_instruction.txt"),
        )
        if not (manifest.document or app.agents or app.tools or any(name.endswith(".py") for name in self.tree.names)):
            why = "no app here: neither app.json nor agents/ nor any Python file"
            raise InputError(self.tree.root, "; ".join([why, *self.warnings[:1]]))
        self._try(_refer, app, manifest, "rootAgent", *([app.root_agent] if app.root_agent else []))
        for agent in app.agents:
            self._try(_refer, app, self.manifests[agent.folder], "childAgents", *agent.children)
        return replace(app, warnings=tuple(dict.fromkeys(self.warnings)))

    # -- reading, with a bad resource left out -----------------------------------------------

    def _try[**P, T](self, read: Function[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return read(*args, **kwargs)
        except InputError as problem:
            self.warnings.append(str(problem))
            return None

    def _each[T](self, kind: str, read: Function[[str], T]) -> Iterator[T]:
        for folder in self.tree.folders(kind):
            if (resource := self._try(read, folder)) is not None:
                yield resource

    def _manifest(self, stem: str) -> Manifest:
        """The app's own manifest `stem`; empty when it is not there or is bad."""
        return self._try(self._read_manifest, stem) or Manifest(self.tree.at(f"{stem}.json"))

    def _read_manifest(self, stem: str) -> Manifest:
        """The manifest `stem`.json (.yaml, .yml), empty when not there, `$env_var` filled in. Raises InputError."""
        name = next((name for suffix in SUFFIXES if (name := stem + suffix) in self.tree.names), None)
        if name is None:
            return Manifest(self.tree.at(f"{stem}.json"))
        manifest = Manifest.of(documents.parse(self.tree.at(name), self.tree.read(name)))
        if stem == "environment":
            return manifest
        kind, *folder = stem.split("/")[:2]
        known_as = {_key(part) for part in (*folder, manifest.text("displayName"), manifest.text("name"))}
        given: Any = self.environment.value.get(kind, {})
        if folder and isinstance(given, dict):
            given = next((value for name, value in given.items() if _key(name) in known_as), None)
        manifest, missing = fill_in(manifest, given)
        self.warnings.extend(map(str, missing))
        return manifest

    def _prose(self, value: str) -> str:
        """A text field: the content of the file it names, else the text itself."""
        if value in self.tree.names:
            return self._try(lambda: documents.decode(self.tree.at(value), self.tree.read(value))) or ""
        return "" if value.endswith(".txt") and _is_path(value) else value

    def _code(self, manifest: Manifest) -> Source | None:
        """The `pythonCode` of a manifest's object: the file it names, else the code itself; None when absent."""
        value = manifest.text("pythonCode")
        if value in self.tree.names:
            return self._source(value)
        if _is_path(value):
            why = "leaves the app, refused" if leaves(value) else "no such file in the app"
            raise manifest.error(f"{value}: {why}", "pythonCode")
        where = manifest.name.removeprefix(f"{self.tree.root}/")
        return Source(name=f"{where}#{documents.spell(manifest.path)}", text=value) if value.strip() else None

    def _source(self, name: str) -> Source:
        try:
            return code.decode(name, self.tree.read(name))
        except CodeError as problem:
            raise CodeError(self.tree.at(name), problem.why, line=problem.line) from problem

    # -- agents ------------------------------------------------------------------------------

    def _agents(self, app_folder: str) -> Iterator[Agent]:
        yield from self._each("agents", self._agent)
        if not self.tree.folders("agents") and (callbacks := tuple(self._found_callbacks("", CALLBACK_LISTS))):
            yield Agent(app_folder, "", callbacks=callbacks)

    def _agent(self, folder: str) -> Agent:
        prefix = f"agents/{folder}"
        manifest = self.manifests[folder] = self._read_manifest(f"{prefix}/{folder}")
        listed = [hook for hook, key in CALLBACK_LISTS.items() if manifest.get(key) is not None]
        return Agent(
            name=manifest.text("displayName") or folder.replace("_", " "),
            folder=folder,
            resource=manifest.text("name"),
            instruction=self._prose(manifest.text("instruction") or f"{prefix}/instruction.txt"),
            callbacks=(
                *(callback for hook in listed for callback in self._listed_callbacks(hook, manifest)),
                *self._found_callbacks(prefix, (hook for hook in CALLBACK_LISTS if hook not in listed)),
            ),
            tools=manifest.texts("tools"),
            children=manifest.texts("childAgents"),
        )

    def _listed_callbacks(self, hook: str, manifest: Manifest) -> Iterator[Callback]:
        key = CALLBACK_LISTS[hook]
        for index in range(len(manifest.items(key))):
            if (callback := self._try(self._listed_callback, hook, manifest, key, index)) is not None:
                yield callback

    def _listed_callback(self, hook: str, manifest: Manifest, key: str, index: int) -> Callback:
        entry = manifest.below(key, index)
        if (source := self._code(entry)) is None:
            raise entry.error("pythonCode is missing")
        return Callback(
            hook=hook,
            source=source,
            description=entry.text("description"),
            disabled=entry.flag("disabled"),
            proactive=entry.flag("proactiveExecutionEnabled"),
        )

    def _found_callbacks(self, prefix: str, hooks: Iterable[str]) -> Iterator[Callback]:
        """The callbacks of a layout written by hand, in order of path."""
        for hook in hooks:
            for steps in self.tree.below(prefix):
                if _is_callback(hook, steps):
                    source = self._try(self._source, "/".join((prefix, *steps)).removeprefix("/"))
                    if source is not None:
                        yield Callback(hook, source)

    # -- tools -------------------------------------------------------------------------------

    def _tool(self, folder: str) -> Tool:
        prefix = f"tools/{folder}"
        manifest = self._read_manifest(f"{prefix}/{folder}")
        function, fake = manifest.below("pythonFunction"), manifest.below("toolFakeConfig")
        source = self._code(function)
        if source is None and manifest.document is None:
            places = (f"{prefix}/python_function/python_code.py", f"{prefix}/python_code.py")
            source = next((self._source(place) for place in places if place in self.tree.names), None)
        return Tool(
            name=manifest.text("displayName") or function.text("name") or folder,
            folder=folder,
            resource=manifest.text("name"),
            description=function.text("description") or manifest.text("description"),
            source=source,
            entry=function.text("name"),
            asynchronous=manifest.text("executionType") == "ASYNCHRONOUS",
            timeout_s=_seconds(manifest),
            fake=self._code(fake.below("codeBlock")),
            fake_mode=fake.flag("enableFakeMode"),
        )


SUFFIXES = (".json", ".yaml", ".yml")
_PATH = re.compile(r"[^\n(){}=;]*\.(py|txt)")


def _is_path(value: str) -> bool:
    """Whether a field that is a path or the thing itself looks like a path: one line, and a file's name."""
    return _PATH.fullmatch(value.strip()) is not None


def _is_callback(hook: str, steps: tuple[str, ...]) -> bool:
    """Whether a path below an agent is a callback of `hook`, in one of the layouts at the top of this file."""
    match steps:
        case (folder, _, "python_code.py"):
            return folder == f"{hook}s"
        case (folder, file):
            return folder == f"{hook}s" and file.endswith(".py") and not file.startswith("test")
        case (file,):
            return file == f"{hook}.py"
    return False


def _seconds(manifest: Manifest) -> float | None:
    """A timeout as the export writes it: "20s"."""
    value = manifest.text("timeout")
    if value and not re.fullmatch(r"\d+(\.\d+)?s", value):
        raise manifest.error(f"{value!r} is no duration like 20s", "timeout")
    return float(value[:-1]) if value else None


def _variables(manifest: Manifest) -> dict[str, Any]:
    found = {}
    for index in range(len(manifest.items("variableDeclarations"))):
        entry = manifest.below("variableDeclarations", index)
        if not (name := entry.text("name")):
            raise entry.error("a variable needs a name")
        found[name] = entry.below("schema").get("default")
    return found


def _refer(app: App, manifest: Manifest, key: str, *references: str) -> None:
    """Raises InputError at the first of these agents that the app does not have."""
    for reference in references:
        try:
            app.agent(reference)
        except InputError as problem:
            raise manifest.error(str(problem), key) from problem
