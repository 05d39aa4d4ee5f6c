"""Which items of a new list are which items of the old one. Pure, and about keys only.

A list that nobody reordered is its own prefix and suffix; what remains in the middle is compared
by `difflib`, which finds insertions and deletions, and what is left of both sides by key alone,
which finds items that were moved. Equal keys are taken in order, each once.
"""

from __future__ import annotations

from collections import defaultdict, deque
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST = 2_000
"""Items that are compared by difflib, whose time is their square at worst; longer middles by key alone."""


def align(old: Sequence[str], new: Sequence[str]) -> list[int | None]:
    """For each new key, the index of the old one it is; None for one that was not there."""
    found: list[int | None] = [None] * len(new)
    for there, here in _in_order(old, new):
        found[here] = there
    taken = set(found)
    left: defaultdict[str, deque[int]] = defaultdict(deque)
    for index, key in enumerate(old):
        if index not in taken:
            left[key].append(index)
    for here, key in enumerate(new):
        if found[here] is None and left[key]:
            found[here] = left[key].popleft()
    return found


def _in_order(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head)
    yield from ((i, i) for i in range(head))
    yield from ((len(old) - 1 - i, len(new) - 1 - i) for i in range(tail))
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    if max(len(middle_old), len(middle_new)) <= LONGEST:
        for block in SequenceMatcher(None, middle_old, middle_new, autojunk=False).get_matching_blocks():
            yield from ((head + block.a + i, head + block.b + i) for i in range(block.size))


def edited(found: Sequence[int | None], old_count: int) -> dict[int, int]:
    """New index -> old index, for items that take the place of others: gaps of one length on both sides."""
    taken = set(found)
    pairs: dict[int, int] = {}
    here, there = 0, 0
    stops = [(h, t) for h, t in enumerate(found) if t is not None]
    for stop_here, stop_there in [*stops, (len(found), old_count)]:
        if stop_there < there:  # moved: what lies between means nothing
            here = stop_here + 1
            continue
        if stop_here - here == stop_there - there:
            gap = zip(range(here, stop_here), range(there, stop_there), strict=True)
            pairs |= {new: old for new, old in gap if old not in taken}
        here, there = stop_here + 1, stop_there + 1
    return pairs
