"""What a zygote did to its own memory so that forks are cheap."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from sandbox.zygote import Zygote


@pytest.fixture(scope="module")
def maps():
    """The mappings of a waiting child: mode and file, in order."""
    zygote = Zygote("A")
    child = zygote.fork()
    assert child.announce(10)
    lines = [line.split(maxsplit=5) for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines()]
    child.close()
    zygote.close()
    return [(line[1], line[5].strip() if len(line) > 5 else "") for line in lines]


def test_a_library_is_one_mapping_of_code_and_one_of_data(maps):
    libraries = Counter(path for _, path in maps if ".so" in os.path.basename(path))
    assert len(libraries) > 20
    assert sum(libraries.values()) < 2.3 * len(libraries), libraries.most_common(3)  # as it comes, five each


def test_no_memory_of_a_child_is_writable_and_executable(maps):
    assert [one for one in maps if "w" in one[0] and "x" in one[0]] == []


def test_most_of_the_heap_lies_side_by_side(maps):
    assert sum(mode == "rw-p" and not path for mode, path in maps) < 25
