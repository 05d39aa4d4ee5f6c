"""Bytes on the wire: msgpack values and length-prefixed frames, with no I/O.

Theory of operation. A frame is a big-endian u32 length and that many bytes of msgpack. Whoever
reads bytes from the other side of a trust boundary bounds three things *before* objects exist:
the size in bytes, the number of containers (a megabyte of empty maps would become 75 MB of
dicts), and the depth. What remains is plain data: None, bool, int, finite float, str, bytes,
list, and dict with str keys. Extension types, other keys and NaN are ProtocolErrors.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import msgpack

from sandbox.errors import FrameTooLarge, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 64
MAX_CONTAINERS = 200_000
_LENGTH = struct.Struct(">I")
_BUFFER = 1024  # bytes to begin with; msgpack's default takes a quarter of a MiB for each message
_LEAVES = frozenset({type(None), bool, int, str, bytes})  # any of these is fine


def pack(value: object) -> bytes:
    """`value` as msgpack. Raises TypeError, ValueError or OverflowError for what cannot travel."""
    return msgpack.packb(value, use_bin_type=True, buf_size=_BUFFER)  # type: ignore[no-any-return]


def unpack(data: bytes, limit: int, *, containers: int = MAX_CONTAINERS) -> Any:  # plain data
    """The plain value in `data`, at most `limit` bytes and `containers` lists and maps.

    Raises ProtocolError, which says what was found and what the bound is.
    """
    if len(data) > limit:
        raise ProtocolError(f"{len(data)} bytes, at most {limit} are accepted")
    count = _count(containers) if len(data) > containers else None  # each takes a byte at least
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_hook=count,
            list_hook=count,
            ext_hook=_no_ext,
            timestamp=0,
        )
    except ProtocolError:
        raise
    except Exception as error:  # msgpack raises many kinds; each means the same here
        raise ProtocolError(f"not msgpack: {type(error).__name__}: {error}".rstrip(": ")) from error
    _check(value, MAX_DEPTH)
    return value


def _count(most: int) -> Callable[[Any], Any]:
    """What msgpack is to call with each list and map: it refuses one more than `most`."""
    left = most

    def count(container: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ProtocolError(f"more than {most} lists and maps")
        return container

    return count


def holds(data: bytes, key: str) -> bool:
    """Whether the map in `data` has something else than None at `key`, without decoding any of its values; False also
    for what is no map.
    """
    reader = msgpack.Unpacker(max_str_len=64, max_bin_len=0, max_array_len=0, max_map_len=0, max_ext_len=0)
    try:
        reader.feed(data)
        for _ in range(reader.read_map_header()):
            if reader.unpack() == key:
                return bool(data[reader.tell()] != _NONE)
            reader.skip()
    except Exception:  # msgpack raises many kinds; each means the same here
        return False
    return False


_NONE = 0xC0


def _no_ext(code: int, _data: bytes) -> object:
    raise ProtocolError(f"extension type {code}")


def _check(value: object, depth: int) -> None:
    if isinstance(value, dict):
        if depth == 0:
            raise ProtocolError(f"nested deeper than {MAX_DEPTH}")
        for key, item in value.items():
            if type(key) is not str:
                raise ProtocolError(f"a {type(key).__name__} key")
            if type(item) not in _LEAVES and not (type(item) is float and math.isfinite(item)):
                _check(item, depth - 1)
    elif isinstance(value, list):
        if depth == 0:
            raise ProtocolError(f"nested deeper than {MAX_DEPTH}")
        for item in value:
            if type(item) not in _LEAVES:
                _check(item, depth - 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ProtocolError(f"the number {value}")
    elif type(value) not in _LEAVES:
        raise ProtocolError(f"a {type(value).__name__}")


def frame(payload: bytes) -> bytes:
    """One frame: the length, then the payload."""
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Frames out of a byte stream, whatever the pieces it comes in.

    `feed` returns the payloads completed by `data`. A length above `limit` raises FrameTooLarge as
    soon as its four bytes are there, so a forged length costs no memory.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        payloads = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > self.limit:
                raise FrameTooLarge(size, self.limit)
            end = start + _LENGTH.size + size
            if len(buffer) < end:
                break
            payloads.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        if start:
            del buffer[:start]
        return payloads

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)
