"""A URL taken apart, once and strictly.

Two readers of one URL are how a guard is talked past: the guard sees one host, the connection another.
So there is one reader, it refuses what is doubtful, and what it found (not the text) is judged and
connected to. Where browsers and RFC 3986 disagree, neither is followed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urljoin

from sandbox.egress.codes import Code, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.egress.ranges import Address

MAX_BYTES = 8 * 1024
DEFAULT_PORTS = {"http": 80, "https": 443}

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#\\]*)(?P<target>[^#]*)(?:#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")  # by its last label, as every resolver decides it
_TARGET_SAFE = "/?:@!$&'()*+,;=-._~%"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Url:
    """The parts. `host` is lower-case ASCII without a dot at its end; `address` is set where it is a literal."""

    scheme: str
    host: str
    port: int
    target: str  # path and query, as they are sent
    address: Address | None = None

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"

    def join(self, reference: str) -> Url:
        """Where a Location leads from here. Raises Refused as `parse` does."""
        _no_controls(reference)  # urljoin drops some of them
        try:
            joined = urljoin(str(self), reference)
        except ValueError as problem:
            raise _invalid(str(problem)) from problem
        return parse(joined)


def parse(text: str, params: Sequence[Sequence[str]] = ()) -> Url:
    """The URL in `text`, with `params` added to its query. Raises Refused(invalid_url)."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise _invalid(f"longer than {MAX_BYTES} bytes")
    _no_controls(text)
    found = _URL.fullmatch(text.strip(" "))
    if found is None:
        raise _invalid("it does not begin with http:// or https://")
    scheme = found["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        raise _invalid(f"the scheme is {scheme[:20]}, only http and https are spoken")
    if "@" in found["authority"]:
        raise _invalid("a user or password before the host is refused")
    parts = _AUTHORITY.fullmatch(found["authority"])
    if parts is None:
        raise _invalid("the host cannot be read")
    host, address = _six(parts["v6"]) if parts["v6"] is not None else _named(parts["name"])
    port = DEFAULT_PORTS[scheme] if parts["port"] is None else int(parts["port"])
    if not 0 < port < 65536:
        raise _invalid(f"there is no port {port}")
    url = Url(scheme, host, port, _target(found["target"], params), address)
    if len(str(url)) > MAX_BYTES:
        raise _invalid(f"longer than {MAX_BYTES} bytes with its parameters")
    return url


def _invalid(why: str) -> Refused:
    return Refused(Code.INVALID_URL, why)


def _no_controls(text: str) -> None:
    if _CONTROL.search(text):
        raise _invalid("a control character is in it")


def _six(text: str) -> tuple[str, IPv6Address]:
    if "%" in text:
        raise _invalid("an address with a zone is refused")
    try:
        address = IPv6Address(text)
    except AddressValueError as problem:
        raise _invalid("the brackets hold no IPv6 address") from problem
    return str(address), address


def _named(text: str) -> tuple[str, IPv4Address | None]:
    """A name, or an IPv4 address written the one way that everybody reads alike."""
    host = _ascii(text)
    if _NUMBER.fullmatch(host):
        try:
            address = IPv4Address(host)
        except AddressValueError as problem:
            raise _invalid("a number is no host; an IPv4 address is four decimal parts") from problem
        if text != str(address):
            raise _invalid("an IPv4 address is written in plain digits")
        return host, address
    return host, None


def _ascii(text: str) -> str:
    """Lower-case ASCII by UTS 46, one dot at the end taken away."""
    if not text.isascii():
        import idna  # late: few hosts need its tables

        try:
            text = idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
        except (idna.IDNAError, UnicodeError) as problem:
            raise _invalid("the host is no international domain name") from problem
    host = text.lower().removesuffix(".")
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise _invalid("the host is no domain name")
    for label in host.split("."):
        if label.startswith("xn--"):
            _check_punycode(label)
    return host


def _check_punycode(label: str) -> None:
    """What it stands for must be a proper name, and must be written like this."""
    import idna

    try:
        honest = idna.encode(idna.decode(label), uts46=True).decode("ascii") == label
    except (idna.IDNAError, UnicodeError):
        honest = False
    if not honest:
        raise _invalid("the host is no international domain name")


def _target(text: str, params: Sequence[Sequence[str]]) -> str:
    path, mark, query = text.partition("?")
    if params:
        query = "&".join(filter(None, [query, urlencode([(name, value) for name, value in params])]))
    if path and not path.startswith("/"):
        raise _invalid("a backslash behind the host is refused")
    whole = f"{path or '/'}{'?' if query or mark else ''}{query}"
    return quote(_BAD_ESCAPE.sub("%25", whole), safe=_TARGET_SAFE, errors="replace")
