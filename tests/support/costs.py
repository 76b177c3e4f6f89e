"""What each test costs: its own processor time and that of the processes that it ended, written to a file.

Used with `--costs FILE`; each worker of pytest-xdist appends its lines. Processes that outlive the test, such as the
servers of the session, count nowhere.
"""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

OPTION = "--costs"


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


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
            with self._path.open("a") as file:
                file.write(f"{_processor_seconds() - before:.3f} {item.nodeid}\n")
