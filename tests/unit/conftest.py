"""Unit tests do no I/O: a guard fails a test that uses a socket, a process, a database or a file for writing."""

import os
import sys
from collections.abc import Iterator

import apsw
import pytest

REJECTED = {
    "os.fork",
    "os.posix_spawn",
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "subprocess.Popen",
}
# Written by Python's import and by hypothesis, not by the test.
NOT_OF_THE_TEST = ("__pycache__", ".hypothesis")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_is_unit_test = False


class UnitTestDoesIO(AssertionError):
    """Move the test to tests/contract or tests/api, or give it a fake of the port."""


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if not _is_unit_test:
        return
    if event in REJECTED:
        raise UnitTestDoesIO(f"{event}{arguments!r}")
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & WRITING and not any(part in str(path) for part in NOT_OF_THE_TEST):
            raise UnitTestDoesIO(f"open for writing: {path}")


def _reject_database(connection: apsw.Connection) -> None:
    if _is_unit_test:
        raise UnitTestDoesIO(f"apsw.Connection: {connection.filename}")


# An audit hook cannot be removed again, so it is installed once and active only during unit tests.
sys.addaudithook(_audit)
apsw.connection_hooks.append(_reject_database)


@pytest.fixture(autouse=True)
def no_input_or_output() -> Iterator[None]:
    """Activate the guard."""
    global _is_unit_test
    _is_unit_test = True
    yield
    _is_unit_test = False
