"""What an invocation did to the variables: `diff` finds it, `apply` does it again elsewhere.

Both are pure and total: apply(before, diff(before, after)) == after, for plain JSON values. A delta
works on top-level names and whole values, because that is what the platform's `state_delta` is; a
nested edit therefore writes its whole variable. Deletion is real.

Equality here is JSON's, not Python's: 1, 1.0 and True are three different values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Delta:
    """Variables written (`set`, whole values by name) and deleted (`remove`)."""

    set: Mapping[str, Any] = field(default_factory=dict)
    remove: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.set or self.remove)

    @property
    def keys(self) -> tuple[str, ...]:
        """Every variable this delta touches, in order."""
        return (*self.set, *self.remove)


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> Delta:
    """The delta that turns `before` into `after`, in the order of each."""
    return Delta(
        set={key: value for key, value in after.items() if key not in before or not same(before[key], value)},
        remove=tuple(key for key in before if key not in after),
    )


def apply(variables: Mapping[str, Any], delta: Delta) -> dict[str, Any]:
    """`variables` with the delta done to them; the argument is left as it is."""
    gone = frozenset(delta.remove)
    return {**{key: value for key, value in variables.items() if key not in gone}, **delta.set}


def same(a: object, b: object) -> bool:
    """Whether two plain values are the same JSON."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
