"""What repeats, kept: code and pieces of history, by their digest, the least recently used dropped first.

A piece is fetched from the queue's server when a job needs one that is not here; what comes is
believed only where it has the digest.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandbox import wire
from sandbox.contract import CONTEXT_BYTES
from sandbox.errors import ProtocolError

if TYPE_CHECKING:
    import redis

    from sandbox.contract import Job


class Parts:
    """At most `most` bytes of them. Safe to use from many threads."""

    def __init__(self, client: redis.Redis, most: int) -> None:
        self._client = client
        self._most = most
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def complete(self, job: Job, parcel: wire.Parcel) -> Job | None:
        """`job` with what is beside the queue: one round trip where anything has to be fetched, else none.

        None when something is lacking. Raises ProtocolError for a job that is too large.
        """
        parts = self._find(parcel.digests)
        missing = [digest for digest in parcel.digests if digest not in parts]
        body: bytes | None = job.body
        if missing or parcel.body:
            keys = [wire.part_key(digest) for digest in missing] + [wire.body_key(job.id)] * parcel.body
            found: Any = self._client.mget(keys)
            if parcel.body:
                body = found.pop()
            fetched = {digest: data for digest, data in zip(missing, found, strict=True) if _is(data, digest)}
            self._keep(fetched)
            parts |= fetched
        if body is None or any(digest not in parts for digest in parcel.digests):
            return None
        code = parts[parcel.code] if parcel.code else job.code
        history = tuple(parts[digest] for digest in parcel.history) or job.history
        complete = replace(job, code=code, body=body, history=history)
        if complete.size > CONTEXT_BYTES:
            raise ProtocolError(f"job: {complete.size} bytes, at most {CONTEXT_BYTES} travel")
        return complete

    def _find(self, digests: tuple[bytes, ...]) -> dict[bytes, bytes]:
        with self._lock:
            found = {digest: self._kept[digest] for digest in digests if digest in self._kept}
            for digest in found:
                self._kept.move_to_end(digest)
        return found

    def _keep(self, fetched: dict[bytes, bytes]) -> None:
        with self._lock:
            for digest, data in fetched.items():
                if digest not in self._kept:
                    self._kept[digest] = data
                    self._size += len(data)
            while self._size > self._most:
                _, dropped = self._kept.popitem(last=False)
                self._size -= len(dropped)


def _is(data: bytes | None, digest: bytes) -> bool:
    return data is not None and hashlib.sha256(data).digest() == digest
