"""A callback's file as a Source. Its code is never compiled here: only the sandbox does that."""

from __future__ import annotations

from pathlib import Path

from dispatcher import documents
from sandbox.errors import CodeError
from sandbox.invocation import Source

MAX_BYTES = 4 * 1024 * 1024
"""The largest source file found in public apps is 583 KB."""


def read(path: Path | str) -> Source:
    """The source in a file, named as given. Raises CodeError: missing, no file, not UTF-8, too large."""
    return decode(str(path), documents.read_bytes(Path(path), MAX_BYTES, CodeError))


def decode(name: str, data: bytes) -> Source:
    """The source in `data`. Raises CodeError: not UTF-8, or a null byte, with the line."""
    if len(data) > MAX_BYTES:
        raise CodeError(name, f"too large: more than {MAX_BYTES:,} bytes")
    text = documents.decode(name, data, CodeError)
    if (offset := text.find("\0")) >= 0:
        raise CodeError(name, f"null byte at offset {offset}", line=text.count("\n", 0, offset) + 1)
    return Source(name=name, text=text)
