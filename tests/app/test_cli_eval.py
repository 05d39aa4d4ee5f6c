"""`hookpool eval`: dispatches every case, says which hold, and leaves nothing behind."""

import json
import signal
import time
from pathlib import Path

import pytest
from command import AIRLINE, family, hookpool, inside, start

CALLBACK = "def before_agent_callback(c):\n    print('hello')\n    c.variables['n'] = c.variables.get('n', 0) + 1\n"
GOOD = "- {name: good, hook: before_agent_callback, callbacks: [cb.py], expect: {variables: {n: 1}, stdout: {matches: hell}}}\n"
WRONG = "- {name: wrong, hook: before_agent_callback, callbacks: [cb.py], expect: {variables: {n: 2}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cb.py").write_text(CALLBACK)
    (tmp_path / "cases.yaml").write_text(GOOD)
    return tmp_path


def test_the_airline_holds_over_celery_on_the_embedded_pool_and_nothing_is_left() -> None:
    with start("eval", str(AIRLINE)) as process, family(process) as alive:
        out, err = process.communicate(timeout=90)
    last = out.splitlines()[-1]
    assert (process.returncode, err) == (0, ""), out
    assert "cases: " in last
    assert " 0 failed in " in last
    assert "over the queue with 2 workers, tier " in last
    assert alive() == []


def test_cases_that_hold_are_exit_0_with_a_line_each(folder: Path) -> None:
    ended = hookpool("eval", str(folder), "--pool", "inline")
    assert ended.code == 0
    first, last = ended.out.splitlines()
    assert first.startswith("pass  good  ok  ")
    assert last.startswith("1 case: 1 passed, 0 failed in ")
    assert " in this process, tier " in last


def test_a_case_that_does_not_hold_is_exit_1_with_path_expected_actual_and_its_place(folder: Path) -> None:
    (folder / "cases.yaml").write_text(GOOD + WRONG)
    ended = hookpool("eval", str(folder), "--pool", "inline")
    assert ended.code == 1
    assert "FAIL  wrong  ok" in ended.out
    assert "variables.n: expected 2, got 1" in ended.out
    assert f"{folder}/cases.yaml:2" in ended.out
    assert "2 cases: 1 passed, 1 failed" in ended.out


def test_json_is_one_object_a_line_and_nothing_else(folder: Path) -> None:
    (folder / "cases.yaml").write_text(GOOD + WRONG)
    ended = hookpool("eval", str(folder), "--pool", "inline", "--json")
    results = {result["name"]: result for result in map(json.loads, ended.out.splitlines())}
    assert results["good"]["passed"]
    (mismatch,) = results["wrong"]["mismatches"]
    assert mismatch == {"path": "variables.n", "expected": 2, "actual": 1, "text": "expected  2\nactual    1"}
    assert results["wrong"]["verdict"]["stdout"] == "hello\n"
    assert ended.err.startswith("2 cases: 1 passed, 1 failed")


def test_cases_never_see_each_other_although_they_name_the_same_session(folder: Path) -> None:
    one = "- {name: N, hook: before_agent_callback, callbacks: [cb.py], context: {session_id: s}, expect: {variables: {n: 1}}}\n"
    (folder / "cases.yaml").write_text("".join(one.replace("N", f"case {number}") for number in range(12)))
    assert hookpool("eval", str(folder), "--pool", "inline").code == 0


def test_a_filter_chooses_by_name_and_says_when_nothing_is_chosen(folder: Path) -> None:
    (folder / "cases.yaml").write_text(GOOD + WRONG)
    assert "1 case: 1 passed" in hookpool("eval", str(folder), "--pool", "inline", "--filter", "GOO").out
    ended = hookpool("eval", str(folder), "--pool", "inline", "--filter", "nothing")
    assert (ended.code, ended.out) == (2, "")
    assert "none of the 2 cases has 'nothing' in its FILE::NAME" in ended.err


def test_a_warning_of_the_loader_is_said_and_does_not_fail_the_run(folder: Path) -> None:
    (folder / "agents" / "Bad").mkdir(parents=True)
    (folder / "agents" / "Bad" / "Bad.json").write_text("{")
    ended = hookpool("eval", str(folder), "--pool", "inline")
    assert ended.code == 0
    assert ended.err.startswith(f"warning: {folder}/agents/Bad/Bad.json:1: not JSON")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {name: a, hook: before_agent_callback, callbacks: [cb.py]}", "cases.yaml:1: case needs 'expect'"),
        (GOOD.replace("expect", "expct"), "cases.yaml:1: unknown key 'expct' in case"),
        ("- {name: a", "cases.yaml:2: not YAML: "),
        ("[]", "no cases: "),
    ],
)
def test_a_mistake_in_a_case_file_is_exit_2_and_one_line(folder: Path, text: str, said: str) -> None:
    (folder / "cases.yaml").write_text(text + "\n")
    ended = inside("eval", str(folder), "--pool", "inline")
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert said in line


def test_no_folder_is_exit_2(tmp_path: Path) -> None:
    ended = inside("eval", str(tmp_path / "nowhere"))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"hookpool: {tmp_path}/nowhere: no such file or folder\n"


@pytest.mark.parametrize("pool", ["inline", "embedded"])
def test_ctrl_c_in_the_middle_is_quiet_and_leaves_nothing(folder: Path, pool: str) -> None:
    (folder / "cb.py").write_text("import time\ndef before_agent_callback(c):\n    time.sleep(30)\n")
    with start("eval", str(folder), "--pool", pool, TMPDIR=str(folder)) as process, family(process) as alive:
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")
    assert alive() == []
    assert sorted(path.name for path in folder.iterdir()) == ["cases.yaml", "cb.py"]
