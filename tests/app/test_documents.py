"""JSON and YAML are read strictly, as JSON's data, and every complaint has a file and a line."""

import pytest

from dispatcher import documents
from dispatcher.documents import spell
from sandbox.errors import InputError


def complaint(name: str, data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        documents.parse(name, data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NO", "NO"),
        ("on", "on"),
        ("yes", "yes"),
        ("2026-03-01", "2026-03-01"),
        ("12:30", "12:30"),
        ("007", "007"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("1.2.3", "1.2.3"),
        ("'5'", "5"),
        ("5", 5),
        ("-5", -5),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_a_yaml_scalar_means_what_json_would_mean_by_it(written: str, meant: object) -> None:
    value = documents.parse("a.yaml", f"key: {written}".encode()).value["key"]
    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.json", b'{"a": 1,\n "b": [1,,2]}', "a.json:2: not JSON: Expecting value (column 10)"),
        ("a.json", b"", "a.json:1: is empty"),
        ("a.json", b'{"a": 1,\n "a": 2}', "a.json:2: key 'a' is given twice in one object"),
        ("a.json", b"[\n NaN]", "a.json:2: NaN is not JSON"),
        ("a.json", b'{"a": 1e999}', "a.json:1: a: the number inf is too large"),
        ("a.json", b'{"b": 1,\n"a": [1,\n 18446744073709551616]}', "a.json:3: a[1]: the number 18446744073709551616 does not fit"),
        ("a.json", b'{"a": "\\ud800"}', "a: half of a surrogate pair is not text"),
        ("a.json", b'{"a":\n "\xff"}', "a.json:2: not UTF-8: byte 0xff at offset 8"),
        ("a.json", b"[" * 100_000, "a.json: nested too deeply"),
        ("a.json", b"[" * 70 + b"]" * 70, "nested deeper than 64"),
        ("a.yaml", b"a: 1\nb: 2\na: 3", "a.yaml:3: not YAML: key 'a' is given twice (column 1)"),
        ("a.yaml", b"a: 1\n2: b", "a.yaml:2: not YAML: a key must be text, got '2' (column 1)"),
        ("a.yaml", b"a: [1\nb: 3", "a.yaml:2: not YAML: did not find expected"),
        ("a.yaml", b"a: 1\n---\nb: 2", "a.yaml:2: not YAML:"),
        ("a.yaml", b"a: !!python/object/apply:os.system [id]", "a.yaml:1: not YAML: could not determine a constructor"),
        ("a.yaml", b"a: &a [*a]", "nested deeper than 64"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line_with_file_and_line(name: str, data: bytes, expected: str) -> None:
    text = complaint(name, data)
    assert text.startswith(expected) or expected in text
    assert "\n" not in text


def test_aliases_that_multiply_are_refused_before_anybody_walks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_VALUES", 50_000)
    levels = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [
        f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]" for below, name in zip("abcdef", "bcdefg", strict=True)
    ]
    assert "more than 50,000 values" in complaint("bomb.yaml", "\n".join(levels).encode())


def test_a_key_merged_in_may_be_overridden() -> None:
    value = documents.parse("a.yaml", b"base: &b {x: 1, y: 2}\nmine: {<<: *b, x: 5}").value
    assert value["mine"] == {"x": 5, "y": 2}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.yaml", b"one: 1\ntwo:\n  - a\n  - deep:\n      key: 5\n"),
        ("a.json", b'{"one": 1,\n"two": [\n"a",\n{"deep": {\n"key": 5}}]}'),
        ("a.json", b'{"one": 1,\n\t"two": [\n\t"a",\n\t{"deep": {\n\t"key": 5}}]}'),
    ],
)
def test_a_document_knows_the_line_of_everything_in_it(name: str, data: bytes) -> None:
    document = documents.parse(name, data)
    assert [document.line(*path) for path in [("one",), ("two", 1), ("two", 1, "deep", "key")]] == [1, 4, 5]
    assert document.line("nowhere") is None


def test_a_path_reads_like_code() -> None:
    assert spell(("returned", "parts", 0, "text")) == "returned.parts[0].text"


def test_files_that_are_none_say_so(tmp_path) -> None:
    for path, why in [(tmp_path, "is a directory"), (tmp_path / "nowhere.json", "no such file")]:
        with pytest.raises(InputError) as caught:
            documents.read(path)
        assert str(caught.value).startswith(f"{path}: {why}")


def test_a_file_above_the_limit_is_not_read_whole(tmp_path) -> None:
    path = tmp_path / "big.json"
    path.write_bytes(b" " * 101)
    with pytest.raises(InputError, match="more than 100 bytes"):
        documents.read_bytes(path, 100)


def test_a_byte_order_mark_is_not_part_of_the_text() -> None:
    assert documents.parse("a.json", b"\xef\xbb\xbf{}").value == {}
