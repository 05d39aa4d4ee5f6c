"""Decoding is bounded, and a text is what its header says."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.egress.bodies import Body
from sandbox.egress.codes import Code, Refused

GZIP = partial(gzip.compress, mtime=0)  # without the time, which would be in the names of tests
RAW = zlib.compressobj(wbits=-15)
RAW_DATA = RAW.compress(b"hello") + RAW.flush()


def read(data: bytes, coding: str = "", limit: int = 1000, content_type: str = "", step: int = 7) -> str:
    body = Body(coding, limit)
    for start in range(0, len(data), step):
        body.feed(data[start : start + step])
    return body.text(content_type)


@pytest.mark.parametrize(
    ("coding", "data"),
    [("", b"hello"), ("identity", b"hello"), ("gzip", GZIP(b"hello")), ("X-GZIP", GZIP(b"hello")), ("deflate", zlib.compress(b"hello")), ("deflate", RAW_DATA), ("gzip", GZIP(b"hel") + GZIP(b"lo")), ("gzip", GZIP(b"hello") + b"\0\0\0")],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 3, 10_000])
def test_what_was_announced_is_undone_whatever_the_pieces(coding: str, data: bytes, step: int) -> None:
    assert read(data, coding, step=step) == "hello"


@given(st.binary(max_size=3000), st.integers(1, 500), st.sampled_from(["gzip", "deflate", ""]))
def test_a_body_of_just_the_limit_passes_and_one_byte_more_does_not(data: bytes, step: int, coding: str) -> None:
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "": bytes}[coding](data)
    assert read(packed, coding, len(data), "text/plain; charset=latin-1", step) == data.decode("latin-1")
    if data:
        with pytest.raises(Refused) as refused:
            read(packed, coding, len(data) - 1, step=step)
        assert refused.value.code == Code.RESPONSE_TOO_LARGE


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress", "gzip;q=1"])
def test_other_codings_and_stacks_of_them_are_refused(coding: str) -> None:
    with pytest.raises(Refused) as refused:
        Body(coding, 10)
    assert refused.value.code == Code.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", b"no gzip at all"),
        ("gzip", GZIP(b"hello")[:-5]),
        ("deflate", b"\xff\xff\xff\xff"),
        ("gzip", GZIP(b"x" * 100)[:20]),
    ],
)
def test_a_broken_body_is_an_error(coding: str, data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read(data, coding)
    assert refused.value.code == Code.PROTOCOL_ERROR


def test_nothing_at_all_is_an_empty_text_in_any_coding() -> None:
    assert read(b"", "gzip") == ""


def test_a_bomb_takes_no_more_memory_than_its_limit() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    body = Body("gzip", 1 << 20)
    tracemalloc.start()
    with pytest.raises(Refused) as refused:
        body.feed(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.value.code == Code.RESPONSE_TOO_LARGE
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("content_type", "data", "text"),
    [
        ("", "ü".encode(), "ü"), ("text/plain; charset=ISO-8859-1", b"\xfc", "ü"), ('text/html; charset="Shift_JIS"', "日".encode("shift_jis"), "日"),
        ("text/plain; charset=utf-16", "ü".encode("utf-16"), "ü"), ("text/plain", b"\xef\xbb\xbfa", "a"), ("text/plain; charset=nope", b"\xff", "\ufffd"),
        ("text/plain; charset=idna", b"xn--a", "xn--a"), ("text/plain; charset=unicode_escape", b"\\x41", "\\x41"), ("text/plain; charset=base64", b"QQ==", "QQ=="),
        ("text/plain; charset=utf-7", b"+AGE-", "+AGE-"),
    ],
)  # fmt: skip
def test_a_text_is_read_by_its_charset_and_by_no_codec_that_is_none(content_type: str, data: bytes, text: str) -> None:
    assert read(data, content_type=content_type) == text
