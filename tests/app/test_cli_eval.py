"""`hookpool eval`: dispatches every case, says which hold, and leaves nothing behind."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import AIRLINE, ENVIRON, family, hookpool, inside, silence, start

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
        out, err = process.communicate(timeout=240)
    last = out.splitlines()[-1]
    assert process.returncode == 0, out + err
    assert all(" run, 0 failed, " in line for line in err.splitlines()), "nothing but how far it is"
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


def test_a_case_that_may_run_longer_than_the_deadline_is_refused_before_anything_runs(folder: Path) -> None:
    (folder / "cases.yaml").write_text(
        GOOD + GOOD.replace("good", "long").replace("hook", "limits: {wall_s: 1000}, hook")
    )
    ended = inside("eval", str(folder), "--pool", "inline")
    assert (ended.code, ended.out) == (2, "")
    assert "cases.yaml:2: limit wall_s, 1000, is above the deadline, 900 (setting HOOKPOOL_DEADLINE_S)" in ended.err
    ended = hookpool("eval", str(folder), "--pool", "inline", HOOKPOOL_DEADLINE_S="2000")
    assert ended.code == 0, ended.err


def test_no_folder_is_exit_2(tmp_path: Path) -> None:
    ended = inside("eval", str(tmp_path / "nowhere"))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"hookpool: {tmp_path}/nowhere: no such file or folder\n"


@pytest.mark.parametrize("pool", ["inline", "embedded"])
def test_ctrl_c_in_the_middle_is_quiet_and_leaves_nothing(folder: Path, pool: str) -> None:
    with silence() as (url, environ, asked):
        (folder / "cb.py").write_text(f"def before_agent_callback(c):\n    ces_requests.get({url!r})\n")
        environ |= {"TMPDIR": str(folder)}
        with start("eval", str(folder), "--pool", pool, **environ) as process, family(process) as alive:
            asked()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (130, "", "")
    assert alive() == []
    assert sorted(path.name for path in folder.iterdir()) == ["cases.yaml", "cb.py"]


def test_reports_are_written_and_say_the_same(folder: Path) -> None:
    (folder / "cases.yaml").write_text(GOOD + WRONG)
    files = [folder / name for name in ("out.jsonl", "out.xml", "out.html")]
    options = [f"--{kind}={file}" for kind, file in zip(("json", "junit", "report"), files, strict=True)]
    ended = hookpool("eval", str(folder), "--pool", "inline", *options)
    assert ended.code == 1
    assert "2 cases: 1 passed, 1 failed" in ended.out
    jsonl, junit, page = (file.read_text() for file in files)
    assert sorted(json.loads(line)["name"] for line in jsonl.splitlines()) == ["good", "wrong"]
    assert 'tests="2" failures="1"' in junit
    assert "1 of 2 do not hold" in page


def test_an_evaluation_that_is_broken_off_leaves_reports_of_what_had_ended(folder: Path) -> None:
    slow = "def before_agent_callback(c):\n    ces_requests.get({!r})\n"
    with silence() as (url, environ, asked):
        (folder / "slow.py").write_text(slow.format(url))
        (folder / "cases.yaml").write_text(GOOD + GOOD.replace("good", "slow").replace("cb.py", "slow.py"))
        files = [folder / name for name in ("out.jsonl", "out.xml", "out.html")]
        options = [f"--{kind}={file}" for kind, file in zip(("json", "junit", "report"), files, strict=True)]
        with start("eval", str(folder), "--pool", "inline", "--workers", "1", *options, **environ) as process:
            asked()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (130, "", "")
    jsonl, junit, page = (file.read_text() for file in files)
    assert [json.loads(line)["name"] for line in jsonl.splitlines()] == ["good"]
    assert 'tests="1" failures="0"' in junit
    assert "<system-err>1 not run</system-err>" in junit
    assert "All 1 hold, 1 not run" in page


def test_an_evaluation_that_fails_before_any_result_leaves_files_as_they_were(folder: Path) -> None:
    files = [folder / name for name in ("out.jsonl", "out.xml", "out.html")]
    options = [f"--{kind}={file}" for kind, file in zip(("json", "junit", "report"), files, strict=True)]
    nowhere = ("--pool", "redis://127.0.0.1:1/0")
    ended = inside("eval", str(folder), *nowhere, *options)
    assert (ended.code, ended.out) == (3, "")
    assert sorted(path.name for path in folder.iterdir()) == ["cases.yaml", "cb.py"]
    assert (
        inside("eval", str(folder), *nowhere, "--junit", str(files[1]), "--report", str(folder / "no" / "x")).code == 2
    )
    assert sorted(path.name for path in folder.iterdir()) == ["cases.yaml", "cb.py"]
    assert hookpool("eval", str(folder), "--pool", "inline", *options).code == 0
    before = [file.read_bytes() for file in files]
    assert inside("eval", str(folder), *nowhere, *options).code == 3
    assert [file.read_bytes() for file in files] == before
    assert hookpool("eval", str(folder), "--pool", "inline", *options).code == 0
    assert len(files[0].read_text().splitlines()) == 1


def test_a_report_is_not_written_over_what_is_none_nor_over_another(folder: Path) -> None:
    before = (folder / "cases.yaml").read_text()
    for option in ("--junit", "--report"):
        ended = inside("eval", str(folder), "--pool", "inline", option, str(folder / "cases.yaml"))
        assert (ended.code, ended.out) == (2, "")
        assert f"is there and is no report; {option} does not write over it" in ended.err
    assert (folder / "cases.yaml").read_text() == before
    for others in (("--junit", "--report"), ("--junit", "--json")):
        ended = inside("eval", str(folder), "--pool", "inline", *(f"{other}={folder / 'out'}" for other in others))
        assert (ended.code, ended.out) == (2, "")
        assert f"out: is given for both {' and '.join(others)}" in ended.err


def test_what_holds_only_sometimes_is_named(folder: Path) -> None:
    (folder / "cb.py").write_text(CALLBACK + "    import random\n    c.variables['n'] = random.randrange(2)\n")
    ended = hookpool("eval", str(folder), "--pool", "inline", "--repeat", "24")
    assert ended.code == 1
    assert f"flaky: {folder}/cases.yaml::good held in " in ended.out
    assert " of 24 runs" in ended.out
    assert "24 runs: " in ended.out.splitlines()[-1]


def test_fail_fast_stops_at_the_first_failure_and_says_what_was_not_run(folder: Path) -> None:
    many = "".join(WRONG.replace("wrong", f"wrong {number}") for number in range(50))
    (folder / "cases.yaml").write_text(many)
    ended = hookpool("eval", str(folder), "--pool", "inline", "--fail-fast")
    assert ended.code == 1
    assert ended.out.splitlines()[-1].startswith("1 case: 0 passed, 1 failed, 49 not run in ")


@pytest.mark.parametrize("option", ["--json", "--junit", "--report", "--resume"])
def test_a_file_that_cannot_be_written_is_said_before_anything_runs(folder: Path, option: str) -> None:
    ended = inside("eval", str(folder), "--pool", "inline", option, str(folder / "no" / "such" / "place"))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"hookpool: {folder}/no/such/place: cannot be used: No such file or directory\n"


def test_json_never_writes_over_what_is_no_results_file(folder: Path) -> None:
    before = (folder / "cases.yaml").read_text()
    ended = inside("eval", str(folder), "--pool", "inline", "--json", str(folder / "cases.yaml"))
    assert (ended.code, ended.out) == (2, "")
    assert "is there and holds no results; --json does not write over it" in ended.err
    assert (folder / "cases.yaml").read_text() == before


def test_resume_adds_to_its_own_file_only(folder: Path) -> None:
    (folder / "out.jsonl").write_text("")
    arguments = ("--resume", str(folder / "out.jsonl"), "--json", str(folder / "other.jsonl"))
    ended = inside("eval", str(folder), "--pool", "inline", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "names another file" in ended.err


def test_in_a_pipe_no_line_is_padded_or_folded(folder: Path) -> None:
    (folder / "cb.py").write_text("def before_agent_callback(c):\n    print('x' * 5000)\n    c.variables['n'] = 5\n")
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "cb.py", cwd=folder)
    assert "x" * 5000 in ended.out
    assert not [line for line in ended.out.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("command", [["--help"], ["doctor"], ["eval", "."], ["eval", ".", "--json"]])
def test_output_that_cannot_be_written_is_one_line(folder: Path, command: list[str]) -> None:
    more = ["--pool", "inline"] if command[0] == "eval" else []
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "dispatcher.cli", *command, *more],
            cwd=folder, env=ENVIRON, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr == "hookpool: standard output: No space left on device\n"


def test_output_that_is_closed_is_one_line(folder: Path) -> None:
    closed = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'dispatcher.cli', '--help'])"
    ended = subprocess.run([sys.executable, "-c", closed], env=ENVIRON, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "hookpool: standard output is closed\n")


def test_a_callbacks_own_file_is_no_case_file_and_the_way_on_is_said(folder: Path) -> None:
    ended = inside("eval", str(folder / "cb.py"))
    assert (
        ended.err
        == f"hookpool: {folder}/cb.py: is code; give its folder, with the cases for it in a cases.yaml there\n"
    )
    (folder / "cases.yaml").write_text("- {name: a, hook: before_agent_callback, expect: {}}")
    assert "case 'a' must say what to run: `callbacks: [FILE.py]`, or `code`" in inside("eval", str(folder)).err
