"""What the zygote imports before the first fork, so that children only share it.

Two reasons, one list each. Extension modules must be there already: in a child no memory becomes
executable any more, so a later `import` of one would fail. Common pure-Python modules are there for
speed, and in tier C because nothing is opened at all.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig

COMMON = tuple(
    """
    abc ast asyncio base64 bisect calendar cmath collections colorsys concurrent.futures concurrent.futures.thread
    contextlib contextvars copy copyreg csv ctypes dataclasses datetime decimal difflib email.utils enum fnmatch
    fractions functools getpass gettext glob hashlib heapq hmac html html.entities html.parser http http.client
    importlib importlib.resources importlib.util inspect io ipaddress itertools json keyword linecache locale logging
    marshal math mimetypes multiprocessing numbers operator os pathlib pickle platform pprint queue quopri random re
    secrets select shlex shutil signal socket ssl stat statistics string stringprep struct subprocess sys tempfile
    textwrap threading time timeit token tokenize traceback types typing unicodedata urllib.error urllib.parse
    urllib.request uuid warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo _strptime _pylong
    encodings.idna encodings.utf_8 encodings.utf_16 encodings.utf_32 encodings.latin_1 encodings.ascii
    encodings.cp1252 encodings.unicode_escape encodings.raw_unicode_escape encodings.punycode encodings.utf_8_sig
    json.decoder json.encoder json.scanner
""".split()
)

# Extension modules nobody calls back into: terminals, desktops, databases of the host, CPython's own tests.
UNWANTED = (
    "_test",
    "_xx",
    "xx",
    "_tkinter",
    "_ctypes_test",
    "readline",
    "_curses",
    "_gdbm",
    "_dbm",
    "nis",
    "ossaudiodev",
)

# Parts of heavy packages with extension modules of their own that are imported late.
_SUBMODULES = {
    "numpy": ("fft", "linalg", "random", "polynomial", "ma", "testing"),
    "google.protobuf": (
        "message",
        "descriptor_pb2",
        "json_format",
        "struct_pb2",
        "timestamp_pb2",
        "internal.python_message",
    ),
}


def preload(code: str, packages: str, heavy: list[str]) -> None:
    """Import all of it, and `heavy`. `code` holds the `sandbox` package, `packages` the third-party ones."""
    for path in (code, packages):
        if path not in sys.path:
            sys.path.append(path)
    for name in (*_extension_modules(), *COMMON):
        try:
            importlib.import_module(name)
        except ImportError:  # built without it; the author gets the ordinary ModuleNotFoundError
            continue
    for name in heavy:
        importlib.import_module(name)
        for extra in _SUBMODULES.get(name, ()):
            importlib.import_module(f"{name}.{extra}")
    from sandbox.guest import chain, forks  # noqa: F401  # and with it all of ours that children need

    if "pytest" in heavy:
        from sandbox.guest import tests

        tests.prepare()
        chain.TESTS.append(tests.run)

    sys.path.remove(code)


def _extension_modules() -> list[str]:
    folder = os.path.join(sysconfig.get_paths()["platstdlib"], "lib-dynload")
    names = {entry.partition(".")[0] for entry in os.listdir(folder)} if os.path.isdir(folder) else set()
    return sorted(name for name in names if not name.startswith(UNWANTED))
