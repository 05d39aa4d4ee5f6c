"""Which addresses and names are public, and what an operator can change about it."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sandbox.egress import policy as rules
from sandbox.egress.codes import NOT_PUBLIC, Code, Refused
from sandbox.egress.policy import BAD_PORTS, INSIDE_NAMES, Policy
from sandbox.egress.ranges import FLOOR, IPV4_DENIED, IPV6_DENIED
from sandbox.egress.urls import parse
from sandbox.settings import Settings

VERDICTS = [
    line.split()
    for line in (Path(__file__).parent / "addresses.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("sign", "text"), VERDICTS, ids=[text for _, text in VERDICTS])
def test_every_address_of_the_list_has_its_verdict(sign: str, text: str) -> None:
    assert Policy().judge(ip_address(text)).allowed == (sign == "+")


def test_the_list_has_all_that_it_had() -> None:
    assert [sum(sign == s for s, _ in VERDICTS) for sign in "-+"] == [78, 30]


@pytest.mark.parametrize("row", [*IPV4_DENIED, *IPV6_DENIED, *FLOOR], ids=lambda row: str(row.network))
def test_every_row_is_refused_from_its_first_to_its_last_address_and_has_a_source(row) -> None:
    for address in (row.network[0], row.network[-1]):
        assert not Policy().judge(address).allowed
    assert row.source
    assert row.what


def inside(address, *networks: str) -> bool:
    """By arithmetic of its own."""
    value = int(address)
    for text in networks:
        base, _, bits = text.partition("/")
        start = int(ip_address(base))
        size = 1 << ((32 if "." in base else 128) - int(bits))
        if (address.version == 4) == ("." in base) and start <= value < start + size:
            return True
    return False


FOUR = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 168.63.129.16/32".split()
SIX = "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20".split()
EDGES = [int(ip_network(n)[0]) + d for n in FOUR for d in (-1, 0, 1)] + [
    int(ip_network(n)[-1]) + d for n in FOUR for d in (0, 1)
]
EDGES6 = [
    int(ip_network(n)[i]) + d
    for n in (*SIX, "2000::/3", "::ffff:0:0/96")
    for i, d in ((0, -1), (0, 0), (-1, 0), (-1, 1))
]
fours = st.builds(IPv4Address, st.integers(0, 2**32 - 1) | st.sampled_from([e for e in EDGES if 0 <= e < 2**32]))
sixes = st.builds(
    IPv6Address, st.integers(0, 2**128 - 1) | st.integers(1 << 125, (1 << 126) - 1) | st.sampled_from(EDGES6)
)


@given(fours | sixes)
def test_nothing_allowed_lies_outside_the_policy(address) -> None:
    public = (
        not inside(address, *FOUR)
        if address.version == 4
        else inside(address, "2000::/3") and not inside(address, *SIX)
    )
    assert Policy().judge(address).allowed == public


networks = st.lists(
    st.builds(lambda a, bits: ip_network((int(a), bits), strict=False), fours, st.integers(0, 32))
    | st.builds(
        lambda a, bits: ip_network((int(a), bits), strict=False) if int(a) >= 2**32 else ip_network(f"{a}/128"),
        sixes,
        st.integers(0, 128),
    ),
    max_size=3,
).map(tuple)


@given(networks, networks, fours | sixes, st.booleans())
def test_deny_beats_all_and_the_floor_opens_by_name_only(allow, deny, address, own) -> None:
    allowed = Policy(allow=allow, deny=deny).judge(address, (address,) if own else ()).allowed
    if any(address in network for network in deny if network.version == address.version):
        assert not allowed
    if any(address in row.network for row in FLOOR if row.network.version == address.version):
        assert not allowed or any(n.num_addresses == 1 and address in n for n in allow if n.version == address.version)
    if allowed and not any(address in n for n in allow if n.version == address.version):
        assert Policy().judge(address).allowed
        assert not own


def refused(policy: Policy, address: str, own=()) -> str:
    verdict = policy.judge(ip_address(address), own)
    assert not verdict.allowed
    return verdict.rule


def test_an_operator_opens_a_private_network_and_closes_a_part_of_it() -> None:
    policy = Policy(allow=rules.networks("10.0.0.0/8"), deny=rules.networks("10.9.0.0/16, 8.8.8.8"))
    assert policy.judge(ip_address("10.1.2.3")).rule == "HOOKPOOL_EGRESS_ALLOW 10.0.0.0/8"
    assert policy.judge(ip_address("10.1.2.3")).allowed
    assert refused(policy, "10.9.0.1") == "HOOKPOOL_EGRESS_DENY 10.9.0.0/16"
    assert refused(policy, "8.8.8.8") == "HOOKPOOL_EGRESS_DENY 8.8.8.8/32"
    assert refused(policy, "192.168.0.1").startswith("192.168.0.0/16 private use (RFC 1918)")


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "0.0.0.0",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fe80::1",
        "::",
    ],
)
def test_the_floor_holds_under_a_network_that_covers_it_and_opens_for_the_very_address(address: str) -> None:
    everything = rules.networks("0.0.0.0/0 ::/0")
    assert refused(Policy(allow=everything), address).startswith("floor ")
    assert Policy(allow=rules.networks(address)).judge(ip_address(address)).allowed


@pytest.mark.parametrize(
    ("dressed", "inner"),
    [("64:ff9b::a9fe:a9fe", "169.254.169.254"), ("64:ff9b::7f00:1", "127.0.0.1"), ("2002:a9fe:a9fe::1", "169.254.169.254"), ("::ffff:0:a00:1", "10.0.0.1"), ("::7f00:1", "127.0.0.1")],
)  # fmt: skip
def test_an_operator_who_opens_a_translator_opens_the_way_not_what_is_at_its_end(dressed: str, inner: str) -> None:
    policy = Policy(allow=rules.networks("::/0"))
    assert refused(policy, dressed).startswith(f"it leads to {inner}: ")


def test_a_translator_that_was_opened_leads_to_public_addresses() -> None:
    assert Policy(allow=rules.networks("64:ff9b::/96")).judge(ip_address("64:ff9b::808:808")).allowed


def test_an_ipv4_address_in_ipv6_dress_is_never_connected_to_whoever_allows_it() -> None:
    policy = Policy(allow=rules.networks("::/0 ::ffff:8.8.8.8/128"))
    assert "IPv6 dress" in refused(policy, "::ffff:8.8.8.8")
    assert "zone" in refused(policy, "2606:4700::1%eth0")


def test_this_hosts_own_addresses_are_refused_unless_the_operator_names_them() -> None:
    mine = ip_address("8.8.8.8")
    assert refused(Policy(), "8.8.8.8", (mine,)) == "an address of this host"
    assert Policy(allow=rules.networks("8.8.8.8")).judge(mine, (mine,)).allowed


@pytest.mark.parametrize(
    "name",
    [
        *INSIDE_NAMES,
        *(f"a.{name}" for name in INSIDE_NAMES),
        "1.0.0.127.in-addr.arpa",
        "metadata.google.internal",
        "db.default.svc",
        "kubernetes.default.svc.cluster.local",
        "intranet-host",
    ],
)
def test_names_of_the_inside_are_refused_before_dns_with_the_text_of_names_that_do_not_exist(name: str) -> None:
    with pytest.raises(Refused) as refusal:
        Policy().check_url(parse(f"http://{name}/"))
    assert (refusal.value.code, refusal.value.text) == (Code.HOST_NOT_PUBLIC, NOT_PUBLIC)


@pytest.mark.parametrize(
    "name",
    [
        "example.org",
        "svc.example.org",
        "localhost.example.org",
        "xlocalhost.org",
        "testing.org",
        "my-local.net",
        "a_b.example.org",
    ],
)
def test_other_names_may_be_looked_up(name: str) -> None:
    Policy().check_url(parse(f"http://{name}/"))


def test_lists_of_names_are_exact_or_suffixes_and_deny_beats_allow() -> None:
    policy = Policy(allow_hosts=rules.hosts("db.internal .corp"), deny_hosts=rules.hosts(".evil.org, x.corp"))
    for name in ("db.internal", "a.corp", "evil.org", "notevil.org"):
        assert policy.judge_name(name).allowed
    for name in ("x.db.internal", "corp", "a.evil.org", "x.corp"):
        assert not policy.judge_name(name).allowed
    with pytest.raises(Refused) as refusal:
        policy.check_url(parse("http://a.evil.org/"))
    assert refusal.value.code == Code.EGRESS_DENIED


def test_where_only_some_hosts_are_named_no_others_are_looked_up_nor_reached_by_number() -> None:
    policy = Policy(only_hosts=rules.hosts(".example.org 8.8.8.8"))
    policy.check_url(parse("http://api.example.org/"))
    policy.check_url(parse("http://8.8.8.8/"))
    for url in ("http://example.com/", "http://1.1.1.1/"):
        with pytest.raises(Refused) as refusal:
            policy.check_url(parse(url))
        assert refusal.value.code == Code.EGRESS_DENIED


def test_a_host_that_is_a_number_can_be_denied_by_name() -> None:
    with pytest.raises(Refused):
        Policy(deny_hosts=rules.hosts("8.8.8.8")).check_url(parse("http://8.8.8.8/"))


def test_one_bad_answer_spoils_the_name() -> None:
    good, bad = ip_address("8.8.8.8"), ip_address("10.0.0.1")
    assert Policy().judge_all([good]) == (good,)
    for answers in ([good, bad], [bad, good], [bad], []):
        with pytest.raises(Refused) as refusal:
            Policy().judge_all(answers)
        assert (refusal.value.code, refusal.value.text) == (Code.HOST_NOT_PUBLIC, NOT_PUBLIC)


def test_other_ports_are_shut() -> None:
    for url in ("http://example.org:81/", "http://example.org:22/", "https://10.0.0.1:8080/"):
        with pytest.raises(Refused) as refusal:
            Policy().check_url(parse(url))
        assert refusal.value.code == Code.EGRESS_DENIED
    Policy(ports=rules.ports("8443")).check_url(parse("https://example.org:8443/"))
    with pytest.raises(Refused):
        Policy(ports=rules.ports("8443")).check_url(parse("https://example.org/"))


@pytest.mark.parametrize("port", sorted(BAD_PORTS))
def test_ports_of_other_protocols_stay_shut_for_operators_too(port: int) -> None:
    with pytest.raises(ValueError, match=f"port {port} belongs to another protocol"):
        rules.ports(f"80 {port}")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (rules.networks, "10.0.0.1/8"), (rules.networks, "10.0.0.0/33"), (rules.networks, "x"), (rules.hosts, "a b/c"),
        (rules.hosts, "x.org:80"), (rules.hosts, "http://x"), (rules.hosts, "0x7f.1"), (rules.ports, "0"),
        (rules.ports, "65536"), (rules.ports, "https"), (rules.resolvers, "dns.google"), (rules.resolvers, "1.1.1"),
    ],
)  # fmt: skip
def test_a_word_that_is_none_is_refused(read, text: str) -> None:
    with pytest.raises(ValueError):
        read(text)


def test_resolvers_are_addresses_with_or_without_a_port() -> None:
    assert rules.resolvers("1.1.1.1, 9.9.9.9:5353 [::1]:54 2606:4700::1111") == (
        ("1.1.1.1", 53), ("9.9.9.9", 5353), ("::1", 54), ("2606:4700::1111", 53),
    )  # fmt: skip


DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_backstops_in_deploy_have_the_same_tables() -> None:
    four, six = ({str(row.network) for row in rows} for rows in (IPV4_DENIED, IPV6_DENIED))
    nft = (DEPLOY / "nftables.conf").read_text()
    sets = {
        name: re.split(r"[,\s]+", body.strip())
        for name, body in re.findall(r"set (\w+) {.*?elements = {(.*?)}", nft, re.DOTALL)
    }
    assert {n if "/" in n else f"{n}/32" for n in sets["inside4"]} == four
    assert set(sets["inside6"]) == six
    assert f"meta skuid != {Settings().egress_uid} accept" in nft
    policy = yaml.safe_load((DEPLOY / "kubernetes/base/networkpolicy.yaml").read_text())
    blocks = [to["ipBlock"] for rule in policy["spec"]["egress"] for to in rule["to"] if "ipBlock" in to]
    assert {block["cidr"]: set(block["except"]) for block in blocks} == {"0.0.0.0/0": four, "2000::/3": six}
