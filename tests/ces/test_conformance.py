"""The conformance suite: what the runtime promises, as cases, over a real pool of either kind.

The cases are data (`*.yaml` beside this file) in the format that users write their own in, so anybody
can run them against any pool: `hookpool eval tests/ces/hooks.yaml --pool redis://...`. A case's name
is the promise. All of them go through the pool at once; then each is looked at by itself.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from dispatcher import Embedded, InProcess
from dispatcher.batch import Checked, evaluate
from dispatcher.cases import Case, load
from sandbox.hooks import DIALECTS, FIDELITIES, HOOKS
from sandbox.jail import Jail
from sandbox.settings import Settings

FILES = sorted(Path(__file__).parent.glob("*.yaml"))


def key(case: Case) -> str:
    return f"{Path(case.file).stem}: {case.name}"


CASES = {key(case): case for file in FILES for case in load(file).cases}


@contextmanager
def inline():
    with InProcess(Jail(Settings()), workers=2) as transport:
        yield transport


@contextmanager
def embedded():
    with Embedded(workers=2) as pool:
        yield pool.transport


POOLS = {"inline": inline, "embedded": embedded}


@cache
def checked(pool: str) -> dict[str, Checked]:
    with POOLS[pool]() as transport:
        return {key(one.case): one for one in evaluate(CASES.values(), transport, in_flight=16)}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("case", CASES)
def test_the_runtime_keeps_its_promise(case, pool):
    one = checked(pool)[case]
    assert one.passed, "\n".join([one.case.where, *map(str, one.mismatches), one.verdict.detail])


def test_the_suite_covers_every_hook_dialect_and_fidelity():
    assert len(CASES) >= 300
    assert {case.hook for case in CASES.values()} == set(HOOKS)
    assert {case.dialect for case in CASES.values()} == set(DIALECTS)
    assert {case.fidelity for case in CASES.values()} == set(FIDELITIES)
