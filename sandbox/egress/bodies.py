"""From the bytes of a response to its text, bounded at every step.

A compressed body is undone piece by piece and never beyond what the budget has left: a megabyte of
gzip can hold a gigabyte. Only what was announced is undone, one coding deep.
"""

from __future__ import annotations

import codecs
import re
import zlib

from sandbox.egress.codes import Code, Refused

CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_MAGIC = b"\x1f\x8b"

CHARSETS = frozenset(
    "utf-8 utf-8-sig utf-16 utf-16-le utf-16-be utf-32 ascii iso8859-1 iso8859-2 iso8859-5 iso8859-7 iso8859-9 iso8859-15"
    " cp1250 cp1251 cp1252 cp1253 cp1254 koi8-r shift_jis cp932 euc_jp iso2022_jp gbk gb2312 gb18030 big5 euc_kr"
    " cp949 tis-620".split()
)
"""By the names of Python's codecs. Others, some of which are slow or no text at all, are read as UTF-8."""


class Body:
    """Collects a response: `feed` what came, then `text`. Raises Refused when it grows past `limit`."""

    def __init__(self, coding: str, limit: int) -> None:
        coding = coding.strip().lower()
        if coding not in {"", "identity", *CODINGS}:
            raise Refused(Code.PROTOCOL_ERROR, "the response is in a content coding that was not asked for")
        self._limit = limit
        self._coding = coding
        self._undo: zlib._Decompress | None = None
        self._start = b""  # the first bytes of a stream, until they say what it is
        self._streams = 0
        self._ended = False
        self.data = bytearray()

    def feed(self, piece: bytes) -> None:
        if self._coding not in CODINGS:
            self._add(piece)
        while piece and self._coding in CODINGS and not self._ended:
            piece = self._inflate(piece)

    def _add(self, piece: bytes) -> None:
        if len(self.data) + len(piece) > self._limit:
            raise Refused(
                Code.RESPONSE_TOO_LARGE, f"more than {self._limit} bytes decoded (HOOKPOOL_EGRESS_RESPONSE_BYTES)"
            )
        self.data += piece

    def _inflate(self, piece: bytes) -> bytes:
        """Undo some of it; what is left to undo."""
        if self._undo is None:
            self._start += piece
            if len(self._start) < 2:
                return b""
            piece, self._start = self._start, b""
            self._undo = self._begin(piece)
            if self._undo is None:
                self._ended = True
                return b""
        room = self._limit - len(self.data) + 1  # one more than fits: 0 would mean without end
        try:
            self._add(self._undo.decompress(piece, room))
        except zlib.error as problem:
            raise Refused(Code.PROTOCOL_ERROR, "the compressed body is broken") from problem
        if not self._undo.eof:
            return self._undo.unconsumed_tail
        rest, self._undo = self._undo.unused_data, None
        return rest

    def _begin(self, piece: bytes) -> zlib._Decompress | None:
        """A stream by its first two bytes. None for what stands behind the last one: it is ignored, as everybody does."""
        self._streams += 1
        if self._coding == "deflate":
            with_header = (
                piece[0] & 15 == 8 and int.from_bytes(piece[:2]) % 31 == 0
            )  # RFC 1950; some servers leave it out
            return zlib.decompressobj(15 if with_header else -15) if self._streams == 1 else None
        if self._streams > 1 and piece[:2] != _GZIP_MAGIC:
            return None
        return zlib.decompressobj(31)

    def text(self, content_type: str) -> str:
        """Raises Refused where a compressed body broke off."""
        if self._undo is not None or (self._start and not self._streams):
            raise Refused(Code.PROTOCOL_ERROR, "the compressed body breaks off")
        return self.data.decode(charset(content_type), "replace")


def charset(content_type: str) -> str:
    """The codec of a Content-Type."""
    found = re.search(r"""charset\s*=\s*["']?([A-Za-z0-9_.:-]{1,40})""", content_type, re.IGNORECASE)
    if found is not None:
        try:
            name = codecs.lookup(found[1]).name
        except LookupError:
            name = ""
        if name in CHARSETS and name != "utf-8":
            return name
    return "utf-8-sig"
