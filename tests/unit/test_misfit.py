"""What a model refused is said at a path that the value has, and in words for who wrote it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, TypeAdapter, ValidationError

from sandbox import misfit


class Code(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str
    name: str = ""


class App(BaseModel):
    model_config = ConfigDict(extra="forbid")

    app: str


class Tagged(BaseModel):
    one: Annotated[
        Annotated[Code, Tag("code")] | Annotated[App, Tag("app")],
        Discriminator(lambda value: "app" if "app" in value else "code"),
    ]


Listed = Annotated[list[str], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]
STRING, INTEGER = "Input should be a valid string", "Input should be a valid integer"


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (str | dict[str, int], 3, f"{STRING} or a valid dictionary"),
        (list[int | str], [1, [2]], f"1: {INTEGER} or a valid string"),
        (dict[str, str | Code], {"a": {"code": 3}}, f"a.code: {STRING}"),
        (dict[str, str | Code], {"str": {"cod": ""}}, "str.cod: Extra inputs are not permitted"),
        (dict[str, str | Code], {"Code": {}}, "Code.code: Field required"),
        (Tagged, {"one": {"code": "", "name": 3}}, f"one.name: {STRING}"),
        (Tagged, {"one": {"code": 3, "name": 3}}, f"one.code: {STRING}"),
        (Tagged, {"one": {"name": ""}}, "one.code: Field required"),
        (Tagged, {"one": {"app": "", "code": ""}}, "one.code: Extra inputs are not permitted"),
        (dict[str, Listed], {"a": 3}, f"a: {STRING}"),
        (dict[str, Listed], {"a": ["", 3]}, f"a.1: {STRING}"),
        (dict[int, str], {"x": ""}, "x: Input should be a valid integer, unable to parse string as an integer"),
        (Literal["a", "b"], "c", "Input should be 'a' or 'b'"),
    ],
)
def test_each_step_of_the_path_is_one_that_was_written(kind: Any, value: Any, said: str):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    found = misfit.first(caught.value, value)
    assert str(found) == said
    for step in found.path[:-1] if found.kind == "missing" else found.path:
        value = value[step]


def test_many_mistakes_cost_no_more_than_their_list():
    value = {"a": [3] * 50_000}
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, list[str | Code]]).validate_python(value)
    assert misfit.first(caught.value, value).path == ("a", 0)
