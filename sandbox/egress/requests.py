"""A request as it is sent, and what a redirect makes of it. Pure.

first     what code asked for -> a Request, or Refused
follow    a Request and the response it got -> the next Request, None, or Refused
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sandbox.egress import urls
from sandbox.egress.codes import Code, Refused
from sandbox.egress.policy import METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.egress.policy import Budgets
    from sandbox.egress.urls import Url

type Headers = tuple[tuple[str, str], ...]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FORBIDDEN_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade http2-settings"
    " expect".split()
)
"""RFC 9110 7.6.1: between two neighbours only, so ours to say. `Expect` is not spoken. They are dropped."""

OURS = frozenset({"host", "content-length", "accept-encoding"})
"""Written by us, whatever the code says: see `_own`."""

METADATA = re.compile(r"metadata|metadata-flavor|x-google-metadata-request|x-(aws-ec2|aliyun-ecs)-metadata-token.*")
"""What proves to a cloud's metadata server that a caller is no mere redirect. No public server asks for it."""

SAFELISTED = frozenset("accept accept-language user-agent".split())
"""What another origin may see: https://fetch.spec.whatwg.org/#cors-safelisted-request-header, less those of a body."""

DEFAULTS: Headers = (("User-Agent", "hookpool"), ("Accept", "*/*"))
ACCEPT_ENCODING = "gzip, deflate"
REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Ask:
    """What code asked for, as it said it."""

    method: str
    url: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Headers = ()
    body: bytes | None = None
    timeout: float | None = None
    allow_redirects: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """One request to one place. `headers` are complete."""

    method: str
    url: Url
    headers: Headers
    body: bytes
    hops: int = 0

    @property
    def size(self) -> int:
        """Bytes, but for the few of the request line's own."""
        return len(self.body) + len(self.url.target) + sum(len(name) + len(value) + 4 for name, value in self.headers)


def first(ask: Ask, budgets: Budgets) -> Request:
    """Raises Refused."""
    if ask.method not in METHODS:
        raise Refused(Code.EGRESS_DENIED, f"the method is none of {', '.join(sorted(METHODS))}")
    url = urls.parse(ask.url, ask.params)
    body = ask.body or b""
    if len(body) > budgets.request_bytes:
        raise Refused(
            Code.REQUEST_TOO_LARGE,
            f"a body of {len(body)} bytes, at most {budgets.request_bytes} (HOOKPOOL_EGRESS_REQUEST_BYTES)",
        )
    given = _checked(ask.headers, url, len(body))
    if (size := sum(len(name) + len(value) + 4 for name, value in given)) > budgets.header_bytes:
        raise Refused(
            Code.REQUEST_TOO_LARGE,
            f"headers of {size} bytes, at most {budgets.header_bytes} (HOOKPOOL_EGRESS_HEADER_BYTES)",
        )
    return _complete(Request(ask.method, url, given, body))


def _checked(given: Sequence[tuple[str, str]], url: Url, size: int) -> Headers:
    """The code's own headers, those of them that go on. Raises Refused(invalid_header)."""
    for name, value in given:
        _check(name, value.strip(" \t"), url, size)
    named = {word.strip().lower() for name, value in given if name.lower() == "connection" for word in value.split(",")}
    dropped = HOP_BY_HOP | OURS | named
    return tuple((name, value.strip(" \t")) for name, value in given if name.lower() not in dropped)


def _check(name: str, value: str, url: Url, size: int) -> None:
    low = name.lower()
    if not _TOKEN.fullmatch(name):
        raise Refused(Code.INVALID_HEADER, "a header's name has characters that no name has")
    if _FORBIDDEN_IN_VALUE.search(value):
        raise Refused(Code.INVALID_HEADER, f"{name}: a control character is in its value")
    if METADATA.fullmatch(low.replace("_", "-")):
        raise Refused(Code.INVALID_HEADER, f"{name}: it is for metadata servers")
    if low == "transfer-encoding":
        raise Refused(Code.INVALID_HEADER, f"{name}: how a body travels is not the code's to say")
    if low == "content-length" and value != str(size):
        raise Refused(Code.INVALID_HEADER, f"{name}: {value[:20]!r}, the body has {size} bytes")
    if low == "host" and value.lower() not in {
        url.authority,
        f"{url.authority.removesuffix(f':{url.port}')}:{url.port}",
    }:
        raise Refused(Code.INVALID_HEADER, f"{name}: it is not the host of the URL, {url.authority}")


def _complete(request: Request) -> Request:
    """With what every request carries: its own host, its own length, the codings we can undo."""
    said = {name.lower() for name, _ in request.headers}
    length = () if not request.body and request.method in {"GET", "HEAD", "DELETE", "OPTIONS"} else (
        ("Content-Length", str(len(request.body))),
    )  # fmt: skip
    return replace(
        request,
        headers=(
            ("Host", request.url.authority),
            *((name, value) for name, value in DEFAULTS if name.lower() not in said),
            ("Accept-Encoding", ACCEPT_ENCODING),
            *(pair for pair in request.headers if pair[0].lower() not in OURS),
            *length,
        ),
    )


def follow(request: Request, status: int, location: str | None, budgets: Budgets, *, wanted: bool) -> Request | None:
    """The next request; None where the response is the answer. Raises Refused.

    A HEAD is not followed. To another origin go only SAFELISTED headers and no body; a request that
    cannot be repeated without its body does not go there.
    """
    if status not in REDIRECTS or location is None or not wanted or request.method == "HEAD":
        return None
    if request.hops >= budgets.redirects:
        raise Refused(Code.TOO_MANY_REDIRECTS, f"more than {budgets.redirects}")
    try:
        url = request.url.join(location)
    except Refused as problem:
        raise Refused(Code.REDIRECT_DENIED, f"its target cannot be used: {problem.text}") from problem
    if (request.url.scheme, url.scheme) == ("https", "http"):
        raise Refused(Code.REDIRECT_DENIED, "from https to http")
    method, body, kept = request.method, request.body, request.headers
    if status == 303 or (status in {301, 302} and method == "POST"):
        method, body = "GET", b""
        kept = tuple(pair for pair in kept if not pair[0].lower().startswith("content-"))
    if url.origin != request.url.origin:
        if body:
            raise Refused(Code.REDIRECT_DENIED, "a body does not follow to another origin")
        kept = tuple(pair for pair in kept if pair[0].lower() in SAFELISTED)
    return _complete(Request(method, url, kept, body, request.hops + 1))
