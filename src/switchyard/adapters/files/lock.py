"""Lock files: one process at a time may use a file or database."""

import fcntl
import os
from pathlib import Path

from switchyard.adapters.files.private import create_file, make_folder


def lock_beside(path: Path) -> int | None:
    """Lock `<path>.lock` for this process and return its descriptor; none while another process holds the lock.

    The lock is released when the descriptor is closed or the process ends, however it ends. The lock file itself stays:
    removing it would let two processes lock two files of the same name.
    """
    make_folder(path.parent)
    lock = path.with_name(path.name + ".lock")
    create_file(lock)
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
