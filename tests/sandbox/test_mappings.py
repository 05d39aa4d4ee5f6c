"""What is done to a zygote's memory for speed changes nothing in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A library whose relocations were written and then made read-only, in a mapping of their own.
WRITTEN = """
import ctypes, mmap, sys
from sandbox.guest import mappings
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
file = open(sys.argv[1], "rb")
at = libc.mmap(None, 8192, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, file.fileno(), 0)
ctypes.memmove(at + 4096, b"relocated", 9)
libc.mprotect(at, 8192, mmap.PROT_READ)
maps = mappings.opened()
{step}
print(ctypes.string_at(at, 4).decode(), ctypes.string_at(at + 4096, 9).decode())
"""


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("mappings.let_go(maps)", "file relocated"),
        (
            "for step in (mappings.merge, mappings.collapse, mappings.thicken, mappings.let_go): step(maps)",
            "file relocated",
        ),
        (
            "libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)\nlibc.madvise(at, 8192, 4)",
            "file ",
        ),
    ],
    ids=["let go", "all of it", "control: without a look at what was written"],
)
def test_what_was_written_in_a_mapping_of_a_file_stays(tmp_path, step, left):
    file = tmp_path / "library.so"
    file.write_bytes(b"file" + bytes(8188))
    run = [sys.executable, "-c", WRITTEN.format(step=step), str(file)]
    said = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert said.replace("\0", "").rstrip("\n") == left


def test_code_that_was_moved_to_huge_pages_goes_on_running():
    body = """
import json, re, zlib
from sandbox.guest import mappings
maps = mappings.opened()
mappings.merge(maps)
mappings.thicken(maps)
mappings.let_go(maps)
print(len(json.dumps(list(range(1000)))), len(re.findall("a+", "aba" * 100)), zlib.crc32(b"x"))
"""
    said = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert said.split() == ["4890", "101", "2363233923"]
