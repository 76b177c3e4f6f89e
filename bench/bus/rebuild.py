"""Measures how fast books are rebuilt from the journal, and with how much memory."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.bus.report import BusStep
from bench.checkouts import PROGRAM
from bench.drain.measure import fill_queue, wait_until_empty
from bench.drain.queues import switchyard
from bench.memory import resident_bytes
from bench.processes import BenchError, environment_of, running
from bench.stores import PostgresStore, SqliteStore

SAMPLE_SECONDS = 0.1

_ENTRIES = "SELECT sum(entries) FROM accounts"


def measure_rebuild(
    entries: int, folder: Path, new_database: Callable[[], AbstractContextManager[str]]
) -> Iterator[BusStep]:
    """Yield the step; an order that is filled at once makes two entries."""
    queue = switchyard(fills=True)
    with TemporaryDirectory(dir=folder) as name, new_database() as url:
        own = Path(name)
        environment = queue.environment(own / "data", url)
        fill_queue(queue, entries // 2, environment, own)
        with running(queue.work, environment, own):
            wait_until_empty(queue, PostgresStore(url))
        books = {
            "SWITCHYARD_DATA_DIR": str(own / "books"),
            "SWITCHYARD_DATABASE_URL": url,
            "SWITCHYARD_BACKOFFICE_URL": "sqlite",
        }
        seconds, peak = _rebuild(books, own)
        [[booked]] = SqliteStore(own / "books", "backoffice.db").rows(_ENTRIES)
    if booked != entries // 2 * 2:
        raise BenchError(f"{booked} of {entries} entries were booked")
    yield BusStep("rebuild", "", "entries", booked, seconds, peak)


def _rebuild(environment: dict[str, str], folder: Path) -> tuple[float, int]:
    """Run the command; returns its seconds and the most memory that it took."""
    began, peak, log = time.monotonic(), 0, folder / "rebuild.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(PROGRAM), "backoffice", "rebuild"], env=environment_of(environment), stdout=output, stderr=output
        )
        while process.poll() is None:
            try:
                peak = max(peak, resident_bytes(process.pid))
            except ValueError:
                break  # it has just ended
            time.sleep(SAMPLE_SECONDS)
        code = process.wait()
    if code:
        raise BenchError(f"the rebuild failed:\n{log.read_text('utf-8', 'replace')}")
    return time.monotonic() - began, peak
