"""Every exception Hookpool raises on purpose, in one tree.

Failure of user code is data (`contract.Status`); failure of our machinery, and a mistake in what
a caller handed us, is an exception from here. Each carries what a caller needs to act as
attributes; `str()` is one line that can be shown to a person as it is.

    HookpoolError
    |-- InputError            what the caller gave cannot be used: which file, where, why
    |   |-- CodeError         a callback's source: missing, not UTF-8, syntax, no such function
    |   `-- SettingsError     a HOOKPOOL_... value or a limit
    |-- CallbackFailed        a hook did not end well, and whoever runs it asked for an exception
    |-- ProtocolError         bytes that are not what the wire allows
    |   `-- FrameTooLarge     more of them than the other side may send
    |-- SessionError
    |   |-- SessionNotFound
    |   `-- MergeRejected     another invocation changed the same variables first
    |-- TurnError             a conversation turn that came to no reply
    |   `-- ModelFailed       the model gave no response
    `-- PoolError             the machinery: nothing is known to have run unless the text says so
        |-- PoolOverloaded    refused at once, the queue is too deep
        |-- PoolUnavailable   the broker or the workers cannot be reached
        |-- TierTooLow        this host cannot isolate well enough
        `-- ZygoteLost        the fork server died and could not be started again
"""

from __future__ import annotations


class HookpoolError(Exception):
    """Root of the tree."""


class InputError(HookpoolError):
    """Something the caller gave cannot be used.

    `where` names the file, key or flag; `line` is 1-based, or None where a line means nothing.
    """

    def __init__(self, where: str, why: str, *, line: int | None = None) -> None:
        self.where = where
        self.why = why
        self.line = line
        at = where if line is None else f"{where}:{line}"
        super().__init__(f"{at}: {why}")


class CodeError(InputError):
    """A callback's source cannot be used; `where` is its file."""


class SettingsError(InputError):
    """A setting or a limit is not usable; `where` is its name."""


class CallbackFailed(HookpoolError):
    """A hook of an agent failed, or was late. `status` is a contract.Status; `traceback` holds the user's own frames."""

    def __init__(self, hook: str, agent: str, status: str, detail: str, traceback: str = "") -> None:
        self.hook = hook
        self.agent = agent
        self.status = status
        self.detail = detail
        self.traceback = traceback
        super().__init__(f"{hook} of agent {agent!r}: {status}: {detail}")


class ProtocolError(HookpoolError):
    """Bytes that are not what the wire allows."""


class FrameTooLarge(ProtocolError):
    """A frame of `size` bytes was announced, `limit` may be sent."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"a frame of {size} bytes, at most {limit} are accepted")


class SessionError(HookpoolError):
    """A session could not be read or changed."""

    def __init__(self, session_id: str, why: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id!r}: {why}")


class SessionNotFound(SessionError):
    """No such session in the store."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id, "not found")


class MergeRejected(SessionError):
    """`keys` changed after this invocation's snapshot, and their policy forbids to overwrite them. `rerun`: the
    policy of all of them is to run the invocation again, on what is there now.
    """

    def __init__(self, session_id: str, keys: tuple[str, ...], *, rerun: bool = False) -> None:
        self.keys = keys
        self.rerun = rerun
        super().__init__(session_id, f"changed meanwhile: {', '.join(keys)} (policy {'rerun' if rerun else 'reject'})")


class TurnError(HookpoolError):
    """A turn was broken off and nothing of it was merged (policy `raise`). `trace` is how far it came."""

    def __init__(self, why: str, trace: tuple[object, ...] = ()) -> None:
        self.why = why
        self.trace = trace
        super().__init__(why)


class ModelFailed(TurnError):
    """The model could not be asked, or gave nothing that is a response."""


class PoolError(HookpoolError):
    """The machinery failed."""


class PoolOverloaded(PoolError):
    """The queue holds `depth` jobs, the limit is `limit`, `setting` changes it."""

    def __init__(self, depth: int, limit: int, setting: str) -> None:
        self.depth = depth
        self.limit = limit
        self.setting = setting
        super().__init__(f"queue holds {depth} jobs, limit {limit} (setting {setting})")


class PoolUnavailable(PoolError):
    """The broker, or any worker behind it, cannot be reached."""

    def __init__(self, where: str, why: str) -> None:
        self.where = where
        super().__init__(f"{where}: {why}")


class TierTooLow(PoolError):
    """This host reaches `tier` (None: not even C) but `needed` is asked for."""

    def __init__(self, tier: str | None, needed: str, missing: tuple[str, ...]) -> None:
        self.tier = tier
        self.needed = needed
        self.missing = missing
        super().__init__(
            f"sandbox tier {tier or 'none'} on this host, {needed} needed (setting HOOKPOOL_MIN_TIER);"
            f" missing: {', '.join(missing) or 'nothing'}; `hookpool doctor` shows each layer"
        )


class ZygoteLost(PoolError):
    """The fork server is gone and did not come back in time."""
