"""A process of the demo: runs one `switchyard` command and ends with the demo, also if that is killed.

`python -m switchyard.entrypoints.cli.demo.child PARENT ARGUMENT…`
"""

import ctypes
import os
import signal
import sys

from switchyard.entrypoints.cli.main import run

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def main() -> None:
    """Ask the kernel for a SIGTERM at the parent's end, then run the command."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request
        return
    sys.argv = ["switchyard", *sys.argv[2:]]
    run()


if __name__ == "__main__":
    main()
