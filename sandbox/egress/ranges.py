"""The table of addresses, each row with its source.

IPv4 is public unless a row says otherwise. IPv6 is the other way round: only what is inside GLOBAL, and
in none of its rows, is public, so that every form that carries an IPv4 address inside (mapped,
compatible, SIIT, NAT64, Teredo, 6to4) and every block that is given out in future stays shut.

`ipaddress.is_global` decides nothing here: its tables change between releases of Python, and some let
relays, translators and metadata servers through.

FLOOR is what an operator opens only by naming the very address: a network that happens to cover it
does not. Behind it are the machines that hand out credentials.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import NamedTuple

type Address = IPv4Address | IPv6Address
type Network = IPv4Network | IPv6Network


class Row(NamedTuple):
    network: Network
    what: str
    source: str


def _rows(*rows: tuple[str, str, str]) -> tuple[Row, ...]:
    return tuple(Row(ip_network(network), what, source) for network, what, source in rows)


IPV4_DENIED = _rows(
    ("0.0.0.0/8", "this network", "RFC 791 3.2; RFC 6890 table 1"),
    ("10.0.0.0/8", "private use", "RFC 1918"),
    ("100.64.0.0/10", "shared by carriers", "RFC 6598"),
    ("127.0.0.0/8", "loopback", "RFC 1122 3.2.1.3"),
    ("169.254.0.0/16", "link-local, cloud metadata", "RFC 3927"),
    ("172.16.0.0/12", "private use", "RFC 1918"),
    ("192.0.0.0/24", "protocol assignments", "RFC 6890 2.1"),
    ("192.0.2.0/24", "documentation", "RFC 5737"),
    ("192.31.196.0/24", "AS112 sink", "RFC 7535"),
    ("192.52.193.0/24", "AMT relays", "RFC 7450"),
    ("192.88.99.0/24", "6to4 relays, deprecated", "RFC 7526"),
    ("192.168.0.0/16", "private use", "RFC 1918"),
    ("192.175.48.0/24", "AS112 sink", "RFC 7534"),
    ("198.18.0.0/15", "benchmarking", "RFC 2544"),
    ("198.51.100.0/24", "documentation", "RFC 5737"),
    ("203.0.113.0/24", "documentation", "RFC 5737"),
    ("224.0.0.0/4", "multicast", "RFC 5771"),
    ("240.0.0.0/4", "reserved, broadcast", "RFC 1112 4; RFC 919 7"),
    ("168.63.129.16/32", "Azure's platform address", "Microsoft Learn: What is IP address 168.63.129.16?"),
)

IPV6_GLOBAL = IPv6Network("2000::/3")
"""RFC 4291 2.4 and IANA's global unicast assignments: nothing outside is routed in public."""

IPV6_DENIED = _rows(
    ("2001::/23", "protocol assignments, Teredo, ORCHID", "RFC 2928; RFC 4380; RFC 7343"),
    ("2001:db8::/32", "documentation", "RFC 3849"),
    ("2002::/16", "6to4", "RFC 3056"),
    ("2620:4f:8000::/48", "AS112 sink", "RFC 7534"),
    ("3fff::/20", "documentation", "RFC 9637"),
)

FLOOR = _rows(
    ("169.254.0.0/16", "link-local, cloud metadata", "RFC 3927; AWS, Google Cloud, Azure, Oracle: instance metadata"),
    ("fe80::/10", "link-local", "RFC 4291 2.5.6"),
    ("168.63.129.16/32", "Azure's platform address", "Microsoft Learn: What is IP address 168.63.129.16?"),
    ("100.100.100.200/32", "Alibaba Cloud metadata", "Alibaba Cloud: View instance metadata"),
    ("192.0.0.192/32", "Oracle Cloud classic metadata", "Oracle Cloud: Retrieving instance metadata"),
    ("fd00:ec2::/32", "AWS metadata", "AWS: Use IMDS, IPv6"),
    ("fd20:ce::254/128", "Google Cloud metadata", "Google Cloud: VM metadata, IPv6-only instances"),
    ("0.0.0.0/8", "this host, by another name", "RFC 1122 3.2.1.3"),
    ("::/128", "this host, by another name", "RFC 4291 2.5.2"),
)

IPV6_MAPPED = IPv6Network("::ffff:0:0/96")
"""RFC 4291 2.5.5.2. The kernel turns these into IPv4 connections, past every rule about IPv4: never connected to."""

CARRIERS = (
    (IPv6Network("::/96"), 0, "RFC 4291 2.5.5.1, compatible"),
    (IPv6Network("::ffff:0:0:0/96"), 0, "RFC 7915, SIIT"),
    (IPv6Network("64:ff9b::/96"), 0, "RFC 6052, NAT64"),
    (IPv6Network("2002::/16"), 80, "RFC 3056, 6to4"),
)
"""Networks whose addresses carry an IPv4 address, and how many bits stand behind it. An operator who opens
one opens the way, not what is at its end: the address inside must be allowed as well."""


def row_of(address: Address, rows: tuple[Row, ...]) -> Row | None:
    """The first row the address is in."""
    return next((row for row in rows if address.version == row.network.version and address in row.network), None)


def carried(address: Address) -> IPv4Address | None:
    """The IPv4 address inside an IPv6 one of a translator's form."""
    for network, behind, _ in CARRIERS:
        if address.version == 6 and address in network:
            return IPv4Address(int(address) >> behind & 0xFFFFFFFF)
    return None


def builtin_denial(address: Address) -> str:
    """Why an address is not public; '' where it is."""
    if address.version == 4:
        row = row_of(address, IPV4_DENIED)
        return f"{row.network} {row.what} ({row.source})" if row else ""
    if address not in IPV6_GLOBAL:
        return f"outside {IPV6_GLOBAL}, the only public block (RFC 4291 2.4)"
    row = row_of(address, IPV6_DENIED)
    return f"{row.network} {row.what} ({row.source})" if row else ""
