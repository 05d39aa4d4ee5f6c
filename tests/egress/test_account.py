"""What one invocation can and cannot do, against servers that misbehave on loopback."""

from __future__ import annotations

import gzip
import json
import os
import select
import threading
import time
import zlib
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.egress.codes import Code, Refused
from sandbox.egress.policy import Policy
from sandbox.egress.requests import Ask
from sandbox.outlet.door import MOST_TRIES
from tests.egress.conftest import Client, code
from tests.egress.sites import (
    PRIVATE,
    PUBLIC,
    PUBLIC6,
    Site,
    answer,
    connects,
    endlessly,
    redirect,
    silence,
)

NAMES = {"x.org": [PUBLIC], "y.org": [PUBLIC], "six.org": [PUBLIC6], "inside.org": [PRIVATE]}
ENDLESS = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


def echo(request) -> bytes:
    told = {
        "method": request.method,
        "target": request.target,
        "headers": request.headers,
        "body": request.body.decode(),
    }
    return answer(json.dumps(told), Content_Type="application/json")


def always(reply):
    return lambda _: reply


# what works


def test_a_request_arrives_as_it_was_said_and_its_answer_comes_back(client) -> None:
    with Site(echo) as site:
        got = client(site, names=NAMES).ask(
            "POST", site.at("x.org") + "/a?b=1", params=(("q", "ü"),), headers=(("X-A", "1"),), body=b"hello"
        )
    told = json.loads(got.text)
    assert (got.status_code, got.reason) == (200, "")
    assert (told["method"], told["target"], told["body"]) == ("POST", "/a?b=1&q=%C3%BC", "hello")
    assert dict(told["headers"]) == {
        "Host": f"x.org:{site.port}", "User-Agent": "hookpool", "Accept": "*/*", "Accept-Encoding": "gzip, deflate", "X-A": "1", "Content-Length": "5",
    }  # fmt: skip


@pytest.mark.parametrize("host", [PUBLIC, PUBLIC6])
def test_an_address_needs_no_name(client, host: str) -> None:
    with Site(echo, host=host) as site:
        made = client(site)
        assert made.get(site.url).status_code == 200
        assert made.table.asked == []


def test_a_server_with_an_ipv6_address_is_reached_by_name(client) -> None:
    with Site(echo, host=PUBLIC6) as site:
        got = client(site, names=NAMES).get(site.at("six.org"))
    assert (got.status_code, got.hops[0].peer) == (200, "::1")


@pytest.mark.parametrize("status", [400, 404, 418, 500, 599])
def test_a_real_error_keeps_its_status_and_its_text(client, status: int) -> None:
    with Site(always(answer("no", f"{status} Because"))) as site:
        got = client(site).get(site.url)
    assert (got.status_code, got.text, got.reason) == (status, "no", "Because")


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_answer_is_read(client, coding: str) -> None:
    packed = gzip.compress(b"hello" * 1000) if coding == "gzip" else zlib.compress(b"hello" * 1000)
    with Site(always(answer(packed, Content_Encoding=coding))) as site:
        assert client(site).get(site.url).text == "hello" * 1000


def test_a_head_has_no_body_whatever_it_announces(client) -> None:
    with Site(always(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\nContent-Encoding: gzip\r\n\r\n")) as site:
        got = client(site).ask("HEAD", site.url)
    assert (got.status_code, got.text) == (200, "")


def test_a_chunked_answer_is_put_together(client) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
    with Site(always(data)) as site:
        assert client(site).get(site.url).text == "hello"


# names and addresses


def test_a_name_of_something_inside_reads_like_one_that_does_not_exist(client) -> None:
    with Site(echo, host=PRIVATE) as site, connects() as made:
        answers = [
            client(site, names=NAMES).get(site.at(name))
            for name in ("inside.org", "nowhere.org", "db.internal", PRIVATE)
        ]
    assert {got.reason for got in answers} == {"host_not_public: this host has no public address"}
    assert {got.hops[0].decision for got in answers} == {"denied"}
    assert made == []


def test_an_address_of_this_host_is_not_connected_to_however_public(client) -> None:
    with connects() as made:
        got = client(own=(ip_address("8.8.8.8"),), names={"me.org": ["8.8.8.8"]}).get("http://me.org/")
    assert (code(got), made) == ("host_not_public", [])


@pytest.mark.parametrize(
    "found",
    [
        [PUBLIC, PRIVATE],
        [PRIVATE, PUBLIC],
        [PUBLIC, "169.254.169.254"],
        [PUBLIC, "::ffff:127.0.0.2"],
        [PUBLIC, "fe80::1%1"],
    ],
)
def test_one_bad_answer_spoils_the_name_and_nothing_is_connected(client, found) -> None:
    with Site(echo) as site, connects() as made:
        got = client(site, names={"mixed.org": found}).get(site.at("mixed.org"))
    assert (code(got), made, site.seen) == ("host_not_public", [], [])


def test_a_name_is_looked_up_once_for_each_connection_and_what_was_judged_is_connected_to(client) -> None:
    with Site(lambda _: None) as site, connects() as made:
        rebinding = client(site, names={"bind.org": [[PUBLIC], [PRIVATE]]})
        answers = rebinding.all(*[Ask("POST", site.at("bind.org"))] * 3)
    assert [code(got) for got in answers] == ["protocol_error", "host_not_public", "host_not_public"]
    assert rebinding.table.asked == ["bind.org"] * 3
    assert made == [(PUBLIC, site.port)]


def test_a_dead_first_address_is_passed_over(client) -> None:
    with Site(echo) as site:
        allowed = tuple(map(ip_network, (PUBLIC, "127.0.0.4")))
        got = client(site, names={"two.org": ["127.0.0.4", PUBLIC]}, policy={"allow": allowed}).get(site.at("two.org"))
    assert (got.status_code, got.hops[0].peer) == (200, PUBLIC)


def test_nobody_there_is_a_connect_error(client) -> None:
    with Site(echo) as site:
        pass
    got = client(site).get(site.url)
    assert (got.status_code, got.reason) == (0, "connect_error: connection refused")
    assert got.hops[0].decision == "allowed"


def test_a_resolver_that_never_answers_is_a_dns_timeout_and_holds_its_place(client) -> None:
    made = client(names={"slow.org": ["never"], "x.org": [PUBLIC]}, budgets={"dns_s": 0.2})
    started = time.monotonic()
    answers = made.all(*[Ask("GET", "http://slow.org/")] * 5, Ask("GET", "http://x.org/"), at_once=True)
    assert [code(got) for got in answers] == ["dns_timeout"] * 6
    assert made.table.asked.count("slow.org") == 4
    assert time.monotonic() - started < 20  # one never answers


def test_a_resolver_that_fails_is_a_dns_error(client) -> None:
    got = client(names={"x.org": [Refused(Code.DNS_ERROR, "the name could not be looked up")]}).get("http://x.org/")
    assert got.reason == "dns_error: the name could not be looked up"
    assert code(client(names={"x.org": [f"127.0.1.{n}" for n in range(65)]}).get("http://x.org/")) == "dns_error"


LOOPBACK = [f"127.0.0.{n}" for n in range(2, 9)] + [PUBLIC6]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    allowed=st.sets(st.sampled_from(LOOPBACK), max_size=5),
    denied=st.sets(st.sampled_from(LOOPBACK), max_size=2),
    rounds=st.lists(st.lists(st.sampled_from(LOOPBACK), max_size=4), min_size=1, max_size=3),
)
def test_connect_only_ever_sees_judged_numbers(allowed, denied, rounds) -> None:
    policy = Policy(allow=tuple(map(ip_network, allowed)), deny=tuple(map(ip_network, denied)), ports=(9999,))
    made = Client(policy, names={"x.org": rounds}, own=(ip_address("127.0.0.5"),))
    with connects() as seen:
        made.all(*[Ask("GET", "http://x.org:9999/")] * len(rounds))
    assert {host for host, _ in seen} <= allowed - denied
    clean = [found for found in rounds if found and set(found) <= allowed - denied]
    assert len(seen) == sum(min(len(set(found)), MOST_TRIES) for found in clean)


# redirects

BAD = {
    "http://127.0.0.3:{port}/": "redirect_denied", "http://inside.org:{port}/": "redirect_denied", "http://169.254.169.254/": "redirect_denied",
    "http://[::ffff:127.0.0.2]:{port}/": "redirect_denied", "http://2130706434:{port}/": "redirect_denied", "http://localhost:{port}/": "redirect_denied",
    "http://metadata.google.internal/": "redirect_denied", "http://u:p@127.0.0.2:{port}/": "redirect_denied", "file:///etc/passwd": "redirect_denied",
    "gopher://127.0.0.2:{port}/": "redirect_denied", "http://127.0.0.2:22/": "redirect_denied", "http://nowhere.org:{port}/": "redirect_denied",
    "//127.0.0.3:{port}/": "redirect_denied", "http://127.0.0.2:{port}\\@127.0.0.3/": "redirect_denied", "http://0x7f000003:{port}/": "redirect_denied",
}  # fmt: skip


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_a_bad_target_is_refused_and_not_connected_to(client, status: int) -> None:
    for target, expected in BAD.items():
        with Site(lambda _, to=target: redirect(to.format(port=site.port), status)) as site, connects() as made:
            got = client(site, names=NAMES, policy={"ports": (80, site.port)}).get(site.url)
        assert (code(got), got.status_code) == (expected, 0), target
        assert made == [(PUBLIC, site.port)], target
        assert [hop.decision for hop in got.hops] == ["allowed", "denied"], target
        assert got.hops[0].status == status


def test_a_redirect_is_followed_and_each_hop_is_audited(client) -> None:
    def reply(request):
        to = {"/a": "/b", "/b": f"http://y.org:{site.port}/c"}.get(request.target)
        return redirect(to) if to else answer("there")

    with Site(reply) as site:
        got = client(site, names=NAMES).get(site.at("x.org") + "/a")
    assert got.text == "there"
    assert [(hop.host, hop.status, hop.peer, hop.code) for hop in got.hops] == [
        ("x.org", 302, PUBLIC, ""), ("x.org", 302, PUBLIC, ""), ("y.org", 200, PUBLIC, ""),
    ]  # fmt: skip


def test_nothing_secret_follows_to_another_origin(client) -> None:
    secret = (("Authorization", "Bearer s"), ("Cookie", "c=1"), ("X-Api-Key", "k"))
    with Site(lambda r: redirect(f"http://y.org:{site.port}/") if "x.org" in r["host"] else answer("ok")) as site:
        client(site, names=NAMES).get(site.at("x.org"), headers=secret)
        post = client(site, names=NAMES).ask("POST", site.at("x.org"), headers=secret, body=b"secret")
    for request in site.seen[1::2]:
        assert (request["host"], request.method, request.body) == (f"y.org:{site.port}", "GET", b"")
        assert {name.lower() for name, _ in request.headers} == {"host", "user-agent", "accept", "accept-encoding"}
    assert post.status_code == 200


def test_no_body_follows_a_307_to_another_origin(client) -> None:
    with Site(lambda _: redirect(f"http://y.org:{site.port}/", 307)) as site:
        got = client(site, names=NAMES).ask("POST", site.at("x.org"), body=b"secret")
    assert (code(got), len(site.seen)) == ("redirect_denied", 1)


def test_redirects_end_after_five(client) -> None:
    with Site(lambda _: redirect("/again")) as site:
        got = client(site).get(site.url)
    assert (code(got), len(site.seen)) == ("too_many_redirects", 6)


def test_a_redirect_that_is_not_wanted_and_one_of_a_head_are_answers(client) -> None:
    with Site(
        lambda r: (
            redirect("/b") if r.method == "GET" else b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"
        )
    ) as site:
        assert client(site).get(site.url, allow_redirects=False).status_code == 302
        assert client(site).ask("HEAD", site.url).status_code == 302
    assert len(site.seen) == 2


def test_a_redirect_from_https_to_http_is_refused(client, authority, trusting) -> None:
    with Site(echo) as plain, Site(lambda _: redirect(plain.at("x.org")), tls=authority.server("x.org")) as site:
        got = client(site, plain, names=NAMES, tls=trusting).get(site.at("x.org"))
    assert (got.reason, plain.seen) == ("redirect_denied: from https to http", [])


# TLS


def test_a_certificate_of_the_right_name_is_trusted_and_its_connection_kept(client, authority, trusting) -> None:
    with Site(echo, tls=authority.server("x.org")) as site:
        answers = client(site, names=NAMES, tls=trusting).all(*[Ask("GET", site.at("x.org"))] * 3)
    assert [got.status_code for got in answers] == [200] * 3
    assert site.connections == 1


@pytest.mark.parametrize("name", ["y.org", PUBLIC])
def test_a_certificate_of_another_name_is_refused(client, authority, trusting, name: str) -> None:
    with Site(echo, tls=authority.server("x.org")) as site:
        got = client(site, names=NAMES, tls=trusting).get(site.at(name))
    assert (code(got), site.seen) == ("tls_error", [])
    assert got.reason.startswith("tls_error: the certificate does not hold: ")


def test_a_certificate_for_an_address_is_checked_against_it(client, authority, trusting) -> None:
    with Site(echo, tls=authority.server(PUBLIC)) as site:
        assert client(site, tls=trusting).get(site.url).status_code == 200


def test_a_certificate_nobody_knows_is_refused(client, authority) -> None:
    with Site(echo, tls=authority.server("x.org")) as site:
        got = client(site, names=NAMES).get(site.at("x.org"))
    assert (code(got), site.seen) == ("tls_error", [])


def test_a_server_that_speaks_no_tls_is_a_tls_error(client) -> None:
    with Site(always(None)) as site:
        site._talk = lambda sock, number: sock.sendall(answer("x"))
        got = client(site).get(f"https://{PUBLIC}:{site.port}/")
    assert (code(got), got.status_code) == ("tls_error", 0)


def test_a_handshake_that_does_not_come_is_a_connect_timeout(client) -> None:
    with Site(always(None)) as site:
        site.reply = silence
        stuck = threading.Event()
        site._talk = lambda sock, number: stuck.wait(5)
        got = client(site, budgets={"connect_s": 0.2}).get(f"https://{PUBLIC}:{site.port}/")
        stuck.set()
    assert code(got) == "connect_timeout"


# servers that misbehave

MISBEHAVIOUR = {
    "HTTP/0.9": (b"<html>hello</html>", "protocol_error"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.9\r\n", "protocol_error"),
    "nothing": (b"", "protocol_error"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-", "protocol_error"),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello", "protocol_error"),
    "no number of a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n", "protocol_error"),
    "a negative chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", "protocol_error"),
    "chunks that break off": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "protocol_error"),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "protocol_error"),
    "a status of 99": (b"HTTP/1.1 99 Odd\r\nContent-Length: 0\r\n\r\n", "protocol_error"),
    "another protocol": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "protocol_error"),
    "a coding nobody asked for": (answer(b"x", Content_Encoding="br"), "protocol_error"),
    "broken gzip": (answer(b"not gzip", Content_Encoding="gzip"), "protocol_error"),
    "a long head": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", "response_too_large"),
    "a large length": (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", "response_too_large"),
}  # fmt: skip


@pytest.mark.parametrize("how", MISBEHAVIOUR)
def test_a_server_that_misbehaves_is_an_answer_and_its_connection_is_not_kept(client, how: str) -> None:
    data, expected = MISBEHAVIOUR[how]

    def reply(_):
        return lambda sock: sock.sendall(data)

    with Site(reply) as site:
        made = client(site)
        answers = made.all(*[Ask("GET", site.url)] * 2)
    assert [code(got) for got in answers] == [expected] * 2
    assert site.connections == 2


ENDLESS_KINDS = {
    "a body": (ENDLESS, b"x" * 65536, "response_too_large"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "response_too_large"),
    "a header line": (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 1000, "response_too_large"),
    "header lines": (b"HTTP/1.1 200 OK\r\n", b"X: aaaaaaaaaa\r\n" * 100, "response_too_large"),
    "empty lines": (b"", b"\r\n" * 1000, ""),
    "tiny chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 5000, "response_too_large"),
    "a trailer": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: a\r\n" * 5000, ""),
    "a chunk's extension": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"a" * 5000, ""),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDLESS_KINDS)
def test_what_does_not_end_is_ended(client, what: str) -> None:
    first, piece, expected = ENDLESS_KINDS[what]
    with Site(always(endlessly(first, piece))) as site:
        got = client(site, budgets={"response_bytes": 1 << 20}).get(site.url, within_s=10)
    assert code(got) == expected or (not expected and code(got) in {"protocol_error", "response_too_large"})
    assert got.hops[0].bytes < (1 << 20) + 200_000


def test_a_gzip_bomb_ends_at_the_limit_and_costs_no_more(client) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    with Site(always(answer(bomb, Content_Encoding="gzip"))) as site:
        made = client(site)
        got = made.get(site.url)
    assert code(got) == "response_too_large"
    assert made.room.held == 0


def test_a_slow_loris_ends_with_the_calls_time(client) -> None:
    with Site(always(endlessly(b"HTTP/1.1 200 OK\r\nX: ", b"a", 0.05))) as site:
        started = time.monotonic()
        got = client(site, budgets={"total_s": 0.5}).get(site.url)
    assert (code(got), time.monotonic() - started < 15) == ("timeout", True)
    assert got.hops[0].code == "timeout"


def test_a_silent_server_ends_with_the_idle_time(client) -> None:
    with Site(always(silence)) as site:
        got = client(site, budgets={"idle_s": 0.2}).get(site.url)
    assert got.reason == "timeout: nothing came for 0.2 s"


def test_a_server_that_reads_nothing_ends_with_the_idle_time(client) -> None:
    stuck = threading.Event()
    with Site(always(None)) as site:
        site._talk = lambda sock, number: stuck.wait(10)
        got = client(site, budgets={"idle_s": 0.3, "request_bytes": 16 << 20}).ask(
            "POST", site.url, body=bytes(15 << 20)
        )
        stuck.set()
    assert got.reason == "timeout: nothing was taken for 0.3 s"


def test_the_codes_own_timeout_and_the_invocations_time_are_kept(client) -> None:
    with Site(always(silence)) as site:
        started = time.monotonic()
        assert code(client(site).get(site.url, timeout=0.2)) == "timeout"
        assert code(client(site).get(site.url, within_s=0.2, timeout=30.0)) == "timeout"
        assert code(client(site).get(site.url, within_s=0.0)) == "timeout"
        assert code(client(site).get(site.url, timeout=-5.0)) == "timeout"
    assert time.monotonic() - started < 25


def test_an_early_refusal_is_read_although_the_body_was_not(client) -> None:
    def reply_early(sock, number):
        sock.recv(1000)
        sock.sendall(answer("too big", "413 Too Large", Connection="close"))
        time.sleep(0.1)

    with Site(always(None)) as site:
        site._talk = reply_early
        got = client(site).ask("POST", site.url, body=bytes(3 << 20))
    assert got.status_code in {413, 0}
    assert code(got) in {"Too Large", "protocol_error"}


# connections


def test_a_connection_is_kept_for_the_same_origin_only(client) -> None:
    with Site(echo) as site:
        asks = [Ask("GET", site.at(name)) for name in ("x.org", "x.org", "y.org", "y.org", "x.org")]
        client(site, names=NAMES).all(*asks)
    assert [(r["host"].partition(":")[0], r.connection) for r in site.seen] == [
        ("x.org", 1), ("x.org", 1), ("y.org", 2), ("y.org", 2), ("x.org", 1),
    ]  # fmt: skip


def test_a_connection_ends_with_its_invocation(client) -> None:
    with Site(echo) as site:
        made = client(site)
        made.get(site.url)
        made.get(site.url)
        deadline = time.monotonic() + 20
        while site.open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (site.connections, site.open) == (2, 0)


def test_a_kept_connection_that_went_stale_is_replaced_where_that_is_safe(client) -> None:
    def twice(request):
        return lambda sock: (sock.sendall(answer("x")), time.sleep(0.05))  # then it hangs up

    with Site(twice) as site:
        answers = client(site).all(*[Ask("GET", site.url)] * 3)
    assert [got.status_code for got in answers] == [200] * 3


def test_an_answer_that_nobody_asked_for_is_given_to_nobody(client) -> None:
    with Site(lambda r: answer("mine") + (answer("stolen") if r.target == "/a" else b"")) as site:
        answers = client(site).all(Ask("GET", site.url + "/a"), Ask("GET", site.url + "/b"))
    assert [got.text for got in answers] == ["mine", "mine"]
    assert site.connections == 2


# budgets


def test_requests_are_counted_redirects_included(client) -> None:
    with Site(lambda r: redirect("/b") if r.target == "/a" else answer("x")) as site:
        answers = client(site, budgets={"requests": 3}).all(*[Ask("GET", site.url + "/a")] * 2)
    assert [code(got) for got in answers] == ["", "budget_exceeded"]
    assert "HOOKPOOL_EGRESS_REQUESTS" in answers[1].reason
    assert len(site.seen) == 3


def test_bytes_sent_are_counted(client) -> None:
    with Site(always(answer("x"))) as site:
        answers = client(site, budgets={"sent_bytes": 2500}).all(*[Ask("POST", site.url, body=bytes(1000))] * 3)
    assert [code(got) for got in answers] == ["", "", "budget_exceeded"]


def test_bytes_received_are_counted(client) -> None:
    with Site(always(answer(bytes(1000)))) as site:
        answers = client(site, budgets={"received_bytes": 2500}).all(*[Ask("GET", site.url)] * 3)
    assert [code(got) for got in answers] == ["", "", "budget_exceeded"]


def test_a_body_that_is_too_large_is_not_sent(client) -> None:
    with Site(echo) as site:
        got = client(site, budgets={"request_bytes": 10}).ask("POST", site.url, body=bytes(11))
    assert (code(got), site.connections) == ("request_too_large", 0)


def test_as_many_are_in_flight_as_may_be_and_the_others_wait(client) -> None:
    now, most, lock, three = [0], [0], threading.Lock(), threading.Barrier(3, timeout=20)

    def reply(_):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        three.wait()
        time.sleep(0.05)  # for a fourth
        with lock:
            now[0] -= 1
        return answer("x")

    with Site(reply) as site:
        answers = client(site, budgets={"in_flight": 3}).all(*[Ask("GET", site.url)] * 9, at_once=True)
    assert [got.status_code for got in answers] == [200] * 9
    assert most[0] == 3
    assert site.connections == 3


def test_bodies_in_hand_have_one_room(client) -> None:
    leaving = [threading.Event()]

    def reply(_):
        one_left = leaving[-1]

        def talk(sock):
            whole = answer(bytes(6 << 20))
            try:
                sock.sendall(whole[: 5 << 20])
                while not one_left.wait(0.01):  # the other one has as much in hand
                    if select.select([sock], [], [], 0)[0]:
                        raise ConnectionError
            except OSError:  # or it was sent away before it had that much
                one_left.set()
                return
            sock.sendall(whole[5 << 20 :])

        return talk

    with Site(reply) as site:
        made = client(site, memory_mb=8)
        answers = made.all(*[Ask("GET", site.url)] * 2, at_once=True)
        leaving.append(threading.Event())  # for one that nobody is beside
        assert made.get(site.url, timeout=0.2).reason.startswith("timeout")
    assert sorted(code(got) for got in answers) == ["", "budget_exceeded"]
    assert made.room.held == 0


# nothing of the environment


def test_neither_proxies_nor_credentials_of_the_environment_matter(client, monkeypatch, tmp_path) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{PRIVATE}:1")
    (tmp_path / ".netrc").write_text(f"machine {PUBLIC} login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with Site(always(answer("x", Set_Cookie="a=b; Path=/"))) as site, connects() as made:
        answers = client(site).all(*[Ask("GET", site.url)] * 2)
    assert [got.status_code for got in answers] == [200, 200]
    assert made == [(PUBLIC, site.port)]
    assert all(r["authorization"] is None and r["cookie"] is None for r in site.seen)
    assert os.environ["HTTP_PROXY"]
