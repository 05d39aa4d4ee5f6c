"""JUnit and the HTML page: well formed whatever a callback says, complete, and nothing of it is obeyed."""

import io
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import page
from dispatcher.junit import JUnit
from dispatcher.results import Record
from dispatcher.tally import FAILURES, SLOWEST, TEXT, Histogram, Tally

NASTY = (
    "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\x00\x1b[31m\ud800\ufffe]]>&amp;\"'{{ 7 * 7 }}"
)


def result(name: str = "a", *, text: str = "", passed: bool = True, **more: Any) -> Record:
    """A record in which everything that code can choose is `text`."""
    error = None if passed else {"type": text or "KeyError", "message": text, "traceback": text}
    verdict = {
        "status": "ok" if passed else "callback_error",
        "detail": text,
        "stdout": text,
        "stderr": text,
        "answered_by": text,
        "error": error,
        "warnings": [text],
        "calls": [{"kind": text, "name": text, "status": 200, "ms": 1.0}],
        "usage": {"wall_ms": 2.5, "queue_ms": 1.0, "cpu_ms": 1.0, "peak_rss_bytes": 1},
        "tier": "A",
    }
    mismatches = [] if passed else [{"path": text, "expected": text, "actual": text, "text": text}]
    where = {"id": f"f.yaml::{name}", "run": 1, "name": name, "where": "f.yaml:3", "agent": text, "hook": text}
    return {
        **where,
        "digest": "d",
        "passed": passed,
        "skipped": None,
        "mismatches": mismatches,
        "verdict": verdict,
    } | more


def junit(*records: Record) -> ET.Element:
    suite = JUnit()
    for one in records:
        suite.add(one)
    out = io.StringIO()
    suite.write(out)
    return ET.fromstring(out.getvalue().encode())


def tally(*records: Record, repeat: int = 1) -> Tally:
    counted = Tally(repeat, seconds=1.0, where="here", ended="today")
    for one in records:
        counted.add(one)
    return counted


class Strict(HTMLParser):
    """Tags, in pairs; and every attribute."""

    EMPTY = frozenset({"meta", "link", "rect", "line"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_junit_counts_and_every_case_has_its_place_its_time_and_its_reason() -> None:
    skipped = result("s", hook="python_test", skipped="not today")
    crashed = result("c", passed=False, text="boom")
    crashed["verdict"]["status"] = "crashed"
    root = junit(result("a"), result("b", passed=False, text="boom", run=2), crashed, skipped)
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    assert float(suite.get("time", "")) >= 0
    assert [case.get("name") for case in suite] == ["a", "b (run 2)", "c", "s"]
    for case in suite:
        assert case.tag == "testcase"
        assert {"name", "classname", "time", "file", "line"} == set(case.keys())
        assert [child.tag for child in case] == sorted(
            (child.tag for child in case), key=["skipped", "error", "failure", "system-out", "system-err"].index
        )
    failure = suite[1].find("failure")
    assert failure is not None
    assert (failure.get("message"), failure.get("type")) == ("boom", "boom")
    assert suite[2].find("error") is not None
    assert suite[3].find("skipped").get("message") == "not today"  # type: ignore[union-attr]


@given(st.text())
@settings(max_examples=60)
def test_junit_is_xml_whatever_code_says(text: str) -> None:
    (suite,) = junit(result(passed=False, text=text + NASTY, name=text or "x"))
    assert len(suite) == 1
    assert "alert(1)" in (suite[0].findtext("system-out") or "")


@given(st.text())
@settings(max_examples=40)
def test_nothing_that_code_says_becomes_a_tag_an_attribute_or_a_template(text: str) -> None:
    shown = page.render(tally(result(passed=False, text=text + NASTY, name=text + NASTY), result(), repeat=2))
    shown.encode()  # no half of a surrogate pair
    parsed = Strict(shown)
    assert not parsed.tags & {"script", "img", "iframe", "object", "form", "a"}
    assert not [name for name, _ in parsed.attributes if name.startswith("on") or name == "src"]
    assert [value for name, value in parsed.attributes if name in {"href", "http-equiv"}] == [
        "Content-Security-Policy",
        "data:,",
    ]
    assert "alert(1)" in parsed.text
    assert "{{ 7 * 7 }}" in parsed.text
    assert "\x1b" not in shown
    assert "http" not in shown.replace("http-equiv", "") or "http" in text


def test_the_page_shows_counts_groups_failures_flaky_ones_and_plots() -> None:
    records = [result(f"case {n}", agent="Desk", hook="h", passed=n % 4 > 0, text=f"text {n}") for n in range(8)]
    records = [one | {"agent": "Desk", "hook": "after_tool_callback"} for one in records]
    text = Strict(page.render(tally(*records, result("case 0", agent="Desk"), repeat=2))).text
    for said in ("2 of 9 do not hold", "Desk", "after_tool_callback", "text 4", "Flaky", "1 of 2", "Wait in the queue"):
        assert said in text
    assert "All 1 hold" in Strict(page.render(tally(result()))).text
    assert "All 1 hold, 1,234 not run" in Strict(page.render(tally(result()), 1234)).text
    assert "All 0 hold, 1 not run" in Strict(page.render(tally(), 1)).text


def test_memory_is_bounded_whatever_comes() -> None:
    counted = tally(*(result(f"case {n}", passed=False, text="x" * (TEXT + 5)) for n in range(FAILURES + 50)))
    assert (counted.failed, len(counted.failures), len(counted.slowest)) == (FAILURES + 50, FAILURES, SLOWEST)
    assert all(len(one["verdict"]["stdout"]) < TEXT + 50 for one in counted.failures)
    assert counted.held == {}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_percentile_is_right_within_its_bucket(durations: list[float], share: float) -> None:
    histogram = Histogram()
    for ms in durations:
        histogram.add(ms)
    rank = max(1, -(-len(durations) * share // 1))
    exact = sorted(durations)[int(rank) - 1]
    assert exact <= histogram.percentile(share) * 1.0001 + 0.02
    assert histogram.percentile(share) <= max(exact * 1.06, 0.02)


@pytest.mark.parametrize("ms", [0.0, 0.004, 1.0, 30_000.0])
def test_a_plot_has_a_bar_for_every_duration(ms: float) -> None:
    counted = tally(result())
    counted.wall = Histogram()
    counted.wall.add(ms)
    drawn = page.plot("t", counted.wall)
    assert sum(bar.count for bar in drawn.bars) == 1
