"""What `import` finds: fidelity, never the wall. The kernel layers are the wall.

`close_doors` is called once in a child, before any code of the user. From then on only the standard
library, the promised packages and the runtime's own modules can be imported, with the ordinary text
for everything else; our packages are gone from `sys.modules` too. Our own code goes on working
because it holds what it needs: nothing in `sandbox` that runs in a child imports `sandbox` late.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec

    from sandbox.hooks import FidelityRow

BUILTINS = ModuleType("builtins")
"""What code patches when it patches builtins: ours, and the standard library's, are not among them."""
BUILTINS.__dict__.update(vars(builtins))

RUNTIME = frozenset({"ces_public", "ces_internal", "requests", "ces_requests"})
PACKAGES = frozenset(
    {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "numpy"}
)
PROTOBUF = "google.protobuf"  # of the namespace package `google` only this


def may_import(name: str, also: Collection[str] = ()) -> bool:
    """Whether the module `name` exists for code in a sandbox; `also` names further top-level packages."""
    top = name.partition(".")[0]
    if top == "google":
        return name == "google" or f"{name}.".startswith(f"{PROTOBUF}.")
    return top in sys.stdlib_module_names or top in PACKAGES or top in RUNTIME or top in also


class Door:
    """The only finder: asks the ones there were before for what may be imported, else finds nothing.

    Finding nothing, rather than raising, leaves it to Python to say `No module named 'x'`.
    """

    def __init__(self, finders: Sequence[Any], also: Collection[str] = ()) -> None:
        self.finders = tuple(finders)
        self._also = frozenset(also)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in RUNTIME or not may_import(name, self._also):
            return None  # the runtime's own are there, or they are not to be had
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec is not None), None)

    def invalidate_caches(self) -> None:
        for finder in self.finders:
            if hasattr(finder, "invalidate_caches"):
                finder.invalidate_caches()


def close_doors(also: Collection[str] = ()) -> None:
    """From here on, in this process, code imports only what it was promised (and packages in `also`)."""
    for name in list(sys.modules):
        if not may_import(name, also):
            del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    sys.modules["builtins"] = BUILTINS
    sys.meta_path[:] = [Door(sys.meta_path, also)]


def wider(finders: Sequence[Any], also: Collection[str]) -> list[Any]:
    """The finders, with doors that let `also` in too."""
    return [Door(one.finders, also) if isinstance(one, Door) else one for one in finders]


@contextlib.contextmanager
def offered(row: FidelityRow, names: Mapping[str, Any], modules: Sequence[ModuleType] = ()) -> Iterator[None]:
    """While it lasts, `import ces_public` and the like give the runtime, and `modules` can be looked up."""
    offer: dict[str, Any] = {module.__name__: module for module in modules}
    for name in ("ces_public", "ces_internal"):
        offer[name] = ModuleType(name)
        offer[name].__dict__.update(names)
    for name in ("requests", "ces_requests") if row.requests_module else ():
        offer[name] = names[name]
    hidden = {name: sys.modules.pop(name) for name in RUNTIME | offer.keys() if name in sys.modules}
    sys.modules.update(offer)
    try:
        yield
    finally:
        for name in offer:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
