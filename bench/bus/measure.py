"""Measures whether relay and back office keep up with the orders of the end-to-end measurement.

The same load on the same server, without and with them; on a few cores they take their share of the machine.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.bus.report import BusStep
from bench.checkouts import PROGRAM
from bench.load import ORDER, press_orders, tokens
from bench.measure import END_TO_END_CONNECTIONS, WARM_UP_SECONDS, Bench, sustained
from bench.memory import watched
from bench.processes import BenchError, free_port, serving
from bench.stores import PostgresStore, SqliteStore, Store, check_filled, wait_until_finished
from tests.support.kafka import Kafka, bus_settings, start_kafka

PARTITIONS = 6
POLL_SECONDS = 0.1
STALLED_SECONDS_MAX = 120.0

_HEAD = "SELECT max(seq) FROM journal_heads"
_RELAYED = "SELECT coalesce(max(seq), 0) FROM relays"
_LAST = "SELECT account_id, max(seq) FROM events GROUP BY account_id"
_BOOKED = "SELECT account_id, seq FROM accounts"
_ENTRIES = "SELECT coalesce(sum(entries), 0) FROM accounts"


def measure_bus(bench: Bench) -> Iterator[BusStep]:
    """Yield the steps: orders alone, then orders, relay and back office at the same time."""
    kafka = start_kafka()
    try:
        yield from _orders_alone(bench)
        yield from _together(bench, kafka)
    finally:
        kafka.remove()


def _orders_alone(bench: Bench) -> Iterator[BusStep]:
    with bench.fresh("postgres", worker=True) as contender, contender.serving() as server:
        assert contender.store is not None, "Switchyard has a database"
        with watched(server.pid) as peak:
            orders, per_second = _load(bench, server.url, contender.store)
    yield BusStep("orders alone", "", "orders", orders, orders / per_second, peak.bytes)


def _together(bench: Bench, kafka: Kafka) -> Iterator[BusStep]:
    broker = "Apache Kafka" if kafka.is_real else "mock cluster"
    bus = bus_settings(kafka.bootstrap, kafka.create_topic(PARTITIONS))
    with bench.fresh("postgres", worker=True) as alone, ExitStack() as stack:
        store = alone.store
        assert isinstance(store, PostgresStore), "it was asked for"
        folder = Path(stack.enter_context(TemporaryDirectory(dir=bench.folder)))
        server = stack.enter_context(replace(alone, environment={**alone.environment, **bus}).serving())
        port = free_port()
        environment = {**_office(folder, port, store.url), **bus}
        office = stack.enter_context(serving([str(PROGRAM), "backoffice"], environment, folder, port))
        books = SqliteStore(folder / "office", "backoffice.db")
        press_orders(server.url, tokens(bench.secret), END_TO_END_CONNECTIONS, WARM_UP_SECONDS, ORDER)
        wait_until_finished(store)
        wait_until_none(lambda: not_booked(books, store))  # the group has shared the partitions out
        before, head_before = _entries(books), _head(store)
        with watched(server.pid) as server_peak, watched(office.pid) as office_peak:
            began = time.monotonic()
            orders, per_second = _load(bench, server.url, store)
            filled_seconds, head = orders / per_second, _head(store)
            wait_until_none(lambda: head - int(store.rows(_RELAYED)[0][0]))
            relayed_seconds = time.monotonic() - began
            wait_until_none(lambda: not_booked(books, store))
            booked_seconds = time.monotonic() - began
        entries = _entries(books) - before
    if entries < 2 * orders:
        raise BenchError(f"{orders} orders were filled, and {entries} entries were booked")
    yield BusStep("orders", broker, "orders", orders, orders / per_second)
    for step, what, count, seconds, peak in (
        ("relay", "events", head - head_before, relayed_seconds, server_peak),
        ("back office", "entries", entries, booked_seconds, office_peak),
    ):
        yield BusStep(step, broker, what, count, seconds, peak.bytes, seconds - filled_seconds)


def _load(bench: Bench, url: str, store: Store) -> tuple[int, float]:
    """Post orders for a while, more than are filled in time; returns how many were, and how many per second."""
    started = datetime.now(UTC)
    press_orders(url, tokens(bench.secret), END_TO_END_CONNECTIONS, bench.seconds, ORDER)
    wait_until_finished(store)
    orders = store.orders(started)
    check_filled(orders)
    return len(orders), sustained(orders, started)


def _office(folder: Path, port: int, url: str) -> Mapping[str, str]:
    return {
        "SWITCHYARD_DATA_DIR": str(folder / "office"),
        "SWITCHYARD_BACKOFFICE_PORT": str(port),
        "SWITCHYARD_BACKOFFICE_URL": "sqlite",
        "SWITCHYARD_DATABASE_URL": url,
        "SWITCHYARD_LOG_LEVEL": "warning",
    }


def _head(store: Store) -> int:
    return int(store.rows(_HEAD)[0][0])


def _entries(books: Store) -> int:
    return int(books.rows(_ENTRIES)[0][0])


def not_booked(books: Store, store: Store) -> int:
    """How far the accounts together are behind their last events: each partition is read on its own."""
    booked = {row[0]: int(row[1]) for row in books.rows(_BOOKED)}
    return sum(int(row[1]) - booked.get(row[0], 0) for row in store.rows(_LAST))


def wait_until_none(left: Callable[[], int], stalled_seconds_max: float = STALLED_SECONDS_MAX) -> None:
    """Wait until nothing is left; raises BenchError if nothing moves."""
    last, since = left(), time.monotonic()
    while last > 0:
        time.sleep(POLL_SECONDS)
        now = left()
        if now < last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > stalled_seconds_max:
            raise BenchError(f"{last} are left and nothing has moved for {stalled_seconds_max:.0f} s")
