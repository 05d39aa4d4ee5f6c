"""A file that holds a list: each entry with its own lines, in all three formats."""

import pytest

from dispatcher.entries import entries
from sandbox.errors import InputError

FILES = {
    "a.yaml": "# first\n- name: a\n  deep:\n    key: 1\n\n- {name: b,\n   deep: {key: 2}}\n- name: c\n",
    "b.yaml": "cases:\n  - name: a\n    deep:\n      key: 1\n  -\n    name: b\n    deep: {key: 2}\n  - name: c\n",
    "a.json": '[\n\t{"name": "a",\n\t"deep": {\n\t"key": 1}},\n\n {"name": "b", "deep":\n {"key": 2}}, {"name": "c"}\n]',
    "b.json": '{"cases": [\n{"name": "a",\n"deep": {\n"key": 1, "x": "]},\\""}},\n{"name": "b",\n\n"deep": {"key": 2}},\n{"name": "c"}]}',
    "a.jsonl": '{"name": "a", "deep": {"key": 1}}\n\n{"name": "b", "deep": {"key": 2}}\n{"name": "c"}\n',
}
LINES = {
    "a.yaml": [(2, 4), (6, 7), (8, None)],
    "b.yaml": [(2, 4), (6, 7), (8, None)],
    "a.json": [(2, 4), (6, 7), (7, None)],
    "b.json": [(2, 4), (5, 7), (8, None)],
    "a.jsonl": [(1, 1), (3, 3), (4, None)],
}


@pytest.mark.parametrize("name", FILES)
def test_an_entry_knows_its_lines(name: str) -> None:
    found = list(entries(name, FILES[name].encode()))
    assert [entry.value["name"] for entry in found] == ["a", "b", "c"]
    assert [(entry.above + 1, entry.line("deep", "key")) for entry in found] == LINES[name]


def test_an_alias_is_where_its_anchor_is_and_the_next_entry_where_it_is_itself() -> None:
    text = "- &a\n  name: a\n- *a\n- name: c\n"
    assert [entry.above + 1 for entry in entries("a.yaml", text.encode())] == [1, 1, 4]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": 1, "a": 2}\n', 2),
        ("a.jsonl", '{"a": 1}\n\n{"a": \n', 3),
        ("a.jsonl", '{"a": NaN}\n', 1),
        ("a.json", '{"a": 1}', 1),
        ("a.yaml", "a: 1\n", 1),
    ],
)
def test_what_is_no_list_is_an_error_with_its_line(name: str, text: str, line: int) -> None:
    with pytest.raises(InputError) as caught:
        list(entries(name, text.encode()))
    assert (caught.value.where, caught.value.line) == (name, line)
