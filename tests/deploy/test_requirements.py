"""What is installed for a worker or a dispatcher is all that it imports.

A checkout has the developers' tools as well, so a package that only they bring would not be missed here; where it is
deployed it would.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.conftest import ROOT

WORKER = "import worker.app, worker.__main__ as m; m._import_celery(); from sandbox.jail import Jail"
METRICS = "from worker import metrics; metrics.Counted(metrics.Vitals).text()"
DISPATCHER = (
    "import dispatcher, dispatcher.celery_transport, dispatcher.redis_store, dispatcher.embedded, dispatcher.report"
)
GATEWAY = "from dispatcher.gateway import server, edge, keys"
COMMANDS = "from dispatcher.cli import COMMANDS; import importlib; [importlib.import_module(f'dispatcher.cli.{n}') for n in COMMANDS]"


WITHOUT = """
import sys
class Absent:
    def find_spec(name, path=None, target=None):
        if name.partition('.')[0] in {absent}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Absent)
"""
"""An interpreter to which those modules are not installed."""


def brought(distribution: str, extras: set[str]) -> set[str]:
    """Its requirements and theirs, by their canonical names."""
    found: set[str] = set()
    ahead = [(distribution, extras)]
    while ahead:
        name, wanted = ahead.pop()
        found.add(name)
        for required in map(Requirement, requires(name) or []):
            applies = not required.marker or any(required.marker.evaluate({"extra": e}) for e in (wanted or {""}))
            if applies and canonicalize_name(required.name) not in found:
                ahead.append((canonicalize_name(required.name), required.extras))
    return found


@pytest.mark.parametrize(
    ("what", "extras"),
    [
        (WORKER, {"worker"}),
        (METRICS, {"worker", "metrics"}),
        (DISPATCHER, set()),
        (GATEWAY, {"serve"}),
        (COMMANDS, set()),
    ],
    ids=["worker", "metrics", "dispatcher", "gateway", "commands"],
)
def test_everything_that_is_imported_is_required(what: str, extras: set[str]) -> None:
    there = brought("hookpool", extras)
    absent = {
        module for module, owners in packages_distributions().items() if not there & set(map(canonicalize_name, owners))
    }
    assert "pytest" in absent  # a checkout has more than what is deployed
    code = f"{WITHOUT.format(absent=sorted(absent))}\n{what}"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-1000:]
