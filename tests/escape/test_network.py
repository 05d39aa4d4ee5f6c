"""The network: there is none. The only way out is a call that the supervisor makes."""

from __future__ import annotations

import pytest

from .cells import REFUSED, Attempt, Cell, gets_through, promises

# Those whose control loads nothing into the kernel; in a sandbox every number is tried.
_FAMILIES = "(1, 2, 10, 16, 17)"

ATTEMPTS = {
    "no socket of any family and type is made": Attempt(
        """
        import socket
        made = []
        for family in range(48):
            for kind in (1, 2, 3, 5):
                try: socket.socket(family, kind).close()
                except PermissionError: continue
                except OSError as error: made.append([family, kind, error.errno])
                else: made.append([family, kind])
        v['got'] = made
        """,
        "ok",
        control=f"import socket\nfor family in {_FAMILIES}: socket.socket(family, 3 if family > 10 else 1).close()\nv['got'] = 1",
    ),
    "no pair of sockets is made but a connected stream": Attempt(
        """
        import socket
        made = []
        for family in range(48):
            for kind in (1, 2, 3, 5):
                try: socket.socketpair(family, kind)
                except PermissionError: continue
                except OSError as error: made.append([family, kind, error.errno])
                else: made.append([family, kind])
        v['got'] = [one for one in made if one != [1, 1]]
        """,
        "ok",
        control="import socket\nsocket.socketpair(1, 2)\nsocket.socketpair(1, 5)\nv['got'] = 1",
    ),
    "a queue on loopback is not reached": Attempt(
        "import socket\nv['got'] = socket.create_connection(('127.0.0.1', PORT), 2).recv(7).decode()", REFUSED
    ),
    "a queue on loopback is not reached by its other address": Attempt(
        "import socket\nv['got'] = socket.create_connection(('::ffff:127.0.0.1', PORT), 2).recv(7).decode()", REFUSED
    ),
    "a queue on loopback is not reached by http": Attempt(
        "import urllib.request\nv['got'] = urllib.request.urlopen(f'http://127.0.0.1:{PORT}/', timeout=2).read()",
        "callback_error URLError: <urlopen error [Errno 1]",
        control="import http.client\nc = http.client.HTTPConnection('127.0.0.1', PORT, timeout=2)\nc.connect()\nv['got'] = 1",
    ),
    "a queue on loopback is not reached by asyncio": Attempt(
        "import asyncio\nv['got'] = bool(asyncio.run(asyncio.open_connection('127.0.0.1', PORT)))", REFUSED
    ),
    "a unix socket on a path is not reached": Attempt(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect(PATH)\nv['got'] = s.recv(7).decode()", REFUSED
    ),
    "an abstract unix socket is not reached": Attempt(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0' + ABSTRACT)\nv['got'] = s.recv(7).decode()",
        REFUSED,
    ),
    "a socket of a pair is not connected elsewhere": Attempt(
        "import socket\ns = socket.socketpair()[0]\ns.connect(PATH)\nv['got'] = 1",
        REFUSED,
        control="import socket\ns = socket.socketpair(1, 2)[0]\ntry: s.connect(PATH)\n"
        "except OSError as error: v['got'] = error.errno == 91",  # the wrong type for it: it was looked up
    ),
    "a socket of a pair is not bound": Attempt(
        "import socket\ns = socket.socketpair()[0]\ns.bind('/tmp/mine')\nv['got'] = 1",
        REFUSED,
        control="import socket\ns = socket.socket(1)\ns.bind('/tmp/mine')\nv['got'] = 1",
    ),
    "a socket of a pair does not listen": Attempt(
        "import socket\nsocket.socketpair()[0].listen()\nv['got'] = 1",
        REFUSED,
        control="import socket\ns = socket.socket(1)\ns.bind('/tmp/mine')\ns.listen()\nv['got'] = 1",
    ),
    "nothing is sent to an address": Attempt(
        "import socket\ns = socket.socketpair()[0]\nv['got'] = s.sendto(b'x', PATH)",
        REFUSED,
        control="import socket\ns, t = socket.socket(1, 2), socket.socket(1, 2)\nt.bind('/tmp/mine')\nv['got'] = s.sendto(b'x', '/tmp/mine')",
    ),
    "a datagram pair, whose ends could send to a path, is refused": Attempt(
        "import socket\nv['got'] = len(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))", REFUSED
    ),
    "nothing is sent with a message header": Attempt(
        "import socket\ns, t = socket.socketpair()\nv['got'] = s.sendmsg([b'x'])", REFUSED
    ),
    "many messages are not sent in one call": Attempt(
        "import socket\ns = socket.socketpair()[0]\nv['got'] = call('sendmmsg', s.fileno(), 0, 0, 0) == 0", REFUSED
    ),
    "a name is not looked up": Attempt(
        "import socket\nv['got'] = socket.getaddrinfo('localhost', 80)[0][4][0]", "callback_error gaierror"
    ),
    "a name is not looked up by the old call": Attempt(
        "import socket\nv['got'] = socket.gethostbyname('localhost')", "callback_error gaierror"
    ),
    "a question to a name server on loopback is not sent": Attempt(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nv['got'] = s.sendto(b'x', ('127.0.0.53', 53))",
        REFUSED,
    ),
    "interfaces are not listed": Attempt("import socket\nv['got'] = socket.if_nameindex()", REFUSED),
    "routes are not listed": Attempt(
        "v['got'] = open('/proc/net/dev').read()", ("callback_error FileNotFoundError", REFUSED)
    ),
    "splicing into a socket is refused": Attempt(
        "import os, socket\nr, w = os.pipe()\nos.write(w, b'x')\ns, t = socket.socketpair()\nv['got'] = os.splice(r, s.fileno(), 1)",
        REFUSED,
    ),
}


@pytest.mark.parametrize("promise", promises(ATTEMPTS))
def test_it_is_contained(cell: Cell, promise):
    cell.contains(ATTEMPTS[promise])


@pytest.mark.parametrize("promise", promises(ATTEMPTS))
def test_unprotected_the_same_act_gets_through(promise):
    gets_through(ATTEMPTS[promise])


def test_the_listeners_are_really_there(world):
    """From this process they answer a connection: what a sandbox fails to reach could be reached."""
    import socket

    for family, address in (
        (socket.AF_INET, ("127.0.0.1", world.port)),
        (socket.AF_UNIX, world.path),
        (socket.AF_UNIX, f"\0{world.abstract}"),
    ):
        with socket.socket(family) as client:
            client.settimeout(1)
            client.connect(address)
