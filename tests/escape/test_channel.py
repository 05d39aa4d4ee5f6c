"""The channel: what comes out of a sandbox is a claim, read once, strictly; every lie has its status.

All of these are judged by the whole path, so the status and the detail are those that a caller sees.
"""

from __future__ import annotations

import json

import pytest

from sandbox import codec
from sandbox.contract import Limits
from sandbox.invocation import ErrorInfo, Reply

from .cells import NOTHING, OVERTIME, QUICK, SLEEPY, SPUN, TOO_MUCH, Attempt, Cell, crash, gets_through, promises, said

CALLS = Limits(wall_s=5, cpu_s=1, memory_mb=64, calls=5)
LONG = Limits(wall_s=5, cpu_s=3, memory_mb=64)
WENT_AWAY = "no_result it closed its channel without a reply"
LEFT = "no_result without a reply"  # whether it was seen to hang up or to exit is a race it may win
NOT_A_FRAME = "protocol_error the sandbox sent what is no frame"
UNREADABLE = "protocol_error the reply cannot be read"

_SEND = """
import os, time
def send(payload):
    data = len(payload).to_bytes(4, 'big') + payload
    while data: data = data[os.write(3, data):]
"""


def sends(*payloads: bytes, then: str = "time.sleep(60)") -> str:
    """A body that writes frames of its own, and is not heard of again."""
    return f"{_SEND}\nfor payload in {payloads!r}: send(payload)\nv['got'] = 'sent'\n{then}"


def frames(*payloads: bytes, ends, limits: Limits = QUICK) -> Attempt:
    """The control shows that nothing stops the writing itself."""
    return Attempt(sends(*payloads), ends, limits=limits, control=sends(*payloads, then=""))


def reply(**claims) -> bytes:
    return b"R" + codec.pack(claims)


def call(**changed) -> bytes:
    return b"C" + codec.pack({"v": 1, "id": 1, "kind": "tool", "name": "lookup", "arguments": b"\x80", **changed})


FRAMES = {
    "an exit before the reply is no result": Attempt(
        "import os\nos._exit(0)", "no_result it exited with 0 without a reply", end_of_control="exit 0"
    ),
    "an exit from a thread is no result": Attempt(
        "import os, threading, time\nthreading.Thread(target=os._exit, args=(3,)).start()\ntime.sleep(60)",
        "no_result it exited with 3 without a reply",
        end_of_control="exit 3",
    ),
    "a reply of garbage is said to be unreadable": frames(b"Rgarbage", ends=UNREADABLE),
    "an empty reply is said to be unreadable": frames(b"R", ends=UNREADABLE),
    "a reply that is no map is said to be one": frames(b"R\x01", ends=UNREADABLE),
    "a reply with a field nobody knows is refused": frames(reply(status="ok"), ends=f"{UNREADABLE}: reply: status"),
    "a reply with a field of another type is refused": frames(reply(set=[1]), ends=f"{UNREADABLE}: reply: set"),
    "a reply cannot claim facts about its error": frames(
        reply(error={"type": "E", "message": "m", "status": "ok"}), ends=f"{UNREADABLE}: reply: error.status"
    ),
    "a reply with NaN is refused": frames(reply(returned=float("nan")), ends=f"{UNREADABLE}: the number nan"),
    "a reply with an extension type is refused": frames(b"R\xd4\x01\x01", ends=f"{UNREADABLE}: extension type 1"),
    "a reply with a timestamp is refused": frames(b"R\xd6\xff\0\0\0\1", ends=UNREADABLE),
    "a reply with a key of bytes is refused": frames(b"R\x81\xc4\x01a\x01", ends=f"{UNREADABLE}: a bytes key"),
    "a reply with a key that is a number is refused": frames(b"R\x81\x01\x01", ends=UNREADABLE),
    "a reply with text that is no UTF-8 is refused": frames(b"R\x81\xa1\xff\x01", ends=UNREADABLE),
    "a reply 70 levels deep is refused": frames(
        b"R\x81\xa8returned" + b"\x91" * 70 + b"\xc0", ends=f"{UNREADABLE}: nested deeper than 64"
    ),
    "a reply 100,000 levels deep is refused": frames(b"R" + b"\x91" * 100_000 + b"\xc0", ends=UNREADABLE),
    "a megabyte of empty maps is refused before it is 75 megabytes": Attempt(
        f"{_SEND}\nsend(b'R\\xdd\\0\\x10\\0\\0' + b'\\x80' * (1 << 20))\nv['got'] = 1\ntime.sleep(60)",
        f"{UNREADABLE}: more than 200000 lists and maps",
        control=f"{_SEND}\nsend(b'R\\xdd\\0\\x10\\0\\0' + b'\\x80' * (1 << 20))\nv['got'] = 1",
    ),
    "a list that announces four billion items is refused": frames(b"R\xdd\xff\xff\xff\xff", ends=UNREADABLE),
    "a truncated frame and an exit are no result": Attempt(
        "import os\nos.write(3, b'\\0\\0\\1\\0Rabc')\nos._exit(0)",
        "no_result it exited with 0 without a reply",
        end_of_control="exit 0",
    ),
    "a truncated frame that swallows the real reply ends at the wall limit": Attempt(
        "import os\nv['got'] = os.write(3, b'\\0\\1\\0\\0Rabc')", OVERTIME, limits=SLEEPY
    ),
    "half a length, to be taken for the other half of something, ends at the wall limit": Attempt(
        "import os, time\nv['got'] = os.write(3, b'\\0\\0')\ntime.sleep(60)",
        OVERTIME,
        limits=SLEEPY,
        control="import os\nv['got'] = os.write(3, b'\\0\\0')",
    ),
    "a length of four gigabytes is refused on sight": Attempt(
        "import os, time\nv['got'] = os.write(3, b'\\xff' * 4)\ntime.sleep(60)",
        "protocol_error the sandbox sent what is no frame: a frame of 4294967295 bytes",
        control="import os\nv['got'] = os.write(3, b'\\xff' * 4)",
    ),
    "a length just above the limit is refused on sight": Attempt(
        "import os, time\nv['got'] = os.write(3, (4300000).to_bytes(4, 'big'))\ntime.sleep(60)",
        "output_limit sent a frame of 4300000 bytes, limit 4194304 bytes (limit reply_bytes)",
        control="import os\nv['got'] = os.write(3, (4300000).to_bytes(4, 'big'))",
    ),
    "a frame dripped byte by byte for ever ends at the wall limit": Attempt(
        "import os, time\nos.write(3, b'\\0\\1\\0\\0R')\nwhile True:\n    v['got'] = os.write(3, b'a')\n    time.sleep(0.01)",
        OVERTIME,
        limits=SLEEPY,
        control="import os\nos.write(3, b'\\0\\1\\0\\0R')\nfor _ in range(9): v['got'] = os.write(3, b'a')",
    ),
    "a frame of no bytes is none": frames(b"", ends=NOT_A_FRAME),
    "a frame of an unknown kind is none": frames(b"Z", ends=f"{NOT_A_FRAME}: tag b'Z'"),
    "a frame that only the supervisor sends is none": frames(b"V" + bytes(9), ends=f"{NOT_A_FRAME}: tag b'V'"),
    "a package wanted that no other sandbox has is no frame": frames(b"N\x1b[31mcolour\nand a line", ends=NOT_A_FRAME),
    "a forged wish for a package is not blamed on a call that was never made": frames(b"Nnumpy", ends=NOT_A_FRAME),
    "a call of garbage is no frame": frames(b"Cgarbage", ends=NOT_A_FRAME),
    "a call of an unknown kind is no frame": frames(call(kind="shell"), ends=f"{NOT_A_FRAME}: call: kind"),
    "a call of another protocol is no frame": frames(call(v=2), ends=f"{NOT_A_FRAME}: call: protocol version 2"),
    "a call with a field nobody knows is no frame": frames(call(uid=0), ends=f"{NOT_A_FRAME}: call: uid"),
    "a call with a number that is none is no frame": frames(call(id=[]), ends=f"{NOT_A_FRAME}: call: id"),
    "a call whose name is a megabyte is no frame": Attempt(
        f"{_SEND}\nfor _ in range(4): send({call(name='NAME')!r}.replace(b'\\xa4NAME', b'\\xdb\\0\\x10\\0\\0' + b'n' * (1 << 20)))"
        "\nv['got'] = 'sent'",
        NOT_A_FRAME,
    ),
    "calls whose answers are never read end at the call limit": Attempt(
        f"{_SEND}\nfor _ in range(10**6): send({call()!r})\nv['got'] = 'sent'",
        "call_limit made 6 tool and HTTP calls, limit 5 (limit calls)",
        limits=CALLS,
        control=f"{_SEND}\nfor _ in range(99): send({call()!r})\nv['got'] = 'sent'",
    ),
    "calls within the limit whose answers are never read delay nothing": Attempt(
        f"{_SEND}\nfor _ in range(5): send({call()!r})",
        NOTHING,
        limits=CALLS,
        control=f"{_SEND}\nfor _ in range(5): send({call()!r})\nv['got'] = 'sent'",
    ),
    "calls through `tools` end at the call limit": Attempt(
        "for _ in range(10**6): tools.lookup({})",
        "call_limit made 6 tool and HTTP calls, limit 5 (limit calls)",
        limits=CALLS,
        tools=("lookup",),
        control="for _ in range(99): v['got'] = True",
    ),
    "a call with more arguments than a reply may have is over the output limit": Attempt(
        "tools.lookup({'text': 'x' * (5 << 20)})",
        "output_limit limit 4194304 bytes (limit reply_bytes)",
        tools=("lookup",),
        control="v['got'] = len('x' * (5 << 20))",
    ),
    "output frames without end are counted, not kept": Attempt(
        f"{_SEND}\nwhile True: send(b'O' + bytes(30000))",
        SPUN,
        control=f"{_SEND}\nsend(b'O' + bytes(30000))\nv['got'] = 1",
    ),
    "answers that are stolen from the channel help nobody": Attempt(
        "import os\nwhile True: v['got'] = os.read(3, 1)",
        OVERTIME,
        limits=SLEEPY,
        control="import os\nos.set_blocking(3, False)\ntry: os.read(3, 1)\nexcept BlockingIOError: v['got'] = 'waited'",
    ),
    "closing the channel is no result": Attempt("import os\nos.close(3)\nv['got'] = 'closed'", LEFT),
    "closing the channel and staying is no result, at once": Attempt(
        "import os, time\nos.close(3)\nv['got'] = 1\ntime.sleep(60)",
        WENT_AWAY,
        control="import os\nos.close(3)\nv['got'] = 1",
    ),
    "closing every descriptor is no result": Attempt(
        "import os\nos.closerange(0, 4096)\nv['got'] = 'closed'",
        LEFT,
        control="import os\nos.closerange(0, 4)\nv['got'] = 'closed'",
    ),
    "something else in the channel's place is no result": Attempt("import os\nv['got'] = os.dup2(0, 3) == 3", LEFT),
    "a pipe in the channel's place is no result": Attempt("import os\nv['got'] = os.dup2(os.pipe()[1], 3) == 3", LEFT),
    "a pipe in the channel's place, the channel kept open, is no result": Attempt(
        "import os\nkept = os.dup(3)\nv['got'] = os.dup2(os.pipe()[1], 3) == 3", LEFT
    ),
    "a channel shut for writing is no result": Attempt("v['got'] = call('shutdown', 3, 1) == 0", LEFT),
    "a channel that does not block may cost the code its own large reply, and no more": Attempt(
        "import os\nos.set_blocking(3, False)\nfor n in range(15): v[f'x{n}'] = 'x' * 250_000",
        (NOTHING, LEFT),
        control="import os\nos.set_blocking(3, False)\nv['got'] = not os.get_blocking(3)",
    ),
}

_VALUES = {
    # what is put into the state, the detail, and how a plain program is hurt by it
    "a set": ("x = {1}", "variables.x: set", "json.dumps(x)"),
    "a datetime inside a list inside a dict": (
        "import datetime\nx = [{'at': datetime.datetime(2024, 1, 1)}]",
        "variables.x[0].at: datetime",
        "json.dumps(x)",
    ),
    "a custom object inside a list": ("class Mine: pass\nx = [1, Mine()]", "variables.x[1]: Mine", "json.dumps(x)"),
    "a function": ("x = print", "variables.x: builtin_function_or_method", "json.dumps(x)"),
    "a cycle": ("x = []\nx.append(x)", "variables.x[0]: a cycle", "json.dumps(x)"),
    "a cycle through a dict": ("x = {}\nx['me'] = [x]", "variables.x.me[0]: a cycle", "json.dumps(x)"),
    "100,000 levels": ("x = []\nfor _ in range(100_000): x = [x]", "nested deeper than 60", "json.dumps(x)"),
    "NaN": ("x = {'a': [1.5, float('nan')]}", "variables.x.a[1]: NaN", "json.dumps(x, allow_nan=False)"),
    "infinity": ("x = float('-inf')", "variables.x: Infinity", "json.dumps(x, allow_nan=False)"),
    "an int beyond 64 bits": ("x = [2**64]", "variables.x[0]: an int beyond 64 bits", "struct.pack('>Q', x[0])"),
    "an int of a million digits": ("x = 1 << 3_000_000", "variables.x: an int beyond 64 bits", "json.dumps(x)"),
    "a lone surrogate": ("x = 'a\\ud800'", "variables.x: text with a lone surrogate", "x.encode()"),
    "a lone surrogate as a key": (
        "x = {'\\udfff': 1}",
        "variables.x: text with a lone surrogate",
        "list(x)[0].encode()",
    ),
    "a key that is no text": ("x = {(1, 2): 3}", "variables.x: a key of type tuple", "json.dumps(x)"),
    "an object that lies about its class": (
        "class Liar:\n    __class__ = dict\nx = Liar()",
        "variables.x: Liar",
        "json.dumps(x) or dict.items(x)",
    ),
    "an object whose __reduce__ runs code": (
        "class Mine:\n    def __reduce__(self): return print, ('reduced',)\nx = [Mine()]",
        "variables.x[0]: Mine",
        "json.dumps(x)",
    ),
    "an object whose every method never ends": (
        (
            "class Mine:\n    def __getattribute__(self, name):\n        while True: pass\n    __str__ = __repr__ = __eq__ = __hash__ ="
            " __bool__ = __iter__ = __len__ = __reduce__ = lambda self, *_: object.__getattribute__(self, 'spin')()\nx = [Mine()]"
        ),
        "variables.x[0]: Mine",
        "object.__getattribute__(x[0], 'spin')",
    ),
    "a class whose metaclass never ends": (
        (
            "class Meta(type):\n    def __getattribute__(cls, name):\n        while True: pass\n"
            "    __instancecheck__ = __subclasscheck__ = lambda *_: 1 / 0\nclass Mine(metaclass=Meta): pass\nx = Mine()"
        ),
        "variables.x: Mine",
        "isinstance(1, type(x))",
    ),
}
VALUES = {
    f"{what} in the state is an error that says where": Attempt(
        f"{make}\nv['x'] = x",
        f"callback_error NotJson: {piece}" if piece.startswith("variables") else f"callback_error {piece}",
        control=f"import json, struct\n{make}\ntry: {hurt}\nexcept Exception: v['got'] = 'hurt'",
    )
    for what, (make, piece, hurt) in _VALUES.items()
} | {
    "a variable of 300 KB is refused in the platform's words": Attempt(
        "v['x'] = 'a' * 300_000",
        "callback_error Variable update for key 'x' is too large: 300002 bytes (max: 262144)",
        control="import json\nv['got'] = len(json.dumps('a' * 300_000)) > 262_144",
    ),
    "many variables that are each small enough are over the output limit": Attempt(
        "for n in range(40): v[f'x{n}'] = 'a' * 250_000",
        "output_limit limit 4194304 bytes (limit reply_bytes)",
        control="import json\nv['got'] = len(json.dumps(['a' * 250_000] * 40)) > 4_194_304",
    ),
    "a return value of another type is named": Attempt(
        "return {'decision': object()}",
        "callback_error before_agent_callback must return Content or None, it returned dict",
        control="import json\ntry: json.dumps({'decision': object()})\nexcept TypeError: v['got'] = 'hurt'",
    ),
    "a truth value that never ends is not asked for": Attempt(
        "class Mine:\n    def __bool__(self):\n        while True: pass\nreturn Mine()",
        "callback_error it returned Mine",
        control="class Mine:\n    def __bool__(self): v['got'] = 'asked'; return True\nbool(Mine())",
    ),
    "an awaitable that never ends ends at the CPU limit": Attempt(
        "class Mine:\n    def __await__(self):\n        while True: yield\nreturn Mine()",
        SPUN,
        control="class Mine:\n    def __await__(self): yield\nv['got'] = next(Mine().__await__()) is None",
    ),
    "a coroutine that sleeps for ever ends at the wall limit": Attempt(
        "import asyncio\nreturn asyncio.sleep(60)",
        OVERTIME,
        limits=SLEEPY,
        control="import asyncio\nv['got'] = asyncio.run(asyncio.sleep(0, 'slept'))",
    ),
    "a __del__ that never ends ends at the CPU limit": Attempt(
        "class Mine:\n    def __del__(self):\n        while True: pass\nx = Mine()\ndel x",
        SPUN,
        control="class Mine:\n    def __del__(self): v['got'] = 'ran'\nx = Mine()\ndel x",
    ),
    "a __del__ that raises is an ordinary line on stderr": Attempt(
        "class Mine:\n    def __del__(self): raise ValueError\nx = Mine()\ndel x",
        NOTHING,
        control="class Mine:\n    def __del__(self):\n        v['got'] = 'ran'\n        raise ValueError\nx = Mine()\ndel x",
    ),
    "variables that are no dict any more are named": Attempt(
        "context.variables = 5",
        "callback_error variables must be a dict, it is int",
        control="context.variables = 5",
    ),
}

_HOSTILE = "class Mine(Exception):\n    def __str__(self): {act}\nraise Mine"
_CALLED = "class Mine(Exception):\n    def __str__(self): v['got'] = 'asked'; return ''\nstr(Mine())"
EXCEPTIONS = {
    "an exception whose __str__ never ends ends at the CPU limit": Attempt(
        _HOSTILE.format(act="\n        while True: pass"), SPUN, control=_CALLED
    ),
    "an exception whose __str__ sleeps for ever ends at the wall limit": Attempt(
        "import time\n" + _HOSTILE.format(act="time.sleep(60)"), OVERTIME, limits=SLEEPY, control=_CALLED
    ),
    "an exception whose __str__ raises is reported all the same": Attempt(
        _HOSTILE.format(act="raise self"), "callback_error Mine: <its text cannot be made: Mine>", control=_CALLED
    ),
    "an exception whose __str__ is no text is reported all the same": Attempt(
        _HOSTILE.format(act="return 5"), "callback_error Mine: <its text cannot be made: TypeError>", control=_CALLED
    ),
    "an exception whose __str__ exits is no result": Attempt(
        "import os\n" + _HOSTILE.format(act="os._exit(0)"),
        "no_result it exited with 0 without a reply",
        control="import os\nclass Mine(Exception):\n    def __str__(self): os._exit(0)\nstr(Mine())",
        end_of_control="exit 0",
    ),
    "an exception whose class fights back ends at the CPU limit": Attempt(
        "class Meta(type):\n    def __getattribute__(cls, name):\n        while True: pass\n"
        "class Mine(Exception, metaclass=Meta): pass\nraise Mine('x')",
        SPUN,
        control="class Meta(type):\n    def __getattribute__(cls, name): return v.setdefault('got', 'asked')\n"
        "class Mine(metaclass=Meta): pass\nMine.__name__",
    ),
    "a message of a megabyte is cut, and says so": Attempt(
        "raise ValueError('x' * (1 << 20))",
        "callback_error ... (1040384 more characters)",
        control="v['got'] = len(str(ValueError('x' * (1 << 20)))) > 8192",
    ),
    "a cause that causes itself is reported once": Attempt(
        "a, b = ValueError('first'), ValueError('second')\na.__cause__, b.__cause__ = b, a\nraise a",
        "callback_error ValueError: first",
        control="a, b = ValueError(), ValueError()\na.__cause__, b.__cause__ = b, a\nv['got'] = a.__cause__.__cause__ is a",
    ),
    "a chain of 5,000 contexts is reported": Attempt(
        "a = ValueError('first')\nfor _ in range(5000):\n    b = ValueError('next')\n    b.__context__, a = a, b\nraise a",
        "callback_error ValueError: next",
        limits=LONG,
        control="a = ValueError()\nfor _ in range(5000):\n    b = ValueError()\n    b.__context__, a = a, b\nv['got'] = 1",
    ),
    "groups 5,000 deep are reported": Attempt(
        "e = ValueError('core')\nfor _ in range(5000): e = ExceptionGroup('group', [e])\nraise e",
        "callback_error ExceptionGroup: group (1 sub-exception)",
        limits=LONG,
        control="e = ValueError()\nfor _ in range(5000): e = ExceptionGroup('group', [e])\nv['got'] = 1",
    ),
    "notes of ten megabytes are cut": Attempt(
        "e = ValueError('small')\ne.__notes__ = ['n' * 1000] * 10_000\nraise e",
        "callback_error ValueError: small",
        limits=LONG,
        control="e = ValueError()\ne.__notes__ = ['n' * 1000] * 10_000\nv['got'] = len(e.__notes__)",
    ),
    "a class with a name of a megabyte is named by its beginning": Attempt(
        "raise type('E' * (1 << 20), (Exception,), {})('x')",
        "callback_error more characters",
        control="v['got'] = len(type('E' * (1 << 20), (Exception,), {}).__name__) == 1 << 20",
    ),
    "SystemExit is an error like any other": Attempt(
        "raise SystemExit(3)", "callback_error SystemExit: 3", end_of_control="SystemExit: 3"
    ),
    "KeyboardInterrupt is an error like any other": Attempt(
        "raise KeyboardInterrupt('mine')",
        "callback_error KeyboardInterrupt: mine",
        end_of_control="KeyboardInterrupt: mine",
    ),
    "GeneratorExit is an error like any other": Attempt(
        "raise GeneratorExit('mine')", "callback_error GeneratorExit: mine", end_of_control="GeneratorExit: mine"
    ),
    "an exception of no kind but its base is an error like any other": Attempt(
        "raise BaseException('mine')", "callback_error BaseException: mine", end_of_control="BaseException: mine"
    ),
    "recursion without end is an error like any other": Attempt(
        "def f(): f()\nf()",
        "callback_error RecursionError: maximum recursion depth exceeded",
        end_of_control="RecursionError: maximum recursion depth exceeded",
    ),
}

_PATCHED = "v['x'] = 'fine'"
PATCHES = {
    "json patched": "import json\njson.dumps = json.loads = json.JSONEncoder.encode = lambda *_, **__: '{}'\nv['got'] = json.dumps(1) == '{}'",
    "sys.stdout taken away": "import sys\nsys.stdout = sys.stderr = None\nv['got'] = not sys.stdout",
    "sys.stdout closed": "import sys\nsys.stdout.close()\nsys.stderr.close()\nv['got'] = sys.stdout.closed",
    "sys.stdout detached": "import sys\nsys.stdout.detach()\nsys.stderr.detach()\nv['got'] = 1",
    "sys.stdout that never ends": "import sys\nclass Mine:\n    def write(self, *_):\n        while True: pass\n    flush = write\n"
    "sys.stdout = sys.stderr = sys.__stdout__ = Mine()\nv['got'] = 1",
    "sys.modules emptied": "import sys\nsys.modules.clear()\nv['got'] = not sys.modules",
    "a finder that never ends": "import sys\nclass Mine:\n    def find_spec(self, *_):\n        while True: pass\n"
    "sys.meta_path.insert(0, Mine())\nv['got'] = 1",
    "isinstance patched": "import builtins\nbuiltins.isinstance = lambda *_: True\nv['got'] = isinstance(1, str)",
    "len patched": "import builtins\nbuiltins.len = lambda *_: 7\nv['got'] = len('') == 7",
    "type patched": "import builtins\nbuiltins.type = lambda *_: dict\nv['got'] = 1",
    "every builtin taken away": "import builtins\nkept, put = dict(vars(builtins)), setattr\n"
    "for name in kept: put(builtins, name, None)\nv['got'] = 1",
    "the dict of builtins emptied": "import builtins\nbuiltins.__dict__.clear()\nv['got'] = 1",
    "the recursion limit lowered": "import sys\nsys.setrecursionlimit(60)\nv['got'] = sys.getrecursionlimit() == 60",
    "an error handler patched": "import codecs\ncodecs.register_error('backslashreplace', lambda e: 1 / 0)\nv['got'] = 1",
    "the context's class patched": "type(context).model_dump = lambda *_: 1 / 0\nv['got'] = 1",
}
RUINED = dict.fromkeys(("every builtin taken away", "the dict of builtins emptied"), "exit 1")  # the control itself is

OWN_FAULT = {
    "msgpack is not there to be patched": Attempt(
        "import msgpack\nv['got'] = 1",
        "callback_error ModuleNotFoundError: No module named 'msgpack'",
        control="import struct\nstruct.pack = None\nv['got'] = 1",
    ),
    "a codec patched through the frames above forges a claim, which is read strictly": Attempt(
        "import sys\nf = sys._getframe()\nwhile 'codec' not in f.f_globals: f = f.f_back\nf.f_globals['codec'].pack = lambda _: b'forged'",
        UNREADABLE,
        control="import sys\nsys._getframe().f_back.f_globals['patched'] = v['got'] = 1",
    ),
    "a trace function that never ends ends at the CPU limit": Attempt(
        "import sys\ndef trace(*_):\n    while True: pass\nsys.settrace(trace)",
        SPUN,
        control="import sys\ndef trace(*_): v['got'] = 'traced'\nsys.settrace(trace)\n(lambda: 0)()",
    ),
    "a collection that never ends ends at the CPU limit": Attempt(
        "import gc\ndef spin(*_):\n    while True: pass\ngc.callbacks.append(spin)\ngc.collect()",
        SPUN,
        control="import gc\ngc.callbacks.append(lambda *_: v.setdefault('got', 'called'))\ngc.collect()",
    ),
    "an alarm that raises for ever costs the code its reply": Attempt(
        "import signal, time\ndef ring(*_): raise ValueError('alarm')\nsignal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)\ntime.sleep(60)",
        ("callback_error", LEFT, OVERTIME),
        limits=SLEEPY,
        control="import signal, time\ndef ring(*_): v['got'] = 'rang'\nsignal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-4)\ntime.sleep(0.1)",
    ),
    "None overwritten in memory is a crash of the sandbox alone": Attempt(
        "import ctypes\nctypes.memset(id(None), 0, 16)", crash("SIGSEGV"), end_of_control="SIGSEGV"
    ),
    "a print flood on stdout while stderr idles ends at the CPU limit": Attempt(
        "while True: print('x' * 1000)",
        SPUN,
        control="for _ in range(9): print('x' * 1000, file=__import__('io').StringIO())\nv['got'] = 1",
    ),
    "a print flood on stderr while stdout idles ends at the CPU limit": Attempt(
        "import sys\nwhile True: print('x' * 1000, file=sys.stderr)",
        SPUN,
        control="import sys\nfor _ in range(9): print('x' * 1000, file=sys.stderr)\nv['got'] = 1",
    ),
    "reading standard input ends at once": Attempt(
        "v['got'] = input()",
        "callback_error EOFError",
        control="import io, sys\nsys.stdin = io.StringIO('typed')\nv['got'] = input()",
    ),
}
TABLES = FRAMES | VALUES | EXCEPTIONS | OWN_FAULT


@pytest.mark.parametrize("promise", promises(TABLES))
def test_it_is_contained_and_its_verdict_says_what_it_was(cell: Cell, promise):
    cell.contains(TABLES[promise])


@pytest.mark.parametrize("promise", promises(TABLES))
def test_unprotected_the_same_act_gets_through(promise):
    gets_through(TABLES[promise])


@pytest.mark.parametrize("what", PATCHES)
def test_what_was_done_arrives_whatever_was_patched(cell: Cell, what):
    verdict = cell.run(f"{_PATCHED}\n{PATCHES[what]}")
    assert verdict.ok, said(verdict)
    assert verdict.state_delta.set["x"] == "fine"
    cell.unharmed()


@pytest.mark.parametrize("what", PATCHES)
def test_unprotected_the_patch_takes(what):
    gets_through(Attempt(PATCHES[what], NOTHING, end_of_control=RUINED.get(what, "got")))


FORGED = reply(set={"x": "forged"}, answered_by=None)
REAL = "v['x'] = 'real'"


def test_a_forged_reply_is_a_claim_like_any_other_and_its_facts_are_not_its_own(cell: Cell):
    verdict = cell.run(sends(FORGED))
    assert (verdict.ok, verdict.state_delta.set) == (True, {"x": "forged"})
    assert verdict.tier == cell.tier
    assert 0 < verdict.usage.wall_ms < 3000  # nobody waited for it to end


def test_of_two_replies_the_first_counts(cell: Cell):
    assert cell.run(sends(FORGED, reply(set={"x": "second"}))).state_delta.set == {"x": "forged"}
    assert cell.run(f"{sends(FORGED, then='')}\n{REAL}").state_delta.set == {"x": "forged"}


def test_a_whole_reply_dripped_byte_by_byte_counts(cell: Cell):
    dripped = f"import os, time\nfor byte in {codec.frame(FORGED)!r}:\n    os.write(3, bytes([byte]))\ntime.sleep(60)"
    assert cell.run(dripped).state_delta.set == {"x": "forged"}


def test_a_reply_is_not_lost_behind_answers_that_nobody_reads(cell: Cell):
    """The supervisor waits for room to write, to a process that says all it has to say and is gone."""
    asks = sends(*[call()] * 900, then=f"time.sleep(0.3)\nsend({FORGED!r})\nos._exit(0)")
    verdict = cell.run(asks, Limits(wall_s=5, cpu_s=2, memory_mb=64, calls=900))
    assert (verdict.ok, verdict.state_delta.set) == (True, {"x": "forged"}), said(verdict)


def test_a_forged_error_is_the_codes_own_fault(cell: Cell):
    """It can say of itself that it failed, in any words; it cannot take a status that is a fact."""
    verdict = cell.run(sends(b"R" + Reply(error=ErrorInfo("crashed", "policy_violation")).encode()))
    assert (verdict.status, verdict.detail) == ("callback_error", "crashed: policy_violation")


def test_64_mib_are_printed_and_the_verdict_keeps_the_first_part_and_counts_the_rest(cell: Cell):
    verdict = cell.run("for _ in range(64): print('x' * ((1 << 20) - 1))", LONG)
    assert verdict.ok, said(verdict)
    assert len(verdict.stdout) == LONG.stdout_bytes
    assert verdict.truncated == {"stdout": (64 << 20) - LONG.stdout_bytes}


def test_output_of_nul_escapes_and_bad_utf_8_is_plain_json(cell: Cell):
    verdict = cell.run(
        "import sys\nsys.stdout.buffer.write(b'\\x00\\x1b[31m\\xff\\xfe\\n')\nprint('\\ud800', file=sys.stderr)"
    )
    assert verdict.ok, said(verdict)
    assert verdict.stdout == "\x00\x1b[31m\ufffd\ufffd\n"
    assert verdict.stderr == "\\ud800\n"
    assert json.loads(verdict.model_dump_json())["stdout"] == verdict.stdout
    cell.unharmed()


def test_subclasses_with_hostile_methods_are_read_as_what_they_are(cell: Cell):
    spin = "        while True: pass\n"
    verdict = cell.run(
        f"class D(dict):\n    def items(self):\n{spin}    __iter__ = __len__ = keys = __eq__ = __bool__ = items\n"
        f"class S(str):\n    def __str__(self):\n{spin}    encode = isascii = __len__ = __eq__ = __str__\n    __hash__ = str.__hash__\n"
        f"class I(int):\n    def __index__(self):\n{spin}    __int__ = __lt__ = __le__ = __eq__ = __index__\n"
        f"class L(list):\n    def __iter__(self):\n{spin}    __len__ = __getitem__ = __eq__ = __iter__\n"
        "v['x'] = D(a=[S('text'), I(7), L([1])])"
    )
    assert verdict.state_delta.set == {"x": {"a": ["text", 7, [1]]}}, said(verdict)


def test_a_memory_error_that_is_caught_is_the_codes_own_business(cell: Cell):
    verdict = cell.run("try: bytearray(2 << 30)\nexcept MemoryError: v['x'] = 'caught'")
    assert verdict.state_delta.set == {"x": "caught"}, said(verdict)
    assert TOO_MUCH.startswith(cell.run("raise MemoryError").status)
