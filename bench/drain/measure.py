"""Fills one queue, then measures how fast one worker process drains it."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.drain.queues import Queue, pgqueuer, procrastinate, switchyard
from bench.drain.report import Drain
from bench.processes import BenchError, environment_of, running
from bench.stores import POLL_SECONDS, PostgresStore

ROWS = 50_000
# A queue that finishes no row for this long is stuck.
STALLED_SECONDS_MAX = 60.0


def queues() -> list[Queue]:
    return [switchyard(fills=False), pgqueuer(), procrastinate(), switchyard(fills=True)]


def drain(
    queue: Queue, rows: int, folder: Path, new_database: Callable[[], AbstractContextManager[str]]
) -> Iterator[Drain]:
    """Measure the rows per second that the worker finishes."""
    with TemporaryDirectory(dir=folder) as own, new_database() as url:
        environment = queue.environment(Path(own) / "data", url)
        fill_queue(queue, rows, environment, Path(own))
        store = PostgresStore(url)
        # The filling must not slow down the drain, and the planner needs statistics of the filled tables.
        for statement in ("VACUUM ANALYZE", "CHECKPOINT"):
            store.rows(statement)
        if (queued := _left(queue, store)) != rows:
            raise BenchError(f"{queued} of {rows} rows were queued")
        with running(queue.work, environment, Path(own)):
            wait_until_empty(queue, store)
        first, last, finished = store.rows(queue.done)[0]
    if finished != rows:
        raise BenchError(f"{finished} of {rows} rows were finished")
    yield Drain(queue.name, queue.setup, rows, (last - first).total_seconds())


def fill_queue(queue: Queue, rows: int, environment: dict[str, str], folder: Path) -> None:
    """Queue so many rows; raises BenchError if that fails."""
    completed = subprocess.run(
        [*queue.fill, "fill", str(rows)],
        env=environment_of(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        raise BenchError(f"{queue.name} could not be filled:\n{completed.stdout}{completed.stderr}")


def wait_until_empty(queue: Queue, store: PostgresStore) -> None:
    """Wait until every row is finished; raises BenchError if none moves."""
    left, since = _left(queue, store), time.monotonic()
    while left:
        time.sleep(POLL_SECONDS)
        now_left = _left(queue, store)
        if now_left < left:
            left, since = now_left, time.monotonic()
        elif time.monotonic() - since > STALLED_SECONDS_MAX:
            raise BenchError(f"{left} rows are left and none was finished for {STALLED_SECONDS_MAX:.0f} s")


def _left(queue: Queue, store: PostgresStore) -> int:
    return int(store.rows(queue.left)[0][0])
