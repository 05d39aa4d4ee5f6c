"""Servers on loopback that do as they are told, name servers included.

127.0.0.2 and ::1 stand for the public world: the tests' policies allow them. 127.0.0.1 and 127.0.0.3 stand
for something private. No other address is ever connected to.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PUBLIC, PUBLIC6, PRIVATE = "127.0.0.2", "::1", "127.0.0.3"


@dataclass
class Seen:
    """A request as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def __getitem__(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


type Reply = bytes | Callable[[socket.socket], None] | None


@dataclass
class Site:
    """A server. `reply` gives what is sent for a request: bytes, a function that talks, or None to hang up."""

    reply: Callable[[Seen], Reply]
    host: str = PUBLIC
    tls: ssl.SSLContext | None = None
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((self.host, self.port))
        self._socket.listen(512)
        self.port = self._socket.getsockname()[1]
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._live: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for sock in self._live:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def at(self, name: str) -> str:
        """Its URL under a name."""
        return f"{'https' if self.tls else 'http'}://{name}:{self.port}"

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self.open += 1
                self._live.add(sock)
            threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True).start()

    def _serve(self, raw: socket.socket, number: int) -> None:
        sock = raw
        try:
            sock.settimeout(20)
            if self.tls:
                sock = self.tls.wrap_socket(raw, server_side=True)
            self._talk(sock, number)
        except (OSError, ValueError):
            pass
        finally:
            with suppress(OSError):
                sock.close()
            raw.close()
            with self._lock:
                self.open -= 1
                self._live.discard(raw)

    def _talk(self, sock: socket.socket, number: int) -> None:
        stream = sock.makefile("rb")
        while line := stream.readline():
            method, target, _ = line.decode("latin-1").split(" ", 2)
            headers = []
            while (header := stream.readline().rstrip(b"\r\n")) != b"":
                name, _, value = header.decode("latin-1").partition(":")
                headers.append((name, value.strip()))
            request = Seen(method, target, headers, b"", number)
            request.body = stream.read(int(request["content-length"] or 0))
            with self._lock:
                self.seen.append(request)
            reply = self.reply(request)
            if reply is None:
                return
            if callable(reply):
                reply(sock)
                return
            sock.sendall(reply)


def answer(
    body: bytes | str = b"", status: str = "200 OK", headers: Mapping[str, str] | None = None, **more: str
) -> bytes:
    """A whole response."""
    data = body.encode() if isinstance(body, str) else body
    given = {"Content-Length": str(len(data)), **(headers or {}), **{k.replace("_", "-"): v for k, v in more.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + data


def redirect(to: str, status: int = 302) -> bytes:
    return answer(b"moved", f"{status} Moved", Location=to)


def endlessly(first: bytes, piece: bytes, pause_s: float = 0.0, most: int = 1 << 30) -> Callable[[socket.socket], None]:
    """Sends `first`, then `piece` again and again until the other side has had enough."""

    def talk(sock: socket.socket) -> None:
        sock.sendall(first)
        sent = 0
        while sent < most:
            sock.sendall(piece)
            sent += len(piece)
            time.sleep(pause_s)

    return talk


def silence(sock: socket.socket) -> None:
    """Says nothing until the other side hangs up."""
    sock.recv(1)


class Authority:
    """A certificate authority of the tests' own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hookpool tests")])
        self.file = folder / "ca.pem"
        certificate = self._certificate(self._name, self._key, None)
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, *names: str) -> ssl.SSLContext:
        """The TLS of a server that may call itself so."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = self._certificate(name, key, names)
        path = self._folder / f"{names[0].replace(':', '_')}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _certificate(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, names: tuple[str, ...] | None
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
        )
        if names is not None:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class NameServer:
    """DNS over UDP on 127.0.0.1, from a table: name -> addresses. A name that is not there does not exist;
    `cname:other` is an alias, None is never answered."""

    def __init__(self, table: Mapping[str, list[str] | None]) -> None:
        self.table = dict(table)
        self.asked: list[str] = []

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.where = f"127.0.0.1:{self.port}"
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as poke:
            poke.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        import dns.message

        while True:
            data, sender = self._socket.recvfrom(4096)
            if self._over:
                return
            reply = self._reply(dns.message.from_wire(data))
            if reply is not None:
                self._socket.sendto(reply, sender)

    def _reply(self, query):
        import dns.flags
        import dns.message
        import dns.rcode
        import dns.rdatatype
        import dns.rrset

        question = query.question[0]
        name = question.name.to_text().rstrip(".")
        self.asked.append(name)
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        if name not in self.table:
            reply.set_rcode(dns.rcode.NXDOMAIN)
            return reply.to_wire()
        while (known := self.table[name]) is not None and known[:1] and known[0].startswith("cname:"):
            alias = known[0].removeprefix("cname:")
            reply.answer.append(dns.rrset.from_text(f"{name}.", 1, "IN", "CNAME", f"{alias}."))
            name = alias
        if known is None:
            return None
        kind = {dns.rdatatype.A: 4, dns.rdatatype.AAAA: 6}.get(question.rdtype)
        fitting = [text for text in known if ipaddress.ip_address(text).version == kind]
        if fitting:
            kind_name = dns.rdatatype.to_text(question.rdtype)
            reply.answer.append(dns.rrset.from_text(f"{name}.", 1, "IN", kind_name, *fitting))
        return reply.to_wire()


_watchers: list[list[tuple[str, int]]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event != "socket.connect" or not isinstance(arguments[1], tuple):
        return
    if not ipaddress.ip_address(arguments[1][0]).is_loopback:
        raise AssertionError(f"a test would leave loopback: {arguments[1]}")
    if _watchers:
        _watchers[-1].append(arguments[1][:2])


sys.addaudithook(_hook)


@contextmanager
def connects() -> Iterator[list[tuple[str, int]]]:
    """Every address that this process connects a socket to, as the interpreter itself reports it."""
    _watchers.append([])
    try:
        yield _watchers[-1]
    finally:
        _watchers.pop()
