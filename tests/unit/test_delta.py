"""A delta does again elsewhere what was done here."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.delta import Delta, apply, diff, same

quickly = settings(max_examples=50)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
VARIABLES = st.dictionaries(st.text(max_size=3), JSON, max_size=6)


@quickly
@given(VARIABLES, VARIABLES)
def test_applying_the_difference_gives_what_there_was_after(before, after):
    there = apply(before, diff(before, after))
    assert same(there, after)


@quickly
@given(VARIABLES)
def test_nothing_changed_is_an_empty_delta(variables):
    delta = diff(variables, dict(variables))
    assert not delta
    assert apply(variables, delta) == variables


@quickly
@given(VARIABLES, VARIABLES)
def test_a_delta_touches_only_what_differs(before, after):
    delta = diff(before, after)
    assert set(delta.keys) == {
        k for k in before.keys() | after.keys() if not (k in before and k in after and same(before[k], after[k]))
    }


@quickly
@given(VARIABLES, VARIABLES)
def test_applying_twice_is_applying_once_and_leaves_its_argument(before, after):
    delta, kept = diff(before, after), dict(before)
    once = apply(before, delta)
    assert apply(once, delta) == once
    assert before == kept


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0, False), (None, False), ([], {}), ("1", 1), ([1], [True])]
)
def test_values_of_other_types_are_not_the_same(a, b):
    assert not same(a, b)
    assert diff({"k": a}, {"k": b}) == Delta(set={"k": b})
