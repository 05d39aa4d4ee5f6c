"""One reading of a URL: what is doubtful is refused, and what is accepted has one meaning."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.egress.codes import Code, Refused
from sandbox.egress.urls import MAX_BYTES, parse

REFUSED = {
    "another scheme": ["ftp://x.org/", "file:///etc/passwd", "gopher://x.org/", "javascript:alert(1)", "ws://x.org/", "data:text/plain,x", "httpx://x.org/", "unix:///var/run/docker.sock", "http+unix://%2Fvar%2Frun%2Fdocker.sock/"],
    "no scheme, no host": ["", "x.org", "//x.org/", "/path", "http:", "http:/x.org", "http:///x.org", "http://", "http://:80/", "http://./", "http://../", "http://.x.org/", "http://x..org/", "http://x.org../"],
    "a user": ["http://user@10.0.0.1/", "http://u:p@x.org/", "http://@x.org/", "http://x.org@169.254.169.254/", "http://x.org:80@10.0.0.1/", "http://169.254.169.254%40x.org/"],
    "numbers in other clothes": ["http://2130706433/", "http://0x7f.1/", "http://0x7f000001/", "http://0177.0.0.1/", "http://127.1/", "http://127.0.1/", "http://①②⑦.⓪.⓪.①/", "http://127。0。0。1/", "http://127.0.0.1./", "http://127.0.0.01/", "http://0x7f.0x0.0x0.0x1/", "http://256.1.1.1/", "http://1.2.3.4.5/", "http://x.org.1/", "http://x.0x1/", "http://\uff11\uff12\uff17.0.0.1/", "http://127.0.0.1.0x0/", "http://0/", "http://0x/", "http://00000000177.1/", "http://4294967296/"],
    "IPv6 in other clothes": ["http://[::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[::1/", "http://::1/", "http://[::1]x/", "http://[127.0.0.1]/", "http://[v1.x]/", "http://[]/", "http://[::ffff:127.0.0.1%1]/", "http://[[::1]]/", "http://[::1]:/"],
    "characters": ["http://x.org/\n", "http://x\t.org/", "http://x.org\r\n/", "http://x.org/\x00", "\nhttp://x.org/", "http://x .org/", "http://x%2eorg/", "http://x.org\\@10.0.0.1/", "http://x.org\\.evil.org/", "http://x.org /", "ht\ttp://x.org/", "http://x.org/a\x7fb", "http://x|y.org/", "http://x<y.org/", "http://-x.org/", "http://x-.org/", "http://xn--a.org/", "http://xn--\u2260.org/", "http://a\u2048b.org/", "http://x.org\u2028/"],
    "ports": ["http://x.org:0/", "http://x.org:65536/", "http://x.org:99999/", "http://x.org:/", "http://x.org:80:80/", "http://x.org:a/", "http://x.org:-80/", "http://x.org:+80/", "http://x.org:\uff18\uff10/"],
    "too long": [f"http://x.org/{'a' * MAX_BYTES}", f"http://{'a.' * 200}org/", f"http://{'a' * 64}.org/"],
}  # fmt: skip


@pytest.mark.parametrize("url", [url for urls in REFUSED.values() for url in urls], ids=lambda url: ascii(url)[:40])
def test_it_is_refused_as_an_invalid_url(url: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse(url)
    assert refusal.value.code == Code.INVALID_URL


@pytest.mark.parametrize("url", REFUSED["a user"][:5])
def test_a_user_is_named_as_the_reason(url: str) -> None:
    with pytest.raises(Refused, match="a user or password"):
        parse(url)


def test_what_is_too_long_is_not_even_read() -> None:
    with pytest.raises(Refused, match="longer than"):
        parse("http://x.org/#" + "a" * MAX_BYTES)


def test_parameters_count_toward_the_length() -> None:
    with pytest.raises(Refused):
        parse("http://x.org/", [("q", "a" * MAX_BYTES)])


READ = {
    "http://X.ORG": ("http", "x.org", 80, "/"),
    "HTTPS://x.org.:8443/a?b#c": ("https", "x.org", 8443, "/a?b"),
    " http://x.org/ ": ("http", "x.org", 80, "/"),
    "http://x.org?q=1": ("http", "x.org", 80, "/?q=1"),
    "http://x.org/a b/ü?q=ö%20%zz%": ("http", "x.org", 80, "/a%20b/%C3%BC?q=%C3%B6%20%25zz%25"),
    "http://x.org//169.254.169.254/": ("http", "x.org", 80, "//169.254.169.254/"),
    "http://bücher.example.com/": ("http", "xn--bcher-kva.example.com", 80, "/"),
    "http://BÜCHER。example.com/": ("http", "xn--bcher-kva.example.com", 80, "/"),
    "http://xn--bcher-kva.example.com/": ("http", "xn--bcher-kva.example.com", 80, "/"),
    "http://a_b.example.com/": ("http", "a_b.example.com", 80, "/"),
    "http://8.8.8.8/": ("http", "8.8.8.8", 80, "/"),
    "http://[2606:4700::0:1111]:443/": ("http", "2606:4700::1111", 443, "/"),
    "http://[::FFFF:1.2.3.4]/": ("http", "::ffff:102:304", 80, "/"),
    "http://x.org/#@10.0.0.1/": ("http", "x.org", 80, "/"),
    "http://x.org/?u=http://u@10.0.0.1/": ("http", "x.org", 80, "/?u=http://u@10.0.0.1/"),
    "http://1.2.3.4.org/": ("http", "1.2.3.4.org", 80, "/"),
}


@pytest.mark.parametrize("text", READ, ids=ascii)
def test_it_is_read_like_this(text: str) -> None:
    url = parse(text)
    assert (url.scheme, url.host, url.port, url.target) == READ[text]
    assert (url.address is not None) == (not any(c in string.ascii_letters.replace("abcdef", "") for c in url.host))


def test_parameters_go_behind_the_query() -> None:
    assert parse("http://x.org/a?b=1#f", [("c d", "e&f"), ("g", "ü")]).target == "/a?b=1&c+d=e%26f&g=%C3%BC"
    assert parse("http://x.org", [("q", "1")]).target == "/?q=1"


def test_the_authority_is_what_a_host_header_says() -> None:
    urls = ["http://x.org:80/", "https://x.org:80/", "http://[2606::1]:81/", "https://[2606::1]/"]
    assert [parse(url).authority for url in urls] == ["x.org", "x.org:80", "[2606::1]:81", "[2606::1]"]


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("/x", "http://a.org:81/x"), ("x", "http://a.org:81/b/x"), ("?q", "http://a.org:81/b/c?q"),
        ("../../x", "http://a.org:81/x"), ("//b.org/x", "http://b.org/x"), ("https://b.org", "https://b.org/"),
        ("\\\\b.org/x", "http://a.org:81/b/%5C%5Cb.org/x"), ("#f", "http://a.org:81/b/c?d"),
    ],
)  # fmt: skip
def test_a_reference_is_joined_as_browsers_do(reference: str, target: str) -> None:
    assert str(parse("http://a.org:81/b/c?d").join(reference)) == target


@pytest.mark.parametrize(
    "reference",
    [
        "http://10.1/",
        "ht\ntp://b.org/",
        "//u@b.org/",
        "file:///x",
        "http://[::1",
        "//0x7f.1/",
        "\thttp://b.org",
        "http://b.org/\r\nX: y",
    ],
)
def test_a_reference_is_read_as_strictly(reference: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse("http://a.org/").join(reference)
    assert refusal.value.code == Code.INVALID_URL


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.text("0123456789abcdefx.:[]@/\\%#? ", max_size=30)
)
def test_what_is_accepted_reads_the_same_when_it_is_read_again(rest: str) -> None:
    try:
        url = parse(f"http://{rest}")
    except Refused:
        return
    assert parse(str(url)) == url
    assert str(url).isascii()
    assert not any(c in str(url) for c in "\r\n\t\0 @" if c not in url.target)
