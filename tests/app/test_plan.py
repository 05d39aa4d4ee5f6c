"""What an evaluation runs: chosen by id, each once, and not again what a results file has."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dispatcher import InProcess, cases, results
from dispatcher.batch import evaluate
from dispatcher.plan import KEPT, Plan, matches
from dispatcher.results import Record, record
from sandbox.errors import InputError
from sandbox.jail import Jail
from sandbox.settings import Settings

CODE = "def before_agent_callback(c):\n    c.variables['n'] = 1\n"
CASE = "- {name: NAME, hook: before_agent_callback, callbacks: [cb.py], expect: {variables: {n: N}}}\n"
TESTS = "from python_code import before_agent_callback as f\ndef test_one(): pass\ndef test_two(): assert f is None\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[InProcess]:
    with InProcess(Jail(Settings()), workers=2) as transport:
        yield transport


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cb.py").write_text(CODE)
    write(tmp_path, a=1, b=2, c=1)
    return tmp_path


def write(folder: Path, **expected: int) -> None:
    lines = [CASE.replace("NAME", name).replace(": N}", f": {n}}}") for name, n in expected.items()]
    (folder / "cases.yaml").write_text("".join(lines))


def plan(*paths: Path, pattern: str | None = None, repeat: int = 1) -> Plan:
    return Plan([cases.find(path) for path in paths], pattern, repeat)


def run(planned: Plan, pool: InProcess, file: Path) -> list[Record]:
    """What was run, added to `file`."""
    with closing(evaluate(planned.cases(), pool, 8, planned.runs)) as found:
        done = [record(result) for result in found]
    with file.open("a") as out:
        out.writelines(map(results.line_of, done))
    return done


def names(done: list[Record]) -> list[tuple[str, int]]:
    return sorted((one["name"], one["run"]) for one in done)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        (None, True),
        ("refund", True),
        ("REFUND", True),
        ("a.yaml::no*big", True),
        ("??fund", True),
        ("[1]", True),
        ("[r]efund", False),
        ("x", False),
    ],
)
def test_a_filter_is_a_part_of_the_id_with_two_signs_of_a_shell(pattern: str | None, chosen: bool) -> None:
    assert matches("cases/a.yaml::no refund is too big[1]", pattern) is chosen


def test_a_case_of_two_paths_runs_once_and_its_id_is_the_same_either_way(folder: Path) -> None:
    planned = plan(folder, folder / "cases.yaml")
    assert [case.id for case in planned.cases()] == [f"{folder}/cases.yaml::{name}" for name in "abc"]
    assert planned.total == 3


def test_a_mistake_in_the_last_file_is_said_before_anything_runs(folder: Path) -> None:
    (folder / "z.cases.jsonl").write_text('{"name": "d", "hook": "before_agent_callback", "expct": {}}\n')
    with pytest.raises(InputError, match=r"z\.cases\.jsonl:1: unknown key 'expct' in case"):
        plan(folder)


def test_very_many_cases_are_read_again_and_not_kept(folder: Path) -> None:
    line = '{"hook": "before_agent_callback", "callbacks": ["cb.py"], "expect": {}}\n'
    (folder / "z.cases.jsonl").write_text(line * (KEPT + 10))
    planned = plan(folder, pattern="z.cases*#")
    assert planned._kept == []
    assert sum(1 for _ in planned.cases()) == planned.total == KEPT + 10


def test_what_a_file_has_does_not_run_again_and_counts_as_it_is(folder: Path, pool: InProcess) -> None:
    file = folder / "out.jsonl"
    assert len(run(plan(folder, repeat=2), pool, file)) == 6
    more = plan(folder, repeat=3)
    assert more.resume(file) == (6, 0)
    assert [(one["name"], one["passed"]) for one in more.kept(file)].count(("b", False)) == 2
    assert names(run(more, pool, file)) == [("a", 3), ("b", 3), ("c", 3)]


@pytest.mark.parametrize("change", ["case", "code"])
def test_a_case_or_code_that_was_changed_runs_again_and_its_old_result_is_gone(
    folder: Path, pool: InProcess, change: str
) -> None:
    file = folder / "out.jsonl"
    run(plan(folder), pool, file)
    if change == "case":
        write(folder, a=1, b=1, c=1)
    else:
        (folder / "cb.py").write_text(CODE + "# another\n")
    more = plan(folder)
    changed = 1 if change == "case" else 3
    assert more.resume(file) == (3 - changed, changed)
    assert len(run(more, pool, file)) == changed
    assert names(list(results.read(file))) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_file_keeps_what_is_of_no_case_here(folder: Path, pool: InProcess) -> None:
    file = folder / "out.jsonl"
    run(plan(folder), pool, file)
    write(folder, a=1)
    more = plan(folder)
    assert more.resume(file) == (1, 0)
    assert run(more, pool, file) == []
    assert len(list(results.read(file))) == 3


@pytest.mark.parametrize("torn", ['{"id": "x', "}", "\x00\x00"])
def test_half_a_line_at_the_end_is_cut_off(folder: Path, pool: InProcess, torn: str) -> None:
    file = folder / "out.jsonl"
    run(plan(folder), pool, file)
    whole = file.read_bytes()
    file.write_bytes(whole + torn.encode())
    assert plan(folder).resume(file) == (3, 0)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("text", ["- a: case file\n", "{}\n", "[1]\n", '{"id": 5}\n', "[" * 100_000 + "\n", "\xff\n"])
def test_a_file_of_something_else_is_refused_with_its_line(folder: Path, text: str) -> None:
    file = folder / "out.jsonl"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        plan(folder).resume(file)
    assert caught.value.where == str(file)
    assert not results.is_results(file)


def test_tests_are_chosen_by_name_run_each_by_itself_and_are_resumed_like_cases(folder: Path, pool: InProcess) -> None:
    (folder / "python_code.py").write_text(CODE)
    (folder / "test.py").write_text(TESTS)
    file = folder / "out.jsonl"
    done = run(plan(folder, pattern="py::test_"), pool, file)
    assert [(one["id"], one["where"], one["passed"]) for one in sorted(done, key=lambda one: one["id"])] == [
        (f"{folder}/test.py::test_one", f"{folder}/test.py:2", True),
        (f"{folder}/test.py::test_two", f"{folder}/test.py:3", False),
    ]
    assert "E   assert f is None" in next(one for one in done if not one["passed"])["verdict"]["error"]["traceback"]
    more = plan(folder)
    assert more.resume(file) == (2, 0)
    assert names(run(more, pool, file)) == [("a", 1), ("b", 1), ("c", 1)]
    (folder / "test.py").write_text(TESTS.replace("is None", "is not None"))
    changed = plan(folder)
    assert changed.resume(file) == (3, 2)
    assert [(name, run_) for name, run_ in names(run(changed, pool, file))] == [("test_one", 1), ("test_two", 1)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nothing_there\n", "ModuleNotFoundError"),
        ("def test_(:\n", "SyntaxError"),
        ("", None),
    ],
)
def test_a_file_of_tests_that_has_none_to_run_is_a_failure_of_its_own(
    folder: Path, pool: InProcess, text: str, error: str | None
) -> None:
    (folder / "python_code.py").write_text(CODE)
    (folder / "test.py").write_text(text)
    (one,) = run(plan(folder, pattern="test.py"), pool, folder / "out.jsonl")
    assert (one["name"], one["passed"]) == ("*", False)
    assert (one["verdict"]["error"] or {"type": None})["type"] == error


def test_a_test_cannot_speak_for_another(folder: Path, pool: InProcess) -> None:
    """The code under test may take pytest apart; what it says is counted under the name that was asked for."""
    lie = (
        "import gc, pytest\n"
        "for one in gc.get_objects():\n    if type(one).__name__ == 'Seen':\n        one.passed, one._failed = True, None\n        one._note = lambda report: None\n"
    )
    (folder / "python_code.py").write_text(CODE)
    (folder / "test.py").write_text(
        f"def test_liar():\n{''.join(f'    {line}\n' for line in lie.splitlines())}    assert 0\ndef test_two(): assert 0\n"
    )
    done = run(plan(folder, pattern="test.py"), pool, folder / "out.jsonl")
    assert {one["name"]: one["passed"] for one in done} == {"test_liar": True, "test_two": False}
