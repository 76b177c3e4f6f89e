"""How a server behaves with more and more orders in its database.

At each size it measures the restart, queries and memory first, because the accept and claim rates add orders.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from bench.contenders import Contender
from bench.growth.queries import OrderQueries
from bench.growth.report import Growth
from bench.load import post_orders, tokens
from bench.measure import END_TO_END_CONNECTIONS, WARM_UP_SECONDS, Bench
from bench.memory import resident_bytes
from bench.percentiles import percentile
from bench.report import Part
from bench.stores import Store, check_filled, count_orders, wait_until_finished

# The queue of unsent orders is emptied after each part of the filling, so that it stays short.
FILL_SECONDS_MAX = 60
QUERIES = 200
ONLY_ACCEPT: Mapping[str, str] = {"SWITCHYARD_WORKER": "false"}


def measure_growth(bench: Bench, part: Part, sizes: Sequence[int]) -> Iterator[Growth]:
    """Fill one database to each size in turn, with orders that are accepted over HTTP and executed."""
    with bench.fresh(part, worker=True) as contender:
        for size in sorted(sizes):
            _fill(contender, bench.secret, size)
            bearer = tokens(bench.secret)
            with contender.serving() as server:
                queries = OrderQueries(server.url, bearer)
                listed_ms = queries.times_of_lists(QUERIES)
                found_ms = queries.times_of_orders(QUERIES)
                memory_bytes = resident_bytes(server.pid)
            orders = count_orders(_store(contender))
            accepted_since = datetime.now(UTC)
            accepts = replace(contender, environment={**contender.environment, **ONLY_ACCEPT})
            with accepts.serving() as accepting:
                post_orders(accepting.url, bearer, END_TO_END_CONNECTIONS, WARM_UP_SECONDS)
                load = post_orders(accepting.url, bearer, END_TO_END_CONNECTIONS, bench.seconds)
            with contender.serving():
                wait_until_finished(_store(contender))
            yield Growth(
                part,
                orders,
                accepts_per_second=load.per_second,
                claims_per_second=_claims_per_second(_store(contender), accepted_since),
                list_p50_ms=statistics.median(listed_ms),
                list_p99_ms=percentile(listed_ms, 99),
                order_p50_ms=statistics.median(found_ms),
                order_p99_ms=percentile(found_ms, 99),
                restart_seconds=server.start_seconds,
                memory_bytes=memory_bytes,
            )


def _fill(contender: Contender, secret: str, size: int) -> None:
    """Accept and execute orders until the database has this many."""
    store = _store(contender)
    with contender.serving() as server:
        seconds = WARM_UP_SECONDS
        while (missing := size - count_orders(store)) > 0:
            # The filling may take longer than a token is valid.
            load = post_orders(server.url, tokens(secret), END_TO_END_CONNECTIONS, seconds)
            wait_until_finished(store)
            seconds = max(1, min(FILL_SECONDS_MAX, int((missing - load.answers) / load.per_second)))


def _claims_per_second(store: Store, since: datetime) -> float:
    """The rate at which a started worker sent the queued orders and recorded their fills."""
    orders = store.orders(since)
    check_filled(orders)
    ended = [order.updated_at for order in orders]
    return len(ended) / (max(ended) - min(ended)).total_seconds()


def _store(contender: Contender) -> Store:
    assert contender.store is not None, "Switchyard has a database"
    return contender.store
