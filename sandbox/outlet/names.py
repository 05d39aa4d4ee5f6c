"""A name's addresses, asked for once.

The system's resolver blocks a thread, so its threads are counted and a look-up that takes too long is
left behind on its own; the operator's resolvers are asked without threads. Either gets the name with
a dot at its end: no search domain turns `db.example.com` into something of this network.

CNAMEs are the resolver's business: what counts is the address at their end.
"""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

import psutil

from sandbox.egress.codes import Code, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.egress.policy import Plan
    from sandbox.egress.ranges import Address

THREADS = 64
MOST_ADDRESSES = 64
OWN_ADDRESSES_S = 5.0  # how long a reading of this host's addresses is good for
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})


class Names(Protocol):
    """Looks a name up: all its addresses, () where there are none. Raises Refused(dns_error)."""

    async def __call__(self, host: str) -> tuple[Address, ...]: ...


class SystemNames:
    """By /etc/resolv.conf."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="names")

    async def __call__(self, host: str) -> tuple[Address, ...]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _getaddrinfo, f"{host}.".encode("ascii"))


def _getaddrinfo(host: bytes) -> tuple[Address, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NO_SUCH_NAME:
            return ()
        raise Refused(Code.DNS_ERROR, "the name could not be looked up", str(error)) from error
    return tuple(dict.fromkeys(ip_address(place[0]) for *_, place in found))


class NamedResolvers:
    """By resolvers that the operator names, which know public names only."""

    def __init__(self, resolvers: Sequence[tuple[str, int]], within_s: float) -> None:
        """Raises ImportError where dnspython is not installed."""
        import dns._asyncio_backend
        import dns.asyncresolver
        import dns.nameserver
        import dns.rdata

        dns.rdata.load_all_types()  # type: ignore[no-untyped-call]  # it imports them one by one otherwise, when there is no disk any more
        self._resolver = dns.asyncresolver.Resolver(configure=False)
        self._resolver.nameservers = [dns.nameserver.Do53Nameserver(address, port) for address, port in resolvers]
        self._resolver.lifetime = within_s
        self._resolver.timeout = within_s / 2  # of one resolver, before the next is asked

    async def __call__(self, host: str) -> tuple[Address, ...]:
        both = await asyncio.gather(self._ask(host, "AAAA"), self._ask(host, "A"))
        return tuple(dict.fromkeys(address for some in both for address in some))

    async def _ask(self, host: str, kind: str) -> list[Address]:
        import dns.exception
        import dns.resolver

        try:
            answer = await self._resolver.resolve(f"{host}.", kind, search=False, raise_on_no_answer=False)
        except dns.resolver.NXDOMAIN:
            return []
        except dns.resolver.LifetimeTimeout as error:
            raise Refused(Code.DNS_TIMEOUT, "the name was not resolved in time") from error
        except (dns.exception.DNSException, OSError) as error:
            raise Refused(Code.DNS_ERROR, "the name could not be looked up", str(error)) from error
        return [ip_address(record.address) for record in answer.rrset or ()]


async def resolve(names: Names, host: str, within_s: float, gate: asyncio.Semaphore) -> tuple[Address, ...]:
    """All addresses of `host`. Raises Refused(dns_error, dns_timeout).

    A look-up that was left behind keeps its place at the `gate` until it ends, so that nobody can
    have more threads waiting than that.
    """
    try:
        async with asyncio.timeout(within_s):
            await gate.acquire()
            looking = asyncio.ensure_future(names(host))
            looking.add_done_callback(lambda done: _leave(gate, done))
            found = await asyncio.shield(looking)
    except TimeoutError:
        raise Refused(Code.DNS_TIMEOUT, f"the name was not resolved within {within_s:g} s") from None
    if len(found) > MOST_ADDRESSES:
        raise Refused(Code.DNS_ERROR, f"the name has more than {MOST_ADDRESSES} addresses")
    return found


def _leave(gate: asyncio.Semaphore, done: asyncio.Future[tuple[Address, ...]]) -> None:
    gate.release()
    if not done.cancelled():
        done.exception()  # somebody may have stopped waiting for it


def names_of(plan: Plan) -> Names:
    """The operator's resolvers, or the system's. Raises ImportError where dnspython is wanted and not installed."""
    return NamedResolvers(plan.resolvers, plan.budgets.dns_s) if plan.resolvers else SystemNames()


class OwnAddresses:
    """The addresses of this host's interfaces, read again now and then."""

    def __init__(self) -> None:
        self._found: frozenset[Address] = frozenset()
        self._until = 0.0

    def __call__(self) -> frozenset[Address]:
        now = time.monotonic()
        if now >= self._until:
            self._found = frozenset(
                ip_address(entry.address.partition("%")[0])
                for entries in psutil.net_if_addrs().values()
                for entry in entries
                if entry.family in {socket.AF_INET, socket.AF_INET6}
            )
            self._until = now + OWN_ADDRESSES_S
        return self._found
