"""Who may call: a file of `NAME:SHA256[:TENANT]`, a line each.

A key is 256 random bits, so a plain hash of it gives nothing away, and the file holds no secret a
reader could use. Keys of one tenant share sessions; those of different tenants never see one
another's. Keys without a tenant share the sessions that Python dispatchers of the same pool see.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher import documents
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PREFIX = "hookpool_"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Key:
    """One client, by the name that logs show."""

    name: str
    digest: str
    tenant: str = ""

    @property
    def line(self) -> str:
        return ":".join(filter(None, (self.name, self.digest, self.tenant)))


NOBODY = Key("-", "")
"""Whoever calls a gateway that has no keys."""


def new(name: str, tenant: str = "") -> tuple[str, Key]:
    """A fresh key: the secret, and what a file holds of it. Raises InputError."""
    for word in filter(None, (name, tenant)):
        _check(word, "--new-key")
    if not name:
        raise InputError("--new-key", "a name is needed")
    secret = PREFIX + secrets.token_urlsafe(32)
    return secret, Key(name, digest(secret), tenant)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read(path: Path) -> tuple[Key, ...]:
    """The keys of a file; empty lines and those that begin with # are nothing. Raises InputError, with the line."""
    text = documents.decode(str(path), documents.read_bytes(path))
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *rest = (word.strip() for word in line.split(":"))
        if len(rest) not in {1, 2} or not DIGEST.fullmatch(rest[0]):
            raise InputError(
                str(path), "NAME:SHA256[:TENANT] is needed; hookpool serve --new-key makes one", line=number
            )
        for word in (name, *rest[1:]):
            _check(word, str(path), number)
        if name in keys:
            raise InputError(str(path), f"key {name!r} is there twice", line=number)
        keys[name] = Key(name, *rest)
    if not keys:
        raise InputError(str(path), "no key in it; hookpool serve --new-key makes one")
    return tuple(keys.values())


def find(secret: str, keys: Iterable[Key]) -> Key | None:
    """Whose secret it is. Every key is compared, so that time tells nothing."""
    given, found = digest(secret), None
    for key in keys:
        if hmac.compare_digest(given, key.digest):
            found = key
    return found


def _check(word: str, where: str, line: int | None = None) -> None:
    if not NAME.fullmatch(word):
        raise InputError(where, f"{word!r} is no name: letters, digits, dots, dashes, underscores", line=line)
