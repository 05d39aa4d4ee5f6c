"""How an expectation is held against what came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.expect import ABSENT, Mismatch, compare

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2, "more": 3}], "more": 4}}),
        ({"text": {"matches": "refund"}}, {"text": "a refund was made"}),
        ({"matches": "^a.c$"}, "abc"),
        ({"matches": "literal"}, {"matches": "literal"}),
        (1, 1.0),
        (2.5, 2.5),
        (None, None),
        ({"gone": None}, {}),
        ({}, {}),
        ([], []),
        ([{"a": 1}], [{"a": 1, "b": 2}]),
    ],
)
def test_it_holds(expected: object, actual: object) -> None:
    assert compare(expected, actual) == []


@pytest.mark.parametrize(
    ("expected", "actual", "path", "wanted", "found"),
    [
        ({"a": 1}, {"a": 2}, "a", 1, 2),
        ({"a": {"b": [0, {"c": 2}]}}, {"a": {"b": [0, {"c": 3}]}}, "a.b[1].c", 2, 3),
        ({"a": 1}, {}, "a", 1, ABSENT),
        ([1], [1, 2], "[1]", ABSENT, 2),
        ([1, 2], [1], "[1]", 2, ABSENT),
        ({}, {"a": 1}, "", {}, {"a": 1}),
        ({"a": 1}, [1], "", {"a": 1}, [1]),
        (1, True, "", 1, True),
        (0, False, "", 0, False),
        ("1", 1, "", "1", 1),
        (None, 0, "", None, 0),
        (None, "", "", None, ""),
        ({"matches": "x"}, "abc", "", {"matches": "x"}, "abc"),
        ({"matches": "1"}, 1, "", {"matches": "1"}, 1),
    ],
)
def test_it_does_not_hold_and_the_mismatch_says_where(
    expected: object, actual: object, path: str, wanted: object, found: object
) -> None:
    assert compare(expected, actual) == [Mismatch(path, wanted, found)]


def test_every_difference_is_listed_in_order() -> None:
    found = compare({"a": 1, "b": [1, 2], "c": "x"}, {"a": 2, "b": [1, 3], "c": "x"})
    assert [mismatch.path for mismatch in found] == ["a", "b[1]"]


def test_a_mismatch_is_one_readable_line() -> None:
    assert str(Mismatch("a.b", {"matches": "^x"}, "yes")) == 'a.b: expected text matching /^x/, got "yes"'
    assert str(Mismatch("a", [1], ABSENT)) == "a: expected [1], got (absent)"


@given(JSON)
def test_every_value_is_as_itself(value: object) -> None:
    assert compare(value, value) == []


@given(JSON, JSON)
def test_what_matches_as_a_whole_matches_with_more_beside_it(value: object, more: object) -> None:
    assert compare({"key": value}, {"key": value, "another": more}) == []
