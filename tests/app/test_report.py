"""What people see: complete, readable, and never obeying what a callback printed."""

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dispatcher import report
from dispatcher.batch import Checked, check
from dispatcher.cases import Case
from dispatcher.results import record
from dispatcher.session import Session
from dispatcher.tally import Tally
from dispatcher.verdict import StateDelta, Verdict, VerdictCall, VerdictError, VerdictUsage
from sandbox.doctor import AttackReport, LayerReport, MemoryReport, Report
from sandbox.invocation import Source

FULL = Verdict(
    invocation_id="i1",
    hook="before_tool_callback",
    status="ok",
    answered_by="guard.py",
    returned={"error": "no offer"},
    arguments={"input": {"flight": "HP 208"}},
    state_delta=StateDelta(set={"counter": 2}, remove=["token"]),
    stdout="hello\nworld\n",
    stderr="careful\n",
    truncated={"stdout": 1234},
    warnings=["mind the gap"],
    calls=[VerdictCall(kind="http", name="example.com", status=200, ms=12.3)],
    usage=VerdictUsage(queue_ms=1.5, wall_ms=23.4, cpu_ms=4.5, peak_rss_bytes=24 * 1024 * 1024),
    tier="A",
)
FAILED = Verdict(
    invocation_id="i2",
    hook="before_agent_callback",
    status="callback_error",
    detail="cb.py:2: KeyError: 'x'",
    error=VerdictError(
        type="KeyError", message="'x'", traceback='Traceback:\n  File "cb.py", line 2, in f\n    state["x"]\n'
    ),
)


def drawn(renderable: object, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, markup=False).print(renderable)
    return out.getvalue()


def case(name: str = "a case", **expect: object) -> Case:
    source = Source(name="cb.py", text="")
    return Case(name, "Desk", "before_agent_callback", (source,), Session(), {"status": "ok", **expect})


def test_a_verdict_shows_everything_there_is_to_say() -> None:
    text = drawn(report.of_verdict(FULL))
    for said in (
        "✓ ok  before_tool_callback",
        "queued 1.5 ms · 23 ms · cpu 4.5 ms · 24 MiB · tier A",
        "guard.py",
        '{"error": "no offer"}',
        '{"flight": "HP 208"}',
        "+ counter = 2",
        "- token",
        "│ hello",
        "│ … 1,234 more bytes",
        "│ careful",
        "http example.com  200  12 ms",
        "mind the gap",
    ):
        assert said in text


def test_a_failed_verdict_shows_the_users_own_frames() -> None:
    text = drawn(report.of_verdict(FAILED))
    assert "✗ callback_error" in text
    assert "cb.py:2: KeyError: 'x'" in text
    assert 'File "cb.py", line 2, in f' in text


@pytest.mark.parametrize("nasty", ["\x1b[2J\x1b[31mred", "\x07", "\x9b31m", "\r", "\u202etxt.exe", "\x00"])
def test_control_characters_of_a_callback_are_spelt_out(nasty: str) -> None:
    claimed = ("returned", "detail", "answered_by", "stderr")  # each is the code's to choose
    verdict = FULL.model_copy(
        update={
            "stdout": f"[bold]{nasty}",
            "arguments": {nasty: nasty},
            "warnings": [nasty],
            "state_delta": StateDelta(set={nasty: nasty}, remove=[nasty]),
            **dict.fromkeys(claimed, nasty),
        }
    )
    text = drawn(report.of_verdict(verdict))
    assert not any(character in text for character in "\x1b\x07\x9b\r\u202e\x00")
    assert "[bold]" in text


def test_code_that_never_ran_is_one_line() -> None:
    verdict = FAILED.model_copy(
        update={
            "detail": "cb.py:3: SyntaxError: invalid syntax",
            "error": VerdictError(
                type="SyntaxError",
                message="invalid syntax",
                traceback='  File "cb.py", line 3\n    return (\nSyntaxError',
            ),
        }
    )
    assert report.could_not_load(verdict) == "cb.py:3: SyntaxError: invalid syntax"
    assert report.could_not_load(FAILED) is None
    assert report.could_not_load(FULL) is None


def test_a_mismatch_shows_path_expected_and_actual_and_where_the_case_is() -> None:
    checked = record(check(case(state_delta={"set": {"counter": 3}}), FULL))
    text = drawn(report.of_cases([checked]))
    assert [line.split()[-1] for line in text.splitlines() if "expected  " in line] == ["3"]
    assert [line.split()[-1] for line in text.splitlines() if "actual  " in line and "time" not in line] == ["2"]
    assert "state_delta.set.counter" in text
    (first, second, *_) = report.plain_case(checked)
    assert first == "FAIL  a case  ok  23 ms"
    assert second == "      state_delta.set.counter: expected 3, got 2"


def test_an_unexpected_error_shows_its_detail_beside_the_mismatch() -> None:
    text = "\n".join(report.plain_case(record(check(case(), FAILED))))
    assert 'status: expected "ok", got "callback_error"' in text
    assert "cb.py:2: KeyError: 'x'" in text


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=9,
    )
)
def test_a_value_is_shown_as_json_and_opened_only_where_it_must_be(value: object) -> None:
    for width in (8, 88):
        assert json.loads(report.pretty(value, width)) == value
    assert (
        report.pretty({"a": [1, 2], "b": {"c": "x" * 90}})
        == '{\n  "a": [1, 2],\n  "b": {\n    "c": "' + "x" * 90 + '"\n  }\n}'
    )


def tally(*results: Checked, repeat: int = 1) -> Tally:
    counted = Tally(repeat)
    for result in results:
        counted.add(record(result))
    return counted


def test_the_closing_line_counts() -> None:
    counted = tally(Checked(case("a"), FULL, ()), check(case("b"), FAILED))
    (line,) = report.summary(replace(counted, seconds=1.25, where="over the queue with 2 workers"), 2)
    assert line == "2 cases: 1 passed, 1 failed in 1.2 s over the queue with 2 workers, tier A"
    (line,) = report.summary(tally(Checked(case("a"), FULL, ())), 1)
    assert line.startswith("1 case: 1 passed, 0 failed")


def test_the_closing_line_says_what_was_not_run_and_what_was_skipped() -> None:
    skipped = FULL.model_copy(update={"returned": {"outcome": "skipped", "reason": "not on a Monday"}})
    counted = tally(Checked(replace(case("a"), hook="python_test"), skipped, ()), check(case("b"), FAILED))
    (line,) = report.summary(replace(counted, seconds=1.0, where="here"), 5)
    assert line == "2 cases: 0 passed, 1 failed, 1 skipped, 3 not run in 1.0 s here, tier A"


def test_a_case_that_held_in_some_runs_only_is_flaky() -> None:
    good, bad = Checked(case("a"), FULL, ()), check(case("a"), FAILED)
    counted = tally(good, bad, good, Checked(case("b"), FULL, ()), repeat=4)
    assert report.summary(counted, 4)[0] == "flaky: ::a held in 2 of 3 runs"


def test_a_result_is_json() -> None:
    result = record(check(case(returned={"more": 1}), FULL))
    assert [(each["path"], each["expected"], each["actual"]) for each in result["mismatches"]] == [
        ("returned.more", 1, None)
    ]
    assert result["verdict"]["status"] == "ok"
    assert not result["passed"]
    assert json.loads(json.dumps(result)) == result


def examined(memory: MemoryReport) -> Report:
    return Report(
        tier="B",
        min_tier="B",
        ok=True,
        layers=(LayerReport("seccomp", ok=True), LayerReport("pivot_root", ok=False, detail="Operation not permitted")),
        tiers_missed={"A": "unshare: EPERM"},
        attacks=(AttackReport("forks", contained=True, detail="PermissionError"),),
        memory=memory,
        python="3.12.1",
        pydantic="2.11.10",
        kernel="6.18",
        machine="x86_64",
        cgroup="v2",
        redis="reachable, server 7",
    )


UNLIMITED = MemoryReport(container_mb=None, places=2, by_default_mb=512, at_most_mb=2048, beside_mb=300, enough=True)


def test_an_examination_shows_layers_attacks_and_what_was_missed() -> None:
    text = drawn(report.of_examination(examined(UNLIMITED)))
    for said in (
        "✓ tier B (at least B is needed)",
        "✓ seccomp",
        "✗ pivot_root",
        "Operation not permitted",
        "✗ tier A",
        "✓ forks",
        "✓ redis",
        "cgroup v2",
    ):
        assert said in text


def test_an_examination_warns_of_a_container_that_the_limits_allow_to_be_filled() -> None:
    text = {
        mb: " ".join(drawn(report.of_examination(examined(replace(UNLIMITED, container_mb=mb, enough=enough)))).split())
        for mb, enough in ((None, True), (4096, True), (2048, False))
    }
    use = "a worker of 2 places may use 2,348 MiB, 812 where jobs keep to the default memory_mb"
    assert f"✓ container no limit; {use}" in text[None]
    assert f"✓ container 4,096 MiB; {use}" in text[4096]
    assert f"! container 2,048 MiB; {use}: lower HOOKPOOL_MAX_MEMORY_MB or HOOKPOOL_CONCURRENCY" in text[2048]
    assert "✓ tier B" in text[2048]
