"""What an evaluation runs: which cases, how often, and what of it a results file has already.

The cases are read twice: once to check every one of them before anything runs, and once to run them.
Few are kept in between; many are read again, so memory grows by an id and a digest for each.
"""

from __future__ import annotations

import fnmatch
from itertools import chain
from typing import TYPE_CHECKING

from dispatcher import results
from dispatcher.cases import TEST_HOOK, collects, one_test
from dispatcher.dispatcher import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from dispatcher.cases import Case
    from dispatcher.results import Record

KEPT = 2_000  # cases kept from the first reading


def matches(case_id: str, pattern: str | None) -> bool:
    """Whether an id has the text in it; `*` and `?` are as in a shell, upper and lower case alike."""
    if pattern is None:
        return True
    escaped = pattern.lower().replace("[", "[[]")
    return fnmatch.fnmatchcase(case_id.lower(), f"*{escaped}*")


class Plan:
    """`found` are the cases of each path, in order; what two of them have in common runs once."""

    def __init__(
        self,
        found: Sequence[Iterable[Case]],
        pattern: str | None = None,
        repeat: int = 1,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Read and check every case. Raises InputError at the first mistake."""
        self._found = found
        self._pattern = pattern
        self._repeat = repeat
        self._kept: list[Case] = []
        self._digests: dict[str, str] = {}  # of the cases that are known before anything runs
        self._files: dict[str, Case] = {}  # of tests: the case that asks for them
        self._done: set[tuple[str, int]] = set()
        self.read = 0  # cases and files of tests, chosen or not
        self.tests = 0  # runs of tests, as far as files have said which they have
        for case in self._chosen():
            case.check_deadline(deadline_s)
            if len(self._kept) <= KEPT:
                self._kept.append(case)
            if collects(case):
                self._files[case.file] = case
            else:
                self._digests[case.id] = case.digest
        self._few = len(self._kept) <= KEPT
        if not self._few:
            self._kept.clear()

    @property
    def empty(self) -> bool:
        return not self._digests and not self._files

    @property
    def total(self) -> int:
        """Runs, as far as they are known."""
        return len(self._digests) * self._repeat + self.tests

    def ids(self) -> Iterator[str]:
        """Of the cases that are known before anything runs, in order."""
        return iter(self._digests)

    def cases(self) -> Iterator[Case]:
        """What there is to run, in order; of a file of tests, the question which it has."""
        return iter(self._kept) if self._few else self._chosen()

    def runs(self, case: Case) -> Iterator[Case]:
        """The runs of a case that are still to be done."""
        if case.id not in self._digests:  # a test, known only now
            if not matches(case.id, self._pattern):
                return
            self.tests += self._repeat
        for run in range(1, self._repeat + 1):
            if (case.id, run) not in self._done:
                yield case if run == 1 else case.as_run(run)

    def resume(self, file: Path) -> tuple[int, int]:
        """Leave out what `file` has. The numbers of runs it has, and of those it has of another text.

        The latter, and half a line at its end, are removed from it; what is of no case here stays.
        Raises InputError for a file of something else.
        """
        results.cut(file)
        stale = set()
        for one in results.read(file):
            key = one["id"], one["run"]
            if self._is_of_now(one):
                self._done.add(key)
            elif one["id"] in self._digests or self._file_of(one) is not None:
                stale.add(key)
        if stale:
            self._done -= stale
            results.drop(file, stale)
        return len(self._done), len(stale)

    def kept(self, file: Path) -> Iterator[Record]:
        """The records of the runs that were left out, each run once."""
        left = set(self._done)
        for one in results.read(file):
            key = one["id"], one["run"]
            if key in left:
                left.discard(key)
                yield one

    def _is_of_now(self, one: Record) -> bool:
        if not 1 <= one["run"] <= self._repeat:
            return False
        if one["id"] in self._digests:
            return bool(self._digests[one["id"]] == one["digest"])
        file = self._file_of(one)
        if file is None or one["id"] == file.id or not matches(one["id"], self._pattern):
            return False
        return bool(one_test(file, one["name"], None).digest == one["digest"])

    def _file_of(self, one: Record) -> Case | None:
        """The file of tests a record is of."""
        return self._files.get(one["id"].partition("::")[0]) if one["hook"] == TEST_HOOK else None

    def _chosen(self) -> Iterator[Case]:
        """A file of tests is chosen by its tests, which nobody knows yet."""
        seen: set[str] = set()
        self.read = 0
        for case in chain.from_iterable(self._found):
            if case.id in seen:
                continue
            seen.add(case.id)
            self.read += 1
            if collects(case) or matches(case.id, self._pattern):
                yield case
