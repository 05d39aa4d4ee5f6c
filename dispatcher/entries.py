"""A file that holds a list, as one small document an entry: each knows its own lines, none the whole file.

    .jsonl       one object a line; an empty line is none
    .json .yaml  a list, or an object with one key, `cases`, that holds it

An entry's line is found in its own text, so looking one up costs the same in a file of ten entries
and of ten thousand, and an entry that is kept does not keep the file.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from dispatcher import documents
from dispatcher.documents import Document

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES = ".jsonl"
SUFFIXES = documents.SUFFIXES | {LINES}
WRAP = "cases"


def entries(name: str, data: bytes) -> Iterator[Document]:
    """Each entry of the file `name`, in order. Raises InputError, with the line."""
    if PurePath(name).suffix.lower() == LINES:
        yield from _by_line(name, documents.decode(name, data))
        return
    document = documents.parse(name, data)
    value, wrapped = document.value, False
    if isinstance(value, dict) and value.keys() == {WRAP}:
        value, wrapped = value[WRAP], True
    if not isinstance(value, list):
        raise document.error(f"a list of cases is needed, or an object with the one key {WRAP!r}")
    spans = document.spans or tuple(_json_spans(document.text, 2 if wrapped else 1))
    above = seen = 0
    for item, (start, end) in zip(value, spans, strict=True):
        if start < seen:  # an alias is where its anchor is
            above = seen = 0
        above, seen = above + document.text.count("\n", seen, start), start
        column = start - document.text.rfind("\n", 0, start) - 1
        text = " " * column + document.text[start:end]  # so that an indented block stays one
        yield Document(name, item, text, above=above)


def _by_line(name: str, text: str) -> Iterator[Document]:
    for above, line in enumerate(text.split("\n")):
        if line.strip():
            yield documents.parse_json(name, line, above=above)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s"\[\]{},:]+')


def _json_spans(text: str, depth: int) -> Iterator[tuple[int, int]]:
    """Where each value of the list at `depth` begins and ends, in a text that is known to be JSON."""
    level, start, end = 0, -1, -1
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in "]}":
            level -= 1
        if (level == depth - 1 and mark == "]") or (level == depth and mark == ","):
            if start >= 0:
                yield start, end
            start = -1
        elif level >= depth:
            start = token.start() if start < 0 else start
            end = token.end()
        if mark in "[{":
            level += 1
