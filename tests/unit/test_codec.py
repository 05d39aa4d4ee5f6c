"""Bytes from the other side become plain data, or a ProtocolError, and never more memory than allowed."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import codec
from sandbox.errors import FrameTooLarge, ProtocolError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_data_comes_back_as_it_was(value):
    assert codec.unpack(codec.pack(value), 1 << 20) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_plain_data_or_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        codec.pack(codec.unpack(data, 1000))


HOSTILE = {
    "too many bytes": (codec.pack("x" * 2000), "at most 1000"),
    "too many containers": (msgpack.packb([{}] * 300), "more than 100 lists and maps"),
    "too deep": (b"\x91" * 70 + b"\x90", "deeper than 64"),
    "an extension": (msgpack.packb(msgpack.ExtType(5, b"x")), "extension type 5"),
    "a bytes key": (msgpack.packb({b"k": 1}), "bytes key"),
    "an int key": (msgpack.packb({1: 1}), "not msgpack"),
    "not a number": (msgpack.packb(float("nan")), "the number nan"),
    "infinity inside": (msgpack.packb([float("inf")]), "the number inf"),
    "two values": (b"\x01\x01", "not msgpack"),
    "half a value": (b"\xa5ab", "not msgpack"),
    "a broken string": (b"\xa1\xff", "not msgpack"),
    "nothing": (b"", "not msgpack"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_plain_data_is_refused_with_the_reason(name):
    data, piece = HOSTILE[name]
    with pytest.raises(ProtocolError, match=piece):
        codec.unpack(data, 1000, containers=100)


@given(st.lists(st.binary(max_size=50), max_size=6), st.integers(1, 7))
def test_frames_come_out_whole_whatever_the_pieces(payloads, step):
    stream = b"".join(map(codec.frame, payloads))
    reader = codec.FrameReader(50)
    got = [frame for at in range(0, len(stream), step) for frame in reader.feed(stream[at : at + step])]
    assert (got, reader.pending) == (payloads, 0)


def test_a_forged_length_is_refused_before_anything_is_kept():
    reader = codec.FrameReader(1000)
    with pytest.raises(FrameTooLarge) as refused:
        reader.feed(b"\xff\xff\xff\xff")
    assert (refused.value.size, refused.value.limit) == (2**32 - 1, 1000)
