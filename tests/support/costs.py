"""What each test costs: its own processor time and that of the processes that it ended, written to a file.

Used with `--costs FILE`; each worker of pytest-xdist appends its lines, and at its end the seconds of the whole worker:
with its imports, and with the servers of the session, which outlive their tests. The last line is that of all workers.
"""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import forked

OPTION = "--costs"


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + forked.processor_seconds()


class Costs:
    """A plugin that measures."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure one test with its set-up and its end."""
        before = _processor_seconds()
        try:
            return (yield)
        finally:
            self._write(_processor_seconds() - before, item.nodeid)

    def write_total(self) -> None:
        """Measure the whole process; its servers have ended."""
        self._write(_processor_seconds() - forked.processor_seconds(), "all")

    def _write(self, seconds: float, of: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{seconds:.3f} {of}\n")
