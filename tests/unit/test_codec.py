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


@given(PLAIN, st.text(st.characters(exclude_categories=["Cs"]), max_size=3))
def test_a_key_is_found_without_what_is_in_it(value, key):
    expected = isinstance(value, dict) and all(len(name) < 16 for name in value) and value.get(key) is not None
    if not isinstance(value, dict) or all(len(name) < 16 for name in value):
        assert codec.holds(codec.pack(value), key) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdf\xff\xff\xff\xff",
        b"\x81",
        b"\x81\xa5error",
        b"\x82" + b"\x91" * 100_000 + b"\xc0\xc0",
        b"\x82\x81\xa1a\xc0\xc0\xa5error\x01",
        b"\x82\xdb\x00\xff\xff\xff" + b"x" * 0xFFFFFF + b"\xc0\xa5error\x01",
    ],
)
def test_what_is_no_map_of_ours_holds_nothing(data):
    assert codec.holds(data, "error") is False


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
