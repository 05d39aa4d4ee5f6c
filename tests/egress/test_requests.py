"""Headers that go out, and what a redirect makes of a request."""

from __future__ import annotations

import pytest

from sandbox.egress.codes import Code, Refused
from sandbox.egress.policy import Budgets
from sandbox.egress.requests import Ask, first, follow

BUDGETS = Budgets(request_bytes=1000, header_bytes=1024)


def sent(*headers: tuple[str, str], method: str = "GET", body: bytes | None = None, url: str = "https://x.org/p"):
    return first(Ask(method, url, headers=headers, body=body), BUDGETS)


def refusal(*headers: tuple[str, str], **more) -> Code:
    with pytest.raises(Refused) as refused:
        sent(*headers, **more)
    return refused.value.code


def test_a_bare_request_has_these_headers_and_no_others() -> None:
    assert sent().headers == (
        ("Host", "x.org"), ("User-Agent", "hookpool"), ("Accept", "*/*"), ("Accept-Encoding", "gzip, deflate"),
    )  # fmt: skip


def test_the_codes_own_headers_go_along_and_ours_win() -> None:
    given = sent(
        ("user-agent", "mine"), ("X-A", " a\t"), ("x-a", "b"), ("accept-encoding", "br"), ("HOST", "X.org:443")
    )
    assert given.headers == (
        ("Host", "x.org"), ("Accept", "*/*"), ("Accept-Encoding", "gzip, deflate"), ("user-agent", "mine"), ("X-A", "a"), ("x-a", "b"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "Metadata-Flavor",
        "metadata",
        "X-aws-ec2-metadata-token",
        "X-AWS-EC2-Metadata-Token-TTL-Seconds",
        "metadata_flavor",
        "X-Google-Metadata-Request",
        "Transfer-Encoding",
    ],
)
def test_a_header_that_only_an_attack_needs_is_refused(name: str) -> None:
    assert refusal((name, "Google")) == Code.INVALID_HEADER


@pytest.mark.parametrize(
    "pair",
    [("A", "b\r\nX: y"), ("A", "b\nc"), ("A", "b\0"), ("A\r\nB", "c"), ("A b", "c"), ("", "c"), ("A:", "c"), ("Ü", "c"), ("A", "\x1b[2J"), ("A\0", "b"), ("A", "\rb")],
)  # fmt: skip
def test_no_header_ends_early(pair: tuple[str, str]) -> None:
    assert refusal(pair) == Code.INVALID_HEADER


@pytest.mark.parametrize("value", ["y.org", "x.org:80", "x.org.", "x.org@y.org", ""])
def test_host_is_the_urls_own_or_refused(value: str) -> None:
    assert refusal(("Host", value)) == Code.INVALID_HEADER


def test_a_length_is_right_or_refused() -> None:
    assert ("Content-Length", "3") in sent(("content-length", "3"), method="POST", body=b"abc").headers
    for value in ("4", "2", "03", "+3", "3, 3", ""):
        assert refusal(("Content-Length", value), method="POST", body=b"abc") == Code.INVALID_HEADER


@pytest.mark.parametrize(
    "name",
    [
        "Connection",
        "Keep-Alive",
        "Proxy-Authorization",
        "Proxy-Connection",
        "TE",
        "Trailer",
        "Upgrade",
        "Expect",
        "HTTP2-Settings",
    ],
)
def test_what_is_between_two_neighbours_is_dropped(name: str) -> None:
    assert sent((name, "x"), ("X-A", "1")).headers == sent(("X-A", "1")).headers


def test_so_is_what_a_connection_header_names() -> None:
    assert sent(("Connection", "close, X-B"), ("x-b", "1"), ("X-A", "1")).headers == sent(("X-A", "1")).headers


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "get", "GET / HTTP/1.1\r\nX:", "", "PROPFIND"])
def test_other_methods_are_refused(method: str) -> None:
    assert refusal(method=method) == Code.EGRESS_DENIED


def test_a_body_and_headers_have_their_limits() -> None:
    assert refusal(method="POST", body=b"x" * 1001) == Code.REQUEST_TOO_LARGE
    assert len(sent(method="POST", body=b"x" * 1000).body) == 1000
    assert refusal(("A", "x" * 1024)) == Code.REQUEST_TOO_LARGE


# redirects


def after(
    status: int,
    location: str | None,
    method: str = "GET",
    body: bytes | None = None,
    url: str = "https://x.org/a",
    wanted: bool = True,
    *headers,
):
    request = first(Ask(method, url, headers=headers, body=body), BUDGETS)
    return follow(request, status, location, BUDGETS, wanted=wanted)


SECRET = (
    ("Authorization", "Bearer s"),
    ("Cookie", "c=1"),
    ("X-Api-Key", "k"),
    ("Accept-Language", "de"),
    ("Content-Type", "text/plain"),
)


def names(request) -> set[str]:
    return {name.lower() for name, _ in request.headers}


def test_on_the_same_origin_everything_follows() -> None:
    following = after(307, "/b", "POST", b"body", "https://x.org/a", True, *SECRET)
    assert (following.method, str(following.url), following.body) == ("POST", "https://x.org/b", b"body")
    assert {"authorization", "cookie", "x-api-key", "content-type", "content-length"} <= names(following)


@pytest.mark.parametrize("to", ["https://y.org/", "https://x.org:8443/", "https://a.x.org/", "//y.org/"])
def test_to_another_origin_only_safelisted_headers_follow(to: str) -> None:
    following = after(302, to, "GET", None, "https://x.org/a", True, *SECRET)
    assert names(following) == {"host", "user-agent", "accept", "accept-encoding", "accept-language"}
    assert dict(following.headers)["Host"] == following.url.authority


def test_from_http_to_https_is_another_origin() -> None:
    assert "authorization" not in names(after(302, "https://x.org/", "GET", None, "http://x.org/", True, *SECRET))


@pytest.mark.parametrize("status", [307, 308])
def test_no_body_follows_to_another_origin(status: int) -> None:
    with pytest.raises(Refused) as refused:
        after(status, "https://y.org/", "POST", b"secret")
    assert refused.value.code == Code.REDIRECT_DENIED


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (301, "GET", "GET"),
        (308, "DELETE", "DELETE"),
    ],
)
def test_a_post_becomes_a_get_without_its_body(status: int, method: str, becomes: str) -> None:
    body = b"x" if method != "GET" and becomes == "GET" else None
    following = after(status, "/b", method, body, "https://x.org/a", True, *SECRET)
    assert (following.method, following.body) == (becomes, b"")
    if body:
        assert not {"content-type", "content-length"} & names(following)


def test_https_does_not_become_http() -> None:
    for to in ("http://x.org/", "http://y.org/"):
        with pytest.raises(Refused) as refused:
            after(302, to)
        assert refused.value.code == Code.REDIRECT_DENIED


@pytest.mark.parametrize(
    "to",
    [
        "ftp://y.org/",
        "http://u@y.org/",
        "https://0x7f.1/",
        "https://y.org/\nX: y",
        "file:///etc/passwd",
        "https://[::1%25eth0]/",
    ],
)
def test_a_target_that_is_no_url_of_ours_is_refused(to: str) -> None:
    with pytest.raises(Refused) as refused:
        after(302, to)
    assert refused.value.code == Code.REDIRECT_DENIED


def test_these_are_answers_and_not_followed() -> None:
    assert after(302, "/b", "HEAD") is None
    assert after(302, "/b", wanted=False) is None
    assert after(302, None) is None
    assert after(304, "/b") is None
    assert after(200, "/b") is None
    assert after(300, "/b") is None


def test_five_are_followed_and_no_sixth() -> None:
    request = first(Ask("GET", "https://x.org/"), BUDGETS)
    for _ in range(5):
        request = follow(request, 302, "/", BUDGETS, wanted=True)
    with pytest.raises(Refused) as refused:
        follow(request, 302, "/", BUDGETS, wanted=True)
    assert refused.value.code == Code.TOO_MANY_REDIRECTS
