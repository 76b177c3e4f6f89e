"""Resident memory of a running process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SAMPLE_SECONDS = 0.1
MIB = 1024 * 1024


def resident_bytes(pid: int) -> int:
    """The memory that the process occupies now."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has ended")


class Peak:
    """The most memory that was seen."""

    bytes = 0


@contextmanager
def watched(pid: int) -> Iterator[Peak]:
    """Sample the memory of the process until the block ends."""
    peak, stopped = Peak(), threading.Event()

    def sample() -> None:
        while not stopped.wait(SAMPLE_SECONDS):
            peak.bytes = max(peak.bytes, resident_bytes(pid))

    peak.bytes = resident_bytes(pid)
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        stopped.set()
        thread.join()
