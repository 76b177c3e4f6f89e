"""Free TCP ports for servers that tests start, below the range that the kernel assigns by itself."""

import os
import socket
from itertools import count

FIRST = 11_000
PER_PROCESS = 2_500

# Each xdist worker has a range of its own; two runs at the same time start at different places of it.
_base = FIRST + PER_PROCESS * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8)
_next = count(os.getpid() * 7)


def free_port() -> int:
    """A port that is free, and that this process has not returned recently."""
    for _ in range(PER_PROCESS):
        port = _base + next(_next) % PER_PROCESS
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise RuntimeError(f"no port is free from {_base} to {_base + PER_PROCESS - 1}")
