"""Which parts are which: what was not touched is found again, whatever was put in, taken out or moved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.adk.align import LONGEST, align, edited

KEYS = st.lists(st.sampled_from("abcdef"), max_size=12)


@given(KEYS, KEYS)
def test_each_old_item_is_found_at_most_once_and_only_as_itself(old, new):
    found = align(old, new)
    there = [index for index in found if index is not None]
    assert len(found) == len(new)
    assert len(set(there)) == len(there)
    assert all(old[index] == new[here] for here, index in enumerate(found) if index is not None)


@given(KEYS, KEYS)
def test_nothing_that_is_still_there_is_missed(old, new):
    missed = [key for key, index in zip(new, align(old, new), strict=True) if index is None]
    assert all(new.count(key) - old.count(key) == missed.count(key) for key in set(missed))


@given(KEYS, st.data())
def test_of_equal_items_the_one_that_was_left_in_place_is_meant(old, data):
    at = data.draw(st.integers(0, len(old)))
    assert align(old, [*old[:at], "new", *old[at:]]) == [*range(at), None, *range(at, len(old))]


def test_a_long_list_that_was_turned_around_is_found_by_its_keys_alone():
    old = [str(number) for number in range(LONGEST + 2)]
    assert align(old, old[::-1]) == list(range(LONGEST + 1, -1, -1))


@given(KEYS, KEYS)
def test_an_edit_takes_the_place_of_one_that_is_gone(old, new):
    found = align(old, new)
    pairs = edited(found, len(old))
    assert all(found[here] is None for here in pairs)
    assert not set(pairs.values()) & set(found)


def test_edits_are_told_from_insertions():
    assert edited(align("abc", "axc"), 3) == {1: 1}
    assert edited(align("abc", "axyc"), 3) == {}
    assert edited(align("abc", "ac"), 3) == {}
    assert edited(align("ab", "xy"), 2) == {0: 0, 1: 1}
