"""An exported app, as it lies on disk: agents with their callbacks, tools, toolsets, guardrails.

Theory. Only names and text are read; no code runs here, that is for the sandbox. One bad resource
never costs the others: what cannot be used is left out and said in `App.warnings`, one line each
with file and line. Only when nothing is there at all is that an InputError. A callback whose syntax
is wrong is the exception to the leaving out: it is said, and keeps its place, so that its hook
fails when it is due. A guard that cannot run must not open the gate.

A resource comes from its manifest where there is one (`agents/<Dir>/<Dir>.json`, `tools/...`) and
from the folders where there is none, so a folder written by hand loads as well as an export:

    agents/<Dir>/<hook>s/<any>/python_code.py    agents/<Dir>/<hook>s/<any>.py    agents/<Dir>/<hook>.py
    <hook>s/...  <hook>.py                       (no agents/ at all: one agent, named like the folder)

What only the platform can run (a guardrail that asks a model, a transfer rule that is an expression)
is left out and said. Its own `evaluationDatasets`, `evaluationExpectations` and `examples` are not read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher import code, documents, fields, syntax
from dispatcher.manifest import Manifest, fill_in
from dispatcher.resources import (
    CALLBACK_LISTS,
    Agent,
    App,
    Callback,
    ErrorHandling,
    Guardrail,
    ModelSettings,
    Tool,
    Toolset,
    TransferRule,
    find,
    key,
    named,
)
from dispatcher.tree import Tree, leaves, open_tree
from sandbox.errors import CodeError, InputError
from sandbox.invocation import Source

if TYPE_CHECKING:
    from collections.abc import Callable as Function
    from collections.abc import Iterable, Iterator, Sequence

    from dispatcher.resources import Resource

__all__ = ["CALLBACK_LISTS", "Agent", "App", "Callback", "Guardrail", "Tool", "Toolset", "load", "of"]

GUARDRAIL_CALLBACKS = {
    "before_agent_guardrail": "beforeAgentCallback",
    "before_model_guardrail": "beforeModelCallback",
    "after_model_guardrail": "afterModelCallback",
    "after_agent_guardrail": "afterAgentCallback",
}
"""The hook of a guardrail's slot, and the key of its `codeCallback` that holds it."""


def load(path: str | Path) -> App:
    """The app in a folder or zip. Raises InputError when there is none, or it is too large."""
    return of(open_tree(Path(path)))


def of(tree: Tree) -> App:
    """The app in a tree of files. Raises InputError when there is none."""
    return _Loader(tree).app()


class _Loader:
    """Reads one tree once. Everything it cannot use ends in `warnings`."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.warnings: list[str] = list(tree.refused)
        self.manifests: dict[str, Manifest] = {"": Manifest("")}  # an agent's folder -> its manifest
        self.sources: list[Source] = []
        self.environment = self._manifest("environment")

    def app(self) -> App:
        folder = Path(self.tree.root).resolve().stem
        manifest = self._manifest("app")

        def text(name: str) -> str:
            return self._try(manifest.text, name) or ""

        app = App(
            name=text("displayName") or folder,
            root=self.tree.root,
            agents=tuple(self._agents(folder)),
            tools=tuple(self._each("tools", self._tool)),
            toolsets=tuple(self._each("toolsets", self._toolset)),
            guardrails=tuple(self._each("guardrails", self._guardrail)),
            everywhere=self._try(manifest.texts, "guardrails") or (),
            root_agent=text("rootAgent"),
            variables=dict(self._variables(manifest)),
            sequential=self._try(fields.sequential, manifest) or False,
            model=self._try(fields.model, manifest) or ModelSettings(),
            errors=self._try(fields.error_handling, manifest) or ErrorHandling(),
            global_instruction=self._prose(text("globalInstruction") or "global_instruction.txt"),
        )
        if not (manifest.document or app.agents or app.tools or any(name.endswith(".py") for name in self.tree.names)):
            why = "no app here: neither app.json nor agents/ nor any Python file"
            raise InputError(self.tree.root, "; ".join([why, *self.warnings[:1]]))
        self._check_references(app, manifest)
        for source, line, why in syntax.problems(self.sources):
            self.warnings.append(str(CodeError(self.tree.at(source.name), why, line=line)))
        return replace(app, warnings=tuple(dict.fromkeys(self.warnings)))

    def _check_references(self, app: App, manifest: Manifest) -> None:
        """Warn of each name that nothing has. Tools are not among them: whoever runs the app may bring some."""
        root = [app.root_agent] if app.root_agent else []
        references: list[tuple[Manifest, str, tuple[Resource, ...], Sequence[str]]] = [
            (manifest, "rootAgent", app.agents, root),
            (manifest, "guardrails", app.guardrails, app.everywhere),
        ]
        for agent in app.agents:
            own = self.manifests[agent.folder]
            references += [
                (own, "childAgents", app.agents, agent.children),
                (own, "guardrails", app.guardrails, agent.guardrails),
                (own, "toolsets", app.toolsets, tuple(use.toolset for use in agent.toolsets)),
                (own, "transferRules", app.agents, tuple(rule.child for rule in agent.rules)),
            ]
        for where, field, there, names in references:
            for name in names:
                self._try(_refer, where, field, name, there)
        kinds: tuple[tuple[Resource, ...], ...] = (app.agents, app.tools, app.toolsets, app.guardrails)
        for resources in kinds:
            self._warn_of_twins(resources)

    def _warn_of_twins(self, resources: tuple[Resource, ...]) -> None:
        first: dict[str, Resource] = {}
        for one in resources:
            other = first.setdefault(key(one.name), one)
            if other is not one:
                why = f"{one.name!r} is also the name of {other.folder}; a reference to it means that one"
                self.warnings.append(f"{self.tree.root}: {one.folder}: {why}")

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

    def _items[T](self, manifest: Manifest, name: str, read: Function[[Manifest], T | None]) -> Iterator[T]:
        """What `read` makes of each object of a list; one that is bad costs only itself."""
        for index in range(len(manifest.items(name))):
            entry = self._try(manifest.below, name, index)
            if entry is not None and (found := self._try(read, entry)) is not None:
                yield found

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
        known_as = {key(part) for part in (*folder, manifest.text("displayName"), manifest.text("name"))}
        given: Any = self.environment.value.get(kind, {})
        if folder and isinstance(given, dict):
            given = next((value for name, value in given.items() if key(name) in known_as), None)
        manifest, missing = fill_in(manifest, given)
        self.warnings.extend(map(str, missing))
        return manifest

    def _prose(self, value: str) -> str:
        """A text field: the content of the file it names, else the text itself."""
        if value in self.tree.names:
            return self._try(self._text, value) or ""
        return "" if value.endswith(".txt") and _is_path(value) else value

    def _text(self, name: str) -> str:
        return documents.decode(self.tree.at(name), self.tree.read(name))

    def _code(self, manifest: Manifest) -> Source | None:
        """The `pythonCode` of a manifest's object: the file it names, else the code itself; None when absent."""
        value = manifest.text("pythonCode")
        if value in self.tree.names:
            return self._source(value)
        if _is_path(value):
            raise manifest.error(f"{value}: {_missing(value)}", "pythonCode")
        if not value.strip():
            return None
        where = manifest.name.removeprefix(f"{self.tree.root}/")
        self.sources.append(Source(name=f"{where}#{documents.spell(manifest.path)}", text=value))
        return self.sources[-1]

    def _needed_code(self, manifest: Manifest) -> Source:
        if (source := self._code(manifest)) is None:
            raise manifest.error("pythonCode is missing")
        return source

    def _source(self, name: str) -> Source:
        try:
            self.sources.append(code.decode(name, self.tree.read(name)))
        except CodeError as problem:
            raise CodeError(self.tree.at(name), problem.why, line=problem.line) from problem
        return self.sources[-1]

    def _variables(self, manifest: Manifest) -> Iterator[tuple[str, Any]]:
        def read(entry: Manifest) -> tuple[str, Any]:
            if not (name := entry.text("name")):
                raise entry.error("a variable needs a name")
            return name, entry.below("schema").get("default")

        if self._try(manifest.items, "variableDeclarations"):
            yield from self._items(manifest, "variableDeclarations", read)

    # -- agents ------------------------------------------------------------------------------

    def _agents(self, app_folder: str) -> Iterator[Agent]:
        yield from self._each("agents", self._agent)
        if not self.tree.folders("agents") and (callbacks := tuple(self._found_callbacks("", CALLBACK_LISTS))):
            yield Agent(app_folder, "", callbacks=callbacks)

    def _agent(self, folder: str) -> Agent:
        prefix = f"agents/{folder}"
        manifest = self.manifests[folder] = self._read_manifest(f"{prefix}/{folder}")
        listed = [hook for hook, name in CALLBACK_LISTS.items() if manifest.get(name) is not None]
        return Agent(
            name=manifest.text("displayName") or folder.replace("_", " "),
            folder=folder,
            resource=manifest.text("name"),
            description=manifest.text("description"),
            instruction=self._prose(manifest.text("instruction") or f"{prefix}/instruction.txt"),
            callbacks=(
                *(callback for hook in listed for callback in self._listed_callbacks(hook, manifest)),
                *self._found_callbacks(prefix, (hook for hook in CALLBACK_LISTS if hook not in listed)),
            ),
            tools=manifest.texts("tools"),
            toolsets=tuple(self._items(manifest, "toolsets", fields.toolset_use)),
            children=manifest.texts("childAgents"),
            guardrails=manifest.texts("guardrails"),
            rules=tuple(self._items(manifest, "transferRules", self._rule)),
            model=fields.model(manifest),
        )

    def _listed_callbacks(self, hook: str, manifest: Manifest) -> Iterator[Callback]:
        return self._items(manifest, CALLBACK_LISTS[hook], lambda entry: self._callback(hook, entry))

    def _callback(self, hook: str, entry: Manifest) -> Callback:
        return Callback(
            hook=hook,
            source=self._needed_code(entry),
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

    def _rule(self, entry: Manifest) -> TransferRule | None:
        """A rule whose condition is code. Another kind is for the platform alone, and said."""
        condition = entry.below("deterministicTransfer").below("pythonCodeCondition")
        direction, child = entry.text("direction") or DIRECTIONS[0], entry.text("childAgent")
        if direction not in DIRECTIONS:
            raise entry.error(f"{direction!r} is none of {', '.join(DIRECTIONS)}", "direction")
        if not child:
            raise entry.error("childAgent is missing")
        if not condition.value:
            raise entry.error("only a deterministicTransfer with a pythonCodeCondition runs here; the rule is left out")
        return TransferRule(child, self._needed_code(condition), to_parent=direction == DIRECTIONS[1])

    # -- tools and guardrails ----------------------------------------------------------------

    def _tool(self, folder: str) -> Tool:
        prefix = f"tools/{folder}"
        manifest = self._read_manifest(f"{prefix}/{folder}")
        function, fake = manifest.below("pythonFunction"), manifest.below("toolFakeConfig")
        source = self._code(function)
        if source is None and manifest.document is None:
            places = (f"{prefix}/python_function/python_code.py", f"{prefix}/python_code.py")
            source = next((self._source(place) for place in places if place in self.tree.names), None)
        kind = fields.kind_of(manifest, ("Tool", "Function"))
        return Tool(
            name=manifest.text("displayName") or function.text("name") or folder,
            folder=folder,
            resource=manifest.text("name"),
            description=(manifest.below(kind).text("description") if kind else "") or manifest.text("description"),
            kind=kind or ("pythonFunction" if source else ""),
            source=source,
            entry=function.text("name"),
            asynchronous=manifest.text("executionType") == "ASYNCHRONOUS",
            timeout_s=fields.seconds(manifest),
            fake=self._code(fake.below("codeBlock")),
            fake_mode=fake.flag("enableFakeMode"),
        )

    def _toolset(self, folder: str) -> Toolset:
        manifest = self._read_manifest(f"toolsets/{folder}/{folder}")
        kind = fields.kind_of(manifest, ("Toolset",))
        own = manifest.below(kind) if kind else Manifest(manifest.name)
        schema = own.text("openApiSchema") or f"toolsets/{folder}/open_api_toolset/open_api_schema.yaml"
        if schema in self.tree.names:
            schema = self._text(schema)
        elif _is_path(schema):
            if own.text("openApiSchema"):
                raise own.error(f"{schema}: {_missing(schema)}", "openApiSchema")
            schema = ""
        return Toolset(
            name=manifest.text("displayName") or folder,
            folder=folder,
            resource=manifest.text("name"),
            description=manifest.text("description") or own.text("description"),
            kind=kind,
            schema=schema,
        )

    def _guardrail(self, folder: str) -> Guardrail:
        manifest = self._read_manifest(f"guardrails/{folder}/{folder}")
        if manifest.document is None:
            raise InputError(
                self.tree.at(f"guardrails/{folder}"), f"{folder}.json is missing; the guardrail is left out"
            )
        block = manifest.below("codeCallback")
        slots = [(hook, name) for hook, name in GUARDRAIL_CALLBACKS.items() if block.get(name) is not None]
        if not slots:
            raise manifest.error("only a guardrail with a codeCallback runs here; it is left out")
        callbacks = (self._try(self._callback, hook, block.below(name)) for hook, name in slots)
        return Guardrail(
            name=manifest.text("displayName") or folder,
            folder=folder,
            resource=manifest.text("name"),
            description=manifest.text("description"),
            callbacks=tuple(one for one in callbacks if one is not None),
            action=fields.action(manifest.below("action")),
            enabled=manifest.get("enabled") is None or manifest.flag("enabled"),
        )


SUFFIXES = (".json", ".yaml", ".yml")
DIRECTIONS = ("PARENT_TO_CHILD", "CHILD_TO_PARENT")
_PATH = re.compile(r"[^\n(){}=;]*\.(py|txt|yaml|yml|json)")


def _is_path(value: str) -> bool:
    """Whether a field that is a path or the thing itself looks like a path: one line, and a file's name."""
    return _PATH.fullmatch(value.strip()) is not None


def _missing(path: str) -> str:
    """Why a file that a manifest names is not read."""
    return "leaves the app, refused" if leaves(path) else "no such file in the app"


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


def _refer(manifest: Manifest, field: str, reference: str, resources: tuple[Resource, ...]) -> None:
    """Raises InputError where no resource has that name."""
    if named(reference, resources) is None:
        kind = {"childAgents": "agent", "rootAgent": "agent", "transferRules": "agent"}.get(field, field.rstrip("s"))
        try:
            find(kind, reference, resources)
        except InputError as problem:
            raise manifest.error(str(problem), field) from problem
