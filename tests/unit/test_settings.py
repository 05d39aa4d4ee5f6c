"""A setting that cannot be used is refused in the words of who sets it."""

import pytest

from sandbox.errors import SettingsError
from sandbox.settings import Settings, load


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
        ("LEASE_S", "inf", "must be at most 1000000000000, got inf"),
        ("LEASE_S", "nan", "must be above 0.0, got 'nan'"),
        ("MAX_MEMORY_MB", "9999999999999", "must be at most 1000000000000, got "),
        ("EGRESS_CA_FILE", "/no/such/file", "/no/such/file cannot be read"),
        ("DEADLINE_S", "1", "must be above HOOKPOOL_MAX_WALL_S + HOOKPOOL_LEASE_S, 630, got 1"),
        ("MAX_CPU_S", "601", "must be at most HOOKPOOL_MAX_WALL_S, 600, got 601"),
        ("NONSENSE", "1", "no such setting; README.md lists them"),
    ],
)
def test_an_impossible_value_is_named_with_what_would_be_possible(name: str, value: str, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({f"HOOKPOOL_{name}": value})
    assert caught.value.where == f"HOOKPOOL_{name}"
    assert caught.value.why.startswith(why)


@pytest.mark.parametrize("given", [{"min_tier": "Z"}, {"waiting": -1}, {"waitin": 1}, {"max_cpu_s": 601.0}], ids=str)
def test_made_in_python_they_are_refused_like_those_of_the_environment(given: dict[str, object]) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**given)
    assert caught.value.where == f"HOOKPOOL_{next(iter(given)).upper()}"


@pytest.mark.parametrize(
    ("environ", "where", "why"),
    [
        ({"EGRESS": "replay"}, "EGRESS_REPLAY", "names no recording, and HOOKPOOL_EGRESS is replay"),
        ({"EGRESS": "deny", "EGRESS_RECORD": "r"}, "EGRESS_RECORD", "needs live requests, and HOOKPOOL_EGRESS is deny"),
    ],
)
def test_of_several_that_do_not_go_together_each_is_named_as_it_is_set(
    environ: dict[str, str], where: str, why: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load({f"HOOKPOOL_{name}": value for name, value in environ.items()})
    assert (caught.value.where, caught.value.why) == (f"HOOKPOOL_{where}", why)
