"""What the operator allows: ports, names, addresses, and how much. Frozen, and made once at the start.

Order of rules for an address: the operator's deny, the very address in the operator's allow, the floor,
networks in the operator's allow, the host's own addresses, the table. For a name: the operator's deny, the operator's allow, the names that mean
something inside. A name that is allowed still has its addresses judged: the two lists are
independent, and both must say yes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Literal, NamedTuple

from sandbox.contract import MIB
from sandbox.egress import urls
from sandbox.egress.codes import Code, Refused, not_public
from sandbox.egress.ranges import FLOOR, IPV6_MAPPED, builtin_denial, carried, row_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from sandbox.egress.ranges import Address, Network
    from sandbox.egress.urls import Url

INSIDE_NAMES = (
    "localhost local internal intranet private corp home lan home.arpa onion alt test invalid example localdomain svc arpa"
).split()
"""Names that public DNS does not have, and what is below them (RFC 6761, 6762, 7686, 8375, 9476; ICANN's .internal)."""

BAD_PORTS = frozenset(
    int(port)
    for port in (
        "1 7 9 11 13 15 17 19 20 21 22 23 25 37 42 43 53 69 77 79 87 95 101 102 103 104 109 110 111 113 115 117 119 123"
        " 135 137 139 143 161 179 389 427 465 512 513 514 515 526 530 531 532 540 548 554 556 563 587 601 636 989 990"
        " 993 995 1719 1720 1723 2049 3659 4045 4190 5060 5061 6000 6566 6665 6666 6667 6668 6669 6679 6697 10080"
    ).split()
)
"""Ports of other protocols that an HTTP request could be made to speak: https://fetch.spec.whatwg.org/#port-blocking."""

OPERATORS = "HOOKPOOL_"
"""How a rule begins that is no table's but a setting: it may be told apart from a name that is not there."""

METHODS = frozenset("GET POST PUT DELETE PATCH HEAD OPTIONS".split())


class Verdict(NamedTuple):
    """On one address or name, and the rule that decided it."""

    allowed: bool
    rule: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules. Lists are the operator's; what they leave open the tables decide."""

    allow: tuple[Network, ...] = ()
    deny: tuple[Network, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    deny_hosts: tuple[str, ...] = ()
    only_hosts: tuple[str, ...] = ()  # where there are any, no others
    ports: tuple[int, ...] = (80, 443)

    def judge(self, address: Address, own: Collection[Address] = ()) -> Verdict:
        """May this address be connected to? `own` are those of this host's interfaces."""
        if isinstance(address, IPv6Address) and (address.scope_id is not None or address in IPV6_MAPPED):
            return Verdict(False, "an address with a zone, or an IPv4 address in IPv6 dress")
        if rule := _covering(address, self.deny):
            return Verdict(False, f"HOOKPOOL_EGRESS_DENY {rule}")
        if rule := _covering(address, tuple(network for network in self.allow if network.num_addresses == 1)):
            return Verdict(True, f"HOOKPOOL_EGRESS_ALLOW {rule}")
        if floor := row_of(address, FLOOR):
            return Verdict(False, f"floor {floor.network} {floor.what}; only HOOKPOOL_EGRESS_ALLOW={address} opens it")
        if rule := _covering(address, self.allow):
            inner = carried(address)
            if inner is not None and not self.judge(inner, own).allowed:
                return Verdict(False, f"it leads to {inner}: {self.judge(inner, own).rule}")
            return Verdict(True, f"HOOKPOOL_EGRESS_ALLOW {rule}")
        if address in own:
            return Verdict(False, "an address of this host")
        denial = builtin_denial(address)
        return Verdict(not denial, denial or "public")

    def judge_name(self, host: str) -> Verdict:
        """May this name be looked up? `host` as `urls` writes it."""
        if rule := _matching(host, self.deny_hosts):
            return Verdict(False, f"HOOKPOOL_EGRESS_DENY_HOSTS {rule}")
        if self.only_hosts and not _matching(host, self.only_hosts):
            return Verdict(False, "HOOKPOOL_EGRESS_ONLY_HOSTS does not name it")
        if rule := _matching(host, self.allow_hosts):
            return Verdict(True, f"HOOKPOOL_EGRESS_ALLOW_HOSTS {rule}")
        if "." not in host:
            return Verdict(False, "a single label is a name of this network")
        if rule := _matching(host, [part for name in INSIDE_NAMES for part in (name, f".{name}")]):
            return Verdict(False, f"{rule} is a name of this network")
        return Verdict(True, "a public name")

    def check_url(self, url: Url) -> None:
        """All that can be said before DNS. Raises Refused."""
        if url.port not in self.ports:
            known = ", ".join(map(str, self.ports))
            raise Refused(Code.EGRESS_DENIED, f"port {url.port} is none of {known} (HOOKPOOL_EGRESS_PORTS)")
        allowed, rule = self.judge_name(url.host)
        if not allowed and rule.startswith(OPERATORS):
            raise Refused(Code.EGRESS_DENIED, "the operator denies this host", rule)
        if not allowed and url.address is None:  # a literal is judged as an address, where it is connected to
            raise not_public(rule)

    def judge_all(self, addresses: Collection[Address], own: Collection[Address] = ()) -> tuple[Address, ...]:
        """The addresses of one host, if every one of them is allowed: one that is not spoils the name.

        Raises Refused(host_not_public), also where there are none.
        """
        if not addresses:
            raise not_public("no such name")
        for address in addresses:
            verdict = self.judge(address, own)
            if not verdict.allowed:
                raise not_public(f"{address}: {verdict.rule}")
        return tuple(addresses)


def _covering(address: Address, networks: Collection[Network]) -> Network | None:
    return next((n for n in networks if n.version == address.version and address in n), None)


def _matching(host: str, rules: Collection[str]) -> str:
    """The rule that fits: a name, or `.suffix` for everything below it."""
    return next((rule for rule in rules if (host.endswith(rule) if rule.startswith(".") else host == rule)), "")


@dataclass(frozen=True, slots=True)
class Budgets:
    """How much one invocation may do. Bytes and seconds."""

    requests: int = 50
    in_flight: int = 8
    redirects: int = 5
    request_bytes: int = 4 * MIB
    response_bytes: int = 8 * MIB  # on the wire, and decoded
    header_bytes: int = 100 * 1024
    sent_bytes: int = 16 * MIB  # of all requests together
    received_bytes: int = 32 * MIB
    connect_s: float = 5.0
    dns_s: float = 3.0
    idle_s: float = 15.0
    total_s: float = 30.0


MARGIN_S = 0.25
"""A request ends this long before its invocation does, so that the code can still say what it has."""

type Mode = Literal["live", "deny", "replay"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the operator decides about HTTP, as one value."""

    mode: Mode = "live"
    policy: Policy = field(default_factory=Policy)
    budgets: Budgets = field(default_factory=Budgets)
    resolvers: tuple[tuple[str, int], ...] = ()  # address and port; none = the system's
    ca_file: str = ""  # trusted beside the system's
    uid: int = 0  # of the process that makes the calls, where this one is root; 0 = keep
    max_wall_s: float = 600.0  # ceiling of an invocation's own limit
    memory_mb: int = 64  # of bodies in hand, over all invocations
    rate: float = 0.0  # requests a second for each tenant; 0 = no limit
    burst: int = 0
    record: str = ""  # a file that gets what was asked and answered
    replay: str = ""  # one that is answered from


def words(text: str) -> list[str]:
    """A list as a setting writes it: apart by commas or spaces."""
    return re.split(r"[,\s]+", text.strip()) if text.strip() else []


def networks(text: str) -> tuple[Network, ...]:
    """Raises ValueError that names the word: a network with host bits set is a mistake about its size."""
    return tuple(ip_network(word) for word in words(text))


def hosts(text: str) -> tuple[str, ...]:
    """Names, or `.suffix`. Raises ValueError for what can never fit."""
    found = []
    for word in words(text):
        try:
            url = urls.parse(f"http://{word.removeprefix('.')}/")
        except Refused as problem:
            raise ValueError(f"{word!r} is no host: {problem.text}") from problem
        if url.target != "/" or ":" in word.rpartition("]")[2]:
            raise ValueError(f"{word!r} is more than a host; ports are a setting of their own")
        found.append("." * word.startswith(".") + url.host)
    return tuple(found)


def ports(text: str) -> tuple[int, ...]:
    found = []
    for word in words(text):
        if not word.isascii() or not word.isdigit() or not 0 < int(word) < 65536:
            raise ValueError(f"{word!r} is no port")
        if int(word) in BAD_PORTS:
            raise ValueError(f"port {word} belongs to another protocol and stays shut")
        found.append(int(word))
    return tuple(dict.fromkeys(found))


def resolvers(text: str) -> tuple[tuple[str, int], ...]:
    """`1.1.1.1`, `1.1.1.1:5353`, `[::1]:5353`."""
    found = []
    for word in words(text):
        bracketed = re.fullmatch(r"\[(.+)\](?::([0-9]{1,5}))?|([0-9.]+)(?::([0-9]{1,5}))?|([0-9a-fA-F:]+)", word)
        if bracketed is None:
            raise ValueError(f"{word!r} is no address of a resolver")
        six, six_port, four, four_port, bare = bracketed.groups()
        found.append((str(ip_address(six or four or bare)), int(six_port or four_port or 53)))
    return tuple(found)
