"""Measures whether relay and back office keep up with orders that are filled, and how fast books are rebuilt.

A worker drains orders with fills (as in `bench/drain`) and relays; a back office reads the topic at the same time.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.bus.report import BusStep
from bench.checkouts import PROGRAM
from bench.drain.measure import fill_queue
from bench.drain.queues import switchyard
from bench.memory import resident_bytes, watched
from bench.processes import BenchError, environment_of, free_port, running, serving
from bench.stores import PostgresStore, SqliteStore
from tests.support.kafka import Kafka, start_kafka

PARTITIONS = 6
POLL_SECONDS = 0.2
STALLED_SECONDS_MAX = 120.0

_LEFT = "SELECT count(*) FROM orders WHERE status <> 'FILLED'"
_HEAD = "SELECT max(seq) FROM journal_heads"
_RELAYED = "SELECT coalesce(max(seq), 0) FROM relays"
_BOOKED = "SELECT coalesce(max(seq), 0), coalesce(sum(entries), 0) FROM accounts"


def measure_bus(
    orders: int, folder: Path, new_database: Callable[[], AbstractContextManager[str]]
) -> Iterator[BusStep]:
    """Yield the steps for so many orders."""
    kafka = start_kafka()
    try:
        with TemporaryDirectory(dir=folder) as own, new_database() as url:
            yield from _measure(orders, Path(own), url, kafka)
    finally:
        kafka.remove()


def _measure(orders: int, folder: Path, url: str, kafka: Kafka) -> Iterator[BusStep]:
    queue, broker = switchyard(fills=True), "Apache Kafka" if kafka.is_real else "mock cluster"
    bus = {
        "KAFKA_ENABLE": "1",
        "KAFKA_TOPIC": kafka.create_topic(PARTITIONS),
        "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
    }
    port = free_port()
    worker = queue.environment(folder / "data", url) | bus
    office = {
        "SWITCHYARD_DATA_DIR": str(folder / "office"),
        "SWITCHYARD_BACKOFFICE_PORT": str(port),
        "SWITCHYARD_BACKOFFICE_URL": "sqlite",
        "SWITCHYARD_DATABASE_URL": url,
        "SWITCHYARD_LOG_LEVEL": "warning",
        **bus,
    }
    fill_queue(queue, orders, queue.environment(folder / "data", url), folder)
    store, books = PostgresStore(url), SqliteStore(folder / "office", "backoffice.db")
    with (
        serving([str(PROGRAM), "backoffice"], office, folder, port) as server,
        running(queue.work, worker, folder, "worker.log") as process,
        watched(server.pid) as office_peak,
        watched(process.pid) as worker_peak,
    ):
        began = time.monotonic()
        _until(lambda: int(store.rows(_LEFT)[0][0]), 0)
        filled_seconds = time.monotonic() - began
        head = int(store.rows(_HEAD)[0][0])
        _until(lambda: head - int(store.rows(_RELAYED)[0][0]), 0)
        relayed_seconds = time.monotonic() - began
        _until(lambda: head - int(books.rows(_BOOKED)[0][0]), 0)
        booked_seconds = time.monotonic() - began
        entries = int(books.rows(_BOOKED)[0][1])
    yield BusStep("orders filled", broker, "orders", orders, filled_seconds)
    yield BusStep("relay", broker, "events", head, relayed_seconds, worker_peak.bytes, relayed_seconds - filled_seconds)
    yield BusStep(
        "back office", broker, "entries", entries, booked_seconds, office_peak.bytes, booked_seconds - filled_seconds
    )
    yield _rebuild(entries, folder, office)


def _rebuild(entries: int, folder: Path, environment: dict[str, str]) -> BusStep:
    began, peak = time.monotonic(), 0
    with (folder / "rebuild.log").open("wb") as output:
        process = subprocess.Popen(
            [str(PROGRAM), "backoffice", "rebuild"], env=environment_of(environment), stdout=output, stderr=output
        )
        while process.poll() is None:
            try:
                peak = max(peak, resident_bytes(process.pid))
            except ValueError:
                break  # it has just ended
            time.sleep(POLL_SECONDS)
        code = process.wait()
    if code:
        raise BenchError(f"the rebuild failed:\n{(folder / 'rebuild.log').read_text('utf-8', 'replace')}")
    return BusStep("rebuild", "journal", "entries", entries, time.monotonic() - began, peak)


def _until(left: Callable[[], int], target: int) -> None:
    """Wait until no more than the target is left; raises BenchError if nothing moves."""
    last, since = left(), time.monotonic()
    while last > target:
        time.sleep(POLL_SECONDS)
        now = left()
        if now < last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > STALLED_SECONDS_MAX:
            raise BenchError(f"{last} are left and nothing has moved for {STALLED_SECONDS_MAX:.0f} s")
