"""The measurements. Each starts a new server and database, warms up, applies load, and checks the row counts."""

import secrets
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from bench import contenders
from bench.checkouts import Checkout
from bench.contenders import NULL_VENUE, Contender, PeerWorker
from bench.idle_streams import idle_streams
from bench.load import post_at_rate, post_orders, press_orders, tokens
from bench.percentiles import percentile
from bench.processes import BenchError
from bench.report import Kind, Part, Row
from bench.stored import Stored, measure_stored
from bench.stores import FILLED, StoredOrder, check_filled, count_orders, wait_until_finished
from tests.support.redis import RedisServer

WARM_UP_SECONDS = 1
# Enough to fill commit groups, few enough to keep latency low.
END_TO_END_CONNECTIONS = 64
PEER_WORKERS: Mapping[Part, PeerWorker] = {"peer_inside": "inside", "peer_beside": "beside"}


@dataclass(frozen=True)
class Bench:
    """The context that all measurements of one run share."""

    folder: Path
    seconds: int
    new_database: Callable[[], AbstractContextManager[str]]
    """Creates a PostgreSQL database and yields its URL."""
    checkouts: Mapping[bool, Checkout]
    """By whether it is the base."""
    secret: str = field(default_factory=lambda: secrets.token_hex(32))

    def accept(
        self, part: Part, connections: int, *, is_base: bool = False, streams: int = 0, rules: bool = False
    ) -> Iterator[Row]:
        """Measure the accept rate and latency, while accounts without orders hold this many streams."""
        bearer = tokens(self.secret)
        with self.fresh(part, worker=False, is_base=is_base, rules=rules) as contender:
            with contender.serving() as server, idle_streams(server.url, self.secret, streams):
                warm_up = post_orders(server.url, bearer, connections, WARM_UP_SECONDS)
                load = post_orders(server.url, bearer, connections, self.seconds)
            if contender.store is not None:
                # Each wrk run may end with one unanswered order per connection.
                _check_count(count_orders(contender.store), warm_up.answers + load.answers, 2 * connections)
        kind: Kind = "accept, idle streams" if streams else "accept, every rule" if rules else "accept"
        yield Row(part, kind, connections, load.per_second, load.p50_ms, load.p99_ms, is_base)

    def end_to_end(self, part: Part, *, is_base: bool = False) -> Iterator[Row | Stored]:
        """Measure the rate at which orders become final, and what each of them occupies then."""
        bearer, connections = tokens(self.secret), END_TO_END_CONNECTIONS
        with self.fresh(part, worker=True, is_base=is_base) as contender, contender.serving() as server:
            store = contender.store
            assert store is not None, "end to end needs a server that stores orders"
            empty_bytes = store.bytes()
            post_orders(server.url, bearer, connections, WARM_UP_SECONDS)
            wait_until_finished(store)

            started = datetime.now(UTC)
            load = post_orders(server.url, bearer, connections, self.seconds)
            wait_until_finished(store)
            orders = store.orders(started)
            check_filled(orders)
            _check_count(len(orders), load.answers, connections)
            yield Row(part, "end to end", connections, sustained(orders, started), is_base=is_base)
            yield measure_stored(contender, part, empty_bytes, is_base=is_base)

    def end_to_end_on_paper(self, part: Part, *, is_base: bool = False) -> Iterator[Row]:
        """Measure the rate at which market orders are filled by the default venue; some may be refused or expire."""
        bearer, connections = tokens(self.secret), END_TO_END_CONNECTIONS
        with self.fresh(part, worker=True, is_base=is_base, venue=None) as contender, contender.serving() as server:
            store = contender.store
            assert store is not None, "Switchyard has a database"
            press_orders(server.url, bearer, connections, WARM_UP_SECONDS)
            wait_until_finished(store)
            started = datetime.now(UTC)
            load = press_orders(server.url, bearer, connections, self.seconds)
            wait_until_finished(store)
            orders = store.orders(started)
            _check_count(len(orders), load.statuses.get(202, 0), connections)
            unfilled = sum(order.status != FILLED for order in orders)
            note = f"of {load.answers:,} orders {load.rejections:,} were refused and {unfilled:,} not filled"
            yield Row(
                part,
                "end to end, paper",
                connections,
                sustained(orders, started),
                is_base=is_base,
                note=note if load.rejections or unfilled else "",
            )

    def half_load(self, part: Part, per_second: float, *, is_base: bool = False) -> Iterator[Row]:
        """Measure the time from acceptance to the final status at this rate."""
        bearer, connections = tokens(self.secret), END_TO_END_CONNECTIONS
        with self.fresh(part, worker=True, is_base=is_base) as contender, contender.serving() as server:
            store = contender.store
            assert store is not None, "Switchyard has a database"
            post_orders(server.url, bearer, connections, WARM_UP_SECONDS)
            wait_until_finished(store)
            started = datetime.now(UTC)
            answers = post_at_rate(server.url, bearer, per_second, self.seconds, connections)
            if answers.statuses.keys() != {202} or answers.unanswered:
                raise BenchError(f"not every order was accepted: {answers}")
            wait_until_finished(store)
            orders = store.orders(started)
            check_filled(orders)
            _check_count(len(orders), answers.due, 0)
        took_ms = [(order.updated_at - order.accepted_at).total_seconds() * 1e3 for order in orders]
        times = statistics.median(took_ms), percentile(took_ms, 99)
        yield Row(part, "half load", connections, answers.posted_per_second, *times, is_base)

    @contextmanager
    def fresh(
        self, part: Part, *, worker: bool, is_base: bool = False, venue: str | None = NULL_VENUE, rules: bool = False
    ) -> Iterator[Contender]:
        """Yield a new server without orders; its files and database exist until the block ends."""
        checkout = self.checkouts[is_base]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder)))
            match part:
                case "hello":
                    yield contenders.hello(folder)
                case "peer" | "peer_inside" | "peer_beside":
                    database_url = stack.enter_context(self.new_database())
                    yield contenders.peer(folder, self.secret, database_url, PEER_WORKERS.get(part))
                case "sqlite":
                    yield contenders.switchyard(
                        checkout, folder, self.secret, None, worker=worker, venue=venue, rules=rules
                    )
                case "postgres":
                    database_url = stack.enter_context(self.new_database())
                    yield contenders.switchyard(
                        checkout, folder, self.secret, database_url, worker=worker, venue=venue, rules=rules
                    )
                case "redis":
                    database_url = stack.enter_context(self.new_database())
                    redis_url = stack.enter_context(RedisServer()).url
                    yield contenders.switchyard(checkout, folder, self.secret, database_url, redis_url, worker=worker)
                case _:
                    assert_never(part)


def sustained(orders: Sequence[StoredOrder], started: datetime) -> float:
    """Fills per second until the last one.

    The end comes from the rows, not from the time of a poll: polls are rare, so that they do not add load.
    """
    fills = [order.updated_at for order in orders if order.status == FILLED]
    if not fills:
        raise BenchError("no order was filled")
    return len(fills) / (max(fills) - started).total_seconds()


def _check_count(stored: int, accepted: int, unanswered_max: int) -> None:
    """Check that the database has every accepted order, and besides them only unanswered ones from the end."""
    if not accepted <= stored <= accepted + unanswered_max:
        raise BenchError(f"{accepted} orders were accepted, {stored} are in the database")
