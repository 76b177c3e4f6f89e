"""The job that fills every queue: the same order, repeated."""

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
    """Yield the row numbers in chunks, so that no queue has to insert all rows in one statement."""
    for first in range(0, rows, CHUNK):
        yield range(first, min(first + CHUNK, rows))
