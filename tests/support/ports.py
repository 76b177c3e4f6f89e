"""Ports for servers that tests start: below those that the kernel hands out, and each test process its own."""

import os
import socket
from itertools import count

FIRST = 11_000
PER_PROCESS = 5_000

# Tests may run in several processes; and two runs at once begin at different places of the same range.
_base = FIRST + PER_PROCESS * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4)
_next = count(os.getpid() * 7)


def free_port() -> int:
    """A port that nobody uses and that this process has not given away for a long while."""
    for _ in range(PER_PROCESS):
        port = _base + next(_next) % PER_PROCESS
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise RuntimeError("no port is free")
