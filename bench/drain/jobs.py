"""What every queue is filled with: the same order, so often."""

import os
from collections.abc import Iterator

from bench.load import ORDER

URL_VARIABLE = "DRAIN_DATABASE_URL"
NAME = "send"
PAYLOAD = ORDER
CHUNK = 1_000


def database_url() -> str:
    return os.environ[URL_VARIABLE]


def chunks(rows: int) -> Iterator[range]:
    """The numbers of the rows, some at a time: no queue is asked to take all of them in one statement."""
    for first in range(0, rows, CHUNK):
        yield range(first, min(first + CHUNK, rows))
