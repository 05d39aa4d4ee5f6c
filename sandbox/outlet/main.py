"""The broker's own side: its start, its lockdown, its loop.

Started by file name with `-I -S`, no environment, /dev/null for standard streams and one socket, whose
number is in argv. The plan comes over the socket; what the plan needs of the disk (certificates,
modules) is read before anything is given up. Then, in order: another uid, no capabilities,
no_new_privs, not dumpable, death with its parent, landlock, seccomp; what could not be had is named
in `ready`. End of file on the socket ends it.
"""

from __future__ import annotations

import json
import os
import socket
import sys

TYPE_CHECKING = False  # typing itself is imported later, with everything else
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Become a broker. Never returns."""
    orders = json.loads(sys.argv[1])
    channel = socket.socket(fileno=orders["channel"])
    os.environ.clear()
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    sys.path += [orders["code"], orders["packages"]]
    from sandbox.outlet import serving

    serving.run(channel, orders["parent"])


if __name__ == "__main__":
    main()
