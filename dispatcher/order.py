"""Merges in the order of calls, however long each call takes.

Calls of running code run at once, and end as they will. What they wrote is merged in the order in which
they were made: whoever wants to merge waits until no earlier call is still open.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Order:
    """The open calls of one invocation, by number. Safe to use from many threads."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._changed = threading.Condition()

    @contextmanager
    def place(self, number: int) -> Iterator[None]:
        """While it lasts, call `number` is open."""
        with self._changed:
            self._open.add(number)
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(number)
                self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Until no call before `number` is open."""
        with self._changed:
            self._changed.wait_for(lambda: min(self._open, default=number) >= number)
