"""What JSON can carry comes through unchanged; what it cannot is named by its path."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from enum import IntEnum, StrEnum
from typing import NamedTuple

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox import ces
from sandbox.delta import same
from sandbox.jsonable import LEVELS, NotJson, TooLarge, as_struct, check_size, plain

quickly = settings(max_examples=50)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@quickly
@given(JSON)
def test_json_values_come_through_as_they_are_and_as_copies(value):
    result = plain(value)
    assert same(result, value)
    assert not isinstance(value, dict | list) or result is not value


@quickly
@given(JSON)
def test_a_struct_has_no_ints_and_the_same_shape(value):
    assert as_struct(plain(value)) == json.loads(json.dumps(value), parse_int=float)


class Pair(NamedTuple):
    x: int
    y: int


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int
    note: str | None = None
    raw: bytes = b"\xff"


CARRIED = {
    "a tuple": ((1, (2,)), [1, [2]]),
    "a named tuple": (Pair(1, 2), [1, 2]),
    "subclasses of dict": (OrderedDict(a=defaultdict(list, b=[1])), {"a": {"b": [1]}}),
    "enums of text and ints": ({Colour.RED: Level.HIGH}, {"red": 3}),
    "bytes": ([b"\x00", bytearray(b"a")], ["AA==", "YQ=="]),
    "parts": ([ces.Part(text="x")], [{"text": "x"}]),
    "a blob's base64": (ces.Blob(data=b"aGk="), {"data": "aGk="}),
    "an event": (
        ces.Event(author="user", long_running_tool_ids={"a"}),
        {
            "id": "",
            "invocation_id": "",
            "author": "user",
            "timestamp": 0,
            "actions": {"state_delta": {}, "artifact_delta": {}, "requested_auth_configs": {}},
            "long_running_tool_ids": ["a"],
        },
    ),
    "a model of the user's": (Order(id=1, more=[2]), {"id": 1, "note": None, "raw": "/w==", "more": [2]}),
}


@pytest.mark.parametrize("case", CARRIED)
def test_more_than_json_is_carried_as_plain_values(case):
    value, expected = CARRIED[case]
    assert same(plain(value), expected)


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def circle() -> dict[str, object]:
    value: dict[str, object] = {"a": {"list": [0]}}
    value["a"]["list"].append(value["a"])  # type: ignore[index]
    return value


class Fights:
    @property
    def __class__(self):
        raise RuntimeError


class Strange(type):
    @property
    def __name__(cls):
        raise RuntimeError


REFUSED = {
    "a set": ({"a": [{1}]}, "v.a[0]", "set"),
    "NaN": ([float("nan")], "v[0]", "NaN"),
    "infinity": (float("inf"), "v", "Infinity"),
    "a key": ({"a": {1: 2}}, "v.a", "a key of type int"),
    "a large int": ({"odd key": 2**64}, "v['odd key']", "an int beyond 64 bits"),
    "a surrogate": (["\udc00"], "v[0]", "text with a lone surrogate"),
    "a surrogate in a key": ({"\udc00": 1}, "v", "text with a lone surrogate"),
    "a cycle": (circle(), "v.a.list[1]", "a cycle"),
    "depth": (nested(LEVELS + 1), "v" + "[0]" * LEVELS, f"nested deeper than {LEVELS}"),
    "an object that fights": ([Fights()], "v[0]", "Fights"),
    "an object of a strange class": (Strange("Odd", (), {})(), "v", "Odd"),
    "a class": ({"a": int}, "v.a", "type"),
    "inside a model": (ces.FunctionCall(args={"when": {1}}), "v.args.when", "set"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_json_cannot_carry_is_named_by_its_path(case):
    value, path, what = REFUSED[case]
    with pytest.raises(NotJson) as raised:
        plain(value, "v")
    assert (raised.value.path, raised.value.what) == (path, what)
    assert str(raised.value) == f"{path}: {what}"


def test_the_deepest_value_allowed_is_carried():
    assert plain(nested(LEVELS)) == nested(LEVELS)


@pytest.mark.parametrize(
    ("value", "size"), [("x" * 262_143, 262_145), ("é" * 131_072, 262_146), (["ab"] * 60_000, 300_001)]
)
def test_a_variable_too_large_says_how_large(value, size):
    with pytest.raises(TooLarge) as raised:
        check_size("k", value)
    assert str(raised.value) == f"Variable update for key 'k' is too large: {size} bytes (max: 262144)"


def test_the_largest_variable_is_taken():
    check_size("k", "x" * 262_142)
