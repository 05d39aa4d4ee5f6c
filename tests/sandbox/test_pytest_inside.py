"""pytest in the sandbox: in the tiers where files can be looked at, and for tests only."""

import pytest

from dispatcher import Dispatcher, InProcess, MemoryStore, Session
from dispatcher.verdict import Verdict
from sandbox.invocation import Source
from sandbox.jail import Jail
from sandbox.settings import Settings

CODE = Source(name="python_code.py", text="VALUE = 1\n")
TESTS = Source(name="test.py", text="from python_code import VALUE\ndef test_it():\n    assert VALUE == 2\n")
WISH = """\
import os, sys, time
def before_agent_callback(c):
    if "unittest.mock" not in sys.modules:  # which only the tests' sandbox has from the start
        os.write(3, (7).to_bytes(4, "big") + b"Npytest")  # as if this were a run of tests
        time.sleep(5)
    print("moved")
    import pytest
"""


def run(tier: str, hook: str, *sources: Source, **arguments: object) -> Verdict:
    settings = Settings(min_tier="C", force_tier=tier, waiting=1)
    with InProcess(Jail(settings), workers=1) as transport:
        return Dispatcher(transport, MemoryStore()).run(hook, Session(), list(sources), **arguments)


@pytest.mark.parametrize("tier", ["A", "B"])
def test_a_failing_test_has_pytests_own_text_in_tiers_that_can_look_at_files(tier: str) -> None:
    verdict = run(tier, "python_test", CODE, TESTS, input={"test": "test_it"})
    assert (verdict.status, verdict.tier) == ("callback_error", tier)
    assert verdict.error is not None
    assert "E   assert 1 == 2" in verdict.error.traceback


def test_in_tier_c_what_it_needs_is_said() -> None:
    verdict = run("C", "python_test", CODE, TESTS, input={"test": "test_it"})
    assert verdict.error is not None
    assert verdict.error.message.endswith("tests need a worker of tier B or A")


def test_a_callback_that_gets_into_the_tests_sandbox_finds_no_pytest_there() -> None:
    """It can ask to be moved there, as everything that is said on its channel is its own to say."""
    verdict = run("A", "before_agent_callback", Source(name="cb.py", text=WISH))
    assert verdict.error is not None
    assert (verdict.error.type, verdict.error.message) == ("ModuleNotFoundError", "No module named 'pytest'")
    assert verdict.stdout == "moved\n"
