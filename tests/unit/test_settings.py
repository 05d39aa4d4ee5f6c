"""A setting that cannot be used is refused in the words of who sets it."""

import pytest

from sandbox.errors import SettingsError
from sandbox.settings import load


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("WAITING", "x", "must be a whole number, got 'x'"),
        ("WAITING", "1.5", "must be a whole number, got '1.5'"),
        ("WAITING", "-1", "must be at least 0, got '-1'"),
        ("WAITING", "999", "must be at most 256, got '999'"),
        ("MAX_WALL_S", "soon", "must be a number, got 'soon'"),
        ("MAX_WALL_S", "0", "must be above 0.0, got '0'"),
        ("MIN_TIER", "Z", "must be one of A, B, C, got 'Z'"),
        ("CONFLICT", "maybe", "must be one of last_write_wins, "),
        ("NONSENSE", "1", "no such setting; README.md lists them"),
    ],
)
def test_an_impossible_value_is_named_with_what_would_be_possible(name: str, value: str, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({f"HOOKPOOL_{name}": value})
    assert caught.value.where == f"HOOKPOOL_{name}"
    assert caught.value.why.startswith(why)
